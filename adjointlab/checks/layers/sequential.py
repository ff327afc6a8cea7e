"""The distributed result is the sequential one: an operator is compared with its reference, a layer with its twin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeGuard

from adjointlab.checks.check import Check, CheckedSubject, Spaces
from adjointlab.checks.context import CheckContext
from adjointlab.checks.elements import Local, Tolerance, first_difference
from adjointlab.checks.fresh_memory import controlled
from adjointlab.checks.layers.compared_passes import PassObservation, first_wrong
from adjointlab.checks.layers.own_part import is_of_own_part
from adjointlab.checks.layers.twin import twin_passes
from adjointlab.checks.schedule_invariant import ElementResult, ScheduleInvariant
from adjointlab.checks.verdict import Inapplicable, Verdict, coherent
from adjointlab.checks.whole_tensors import held_by_all, whole_array, with_other_padding
from adjointlab.core import arrays
from adjointlab.core.declaration import SubjectError
from adjointlab.core.layer import Layer
from adjointlab.core.operator import as_tuple
from adjointlab.core.vectors import Draw
from adjointlab.notes import noted
from adjointlab.quantities import counted
from adjointlab.spelling import described_type
from adjointlab.typing import Array

__all__ = ["SEQUENTIAL", "SequentialCheck"]


@dataclass(frozen=True)
class ReferenceOutputs:
    """One rank's outputs of an operator; from rank 0 also the reference's, cut into the parts that the ranks should hold."""

    outputs: Local
    expected: tuple[Local, ...] | None
    tolerance: Tolerance


_Observation: TypeAlias = ReferenceOutputs | tuple[PassObservation, ...]


class SequentialCheck(Check[_Observation]):
    """Comparison with the subject's reference, a function from the global tensors to the global tensors.

    A reference returns `NotImplemented` for a case that has no sequential counterpart: the case is rejected, and counted as such.

    For a layer, the outputs and then the buffers are compared, without gradients: its code may take another path then.
    """

    name = "sequential"
    order = 50
    share = 0.4
    varies_values = True
    goes_back = False

    def applies_to(self, subject: CheckedSubject) -> bool:
        return subject.is_layer or subject.reference is not None

    def cases_of(self, asked: int, subject: CheckedSubject) -> int:
        # For a layer `gradients` compares the outputs too; for an operator no other check does.
        return super().cases_of(asked, subject) if subject.is_layer else asked

    def surroundings(self) -> AbstractContextManager[None]:
        return controlled()

    def observe(self, context: CheckContext) -> _Observation:
        if isinstance(context.instance, Layer):
            return twin_passes(context, backward=False)
        bound = context.arithmetic.integers()
        outputs = context.numpy(context.forward(context.primal(0, bound)))
        if context.rank:
            return ReferenceOutputs(outputs, None, context.arithmetic.tolerance)
        if context.reference is None:
            raise ValueError("the subject gives no reference to compare with")
        draw = Draw(context.setting.seed, 0, "primal", bound)
        inputs = [
            arrays.from_numpy(whole_array(context.domain, position, draw), tensor.dtype, context.library)
            for position, tensor in enumerate(context.domain.tensors)
        ]
        with noted("raised by the reference"):
            result = context.reference(*inputs)
        if result is NotImplemented:
            raise Inapplicable("the reference returned NotImplemented")
        whole = [arrays.to_numpy(_required_array(a)) for a in as_tuple(result)]
        _require_number(len(whole), len(context.codomain.tensors))
        expected = held_by_all(context.codomain, whole, context.comm.Get_size())
        return ReferenceOutputs(outputs, expected, context.arithmetic.tolerance)

    def judge(self, spaces: Spaces, observations: Sequence[_Observation]) -> Verdict:
        if not _of_operator(observations):
            return first_wrong([seen for seen in observations if isinstance(seen, tuple)])
        first, *_ = observations
        assert first.expected is not None
        actual = [seen.outputs for seen in observations]
        if difference := first_difference(spaces.codomain, actual, first.expected, first.tolerance):
            headline = "the distributed result is not the sequential one"
            verdict = difference.verdict(headline, "distributed", "sequential")
            inner = with_other_padding(spaces.codomain, actual, first.expected)
            if first_difference(spaces.codomain, inner, first.expected, first.tolerance) is None:
                return verdict.with_lines(_IN_PADDING)
            return verdict
        return coherent()

    def is_of_own_part(
        self, observations: Sequence[_Observation], others: Sequence[_Observation], rank: int
    ) -> bool | None:
        passes, passes_of_others = (
            [seen for seen in each if isinstance(seen, tuple)] for each in (observations, others)
        )
        return is_of_own_part(passes, passes_of_others, rank) if passes else None

    def schedule_invariants(
        self, spaces: Spaces, observations: Sequence[_Observation]
    ) -> Mapping[str, ScheduleInvariant]:
        if not _of_operator(observations):
            return {}
        first, *_ = observations
        outputs = [seen.outputs for seen in observations]
        return {"forward": ElementResult(spaces.codomain, outputs, first.tolerance)}


_IN_PADDING: Final = (
    "perhaps",
    "all that differs lies beyond the ends of the tensor, where a reference has nothing and zeros are expected: declare the result of a "
    "periodic halo as one longer tensor, the windows of all ranks one after the other",
)

_RETURNED = "it returns an array, or a tuple of one for each tensor of the codomain"


def _required_array(result: object) -> Array:
    if not arrays.is_array(result):
        raise SubjectError(f"the reference returned {described_type(result)}: {_RETURNED}")
    return result


def _require_number(returned: int, declared: int) -> None:
    if returned != declared:
        raise SubjectError(
            f"the reference returned {counted(returned, 'tensor')}, but the codomain has {declared}: {_RETURNED}"
        )


def _of_operator(observations: Sequence[_Observation]) -> TypeGuard[Sequence[ReferenceOutputs]]:
    """Return True for observations of a linear operator; those of a layer are of its passes."""
    return all(isinstance(seen, ReferenceOutputs) for seen in observations)


SEQUENTIAL = SequentialCheck()
