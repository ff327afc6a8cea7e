"""Is the distributed result the sequential one?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from adjointlab.checks.check import Check, CheckedSubject, Spaces
from adjointlab.checks.compare import Local, Tolerance, first_difference
from adjointlab.checks.context import CheckContext
from adjointlab.checks.layers.twin import Seen, first_wrong, twin_passes
from adjointlab.checks.schedule_invariant import ElementResult, ScheduleInvariant
from adjointlab.checks.verdict import Verdict, coherent, incoherent
from adjointlab.checks.windows import assembled, held
from adjointlab.core import arrays
from adjointlab.core.layer import Layer
from adjointlab.core.values import Draw

__all__ = ["SequentialCheck"]


@dataclass(frozen=True)
class Observation:
    """One rank's outputs; from rank 0 the sequential twin's, cut up as every rank should hold them."""

    outputs: Local
    expected: tuple[Local, ...] | None
    tolerance: Tolerance


class SequentialCheck(Check[Any]):
    """Compare with the subject's reference, a function from the global tensors to the global tensors.

    Of a layer the outputs are compared, and its buffers afterwards; that no gradient is asked for is a case of its own.
    """

    name = "sequential"
    order = 50

    def applies_to(self, subject: CheckedSubject) -> bool:
        return subject.is_layer or subject.reference is not None

    def observe(self, context: CheckContext) -> Observation | tuple[Seen, ...]:
        if isinstance(context.instance, Layer):
            return twin_passes(context, backward=False)
        bound = context.integers()
        outputs = context.numpy(context.forward(context.primal(0, bound)))
        if context.rank:
            return Observation(outputs, None, context.tolerance)
        if context.reference is None:
            raise ValueError("the subject gives no reference to compare with")
        draw = Draw(context.setting.seed, 0, "primal", bound)
        inputs = [
            arrays.from_numpy(assembled(context.domain, position, draw), tensor.dtype, context.library)
            for position, tensor in enumerate(context.domain.tensors)
        ]
        result = context.reference(*inputs)
        whole = [arrays.to_numpy(a) for a in (result if isinstance(result, tuple | list) else (result,))]
        size = context.comm.Get_size()
        expected = tuple(
            tuple(
                held(tensor, array, rank)
                for tensor, array in zip(context.codomain.tensors, whole, strict=True)
            )
            for rank in range(size)
        )
        return Observation(outputs, expected, context.tolerance)

    def judge(self, spaces: Spaces, observations: Sequence[Any]) -> Verdict:
        first = observations[0]
        if not isinstance(first, Observation):
            return first_wrong(observations)
        assert first.expected is not None
        actual = [seen.outputs for seen in observations]
        if difference := first_difference(spaces.codomain, actual, first.expected, first.tolerance):
            where, got, want = difference
            return incoherent(
                "the distributed result is not the sequential one",
                ("element", where),
                ("distributed", got),
                ("sequential", want),
            )
        return coherent()

    def schedule_invariants(
        self, spaces: Spaces, observations: Sequence[Any]
    ) -> Mapping[str, ScheduleInvariant]:
        first = observations[0]
        if not isinstance(first, Observation):
            return {}
        return {
            "forward": ElementResult(
                spaces.codomain, [seen.outputs for seen in observations], first.tolerance
            )
        }


SEQUENTIAL = SequentialCheck()
