"""Results of passes compared with those of a sequential layer, and the verdict on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from adjointlab.checks.elements import (
    Difference,
    Local,
    Tolerance,
    WhereNotFinite,
    largest_magnitude,
    relative_difference,
    tensor_difference,
)
from adjointlab.checks.hints import FaultKind, Hint
from adjointlab.checks.layers.passes import (
    BUFFERS,
    EVALUATION,
    ONE_PASS,
    OUTPUTS,
    PARAMETER_GRADIENT,
    PARAMETERS,
    PassPlan,
)
from adjointlab.checks.layers.repeated import repeated_hint
from adjointlab.checks.layers.sensitivity import Allowances
from adjointlab.checks.layers.unsummed import unsummed_hint
from adjointlab.checks.verdict import Figure, Figures, Verdict, coherent, incoherent
from adjointlab.core.layout import Window
from adjointlab.core.space import LocalType, Space, Tensor
from adjointlab.typing import NumpyArray

__all__ = ["AFTER_STEPS", "SECOND_PASS", "Change", "Comparison", "PassObservation", "first_wrong"]


SECOND_PASS: Final = (
    "pass",
    "the second one, with other data; the first was right: its data hide the fault, or something is kept from it",
)

_RANDOM: Final = (
    "random",
    "the sequential layer gives another result with other random numbers, as dropout in training mode does, and the layer draws its own: "
    "call .eval() on both, or let both seed a generator alike",
)

_JOINED: Final = (
    "added up",
    "those of two backward passes, as of two microbatches, between one before_backward and one after_backward; accumulates=False forbids it",
)

_UNWRITTEN: Final = (
    "perhaps",
    "it reads uninitialised memory, or the result of a message that has not been waited for, which are filled with NaN here; or a "
    "formula has no value there, such as 0/0",
)

_INFINITE_INPUT: Final = (
    "perhaps",
    "an infinite input meets a zero, such as a mask's, or another infinity; if infinite inputs are not legal, `prepare` makes legal ones",
)

_ANOTHER_FORMULA: Final = (
    "perhaps",
    "a cast to a narrower element type, as into a buffer that code makes without a dtype: it is of float32, and modules run in float64, unless the "
    'dictionary of a parallel module says dtype="float32"; or a formula that rounds more than the sequential one: if that is meant, declare the '
    "allowed error as `rounding`, relative to the largest value of the tensor, or to `reach` if that is larger; otherwise it is a fault",
)

AFTER_STEPS: Final = "parameters after the steps"
"""The result of an optimiser's steps. A difference as large as a step may still be small relative to a parameter."""

_LARGEST_TERMS: Final = 1e6
"""Intermediate terms computed from small integers are seldom larger: a larger difference is not the rounding of terms that cancel."""

_DECLARED_ROUNDING: Final = (
    "perhaps",
    "terms that cancel, or a function that saturates in a narrow element type: the result is smaller than the rounding of the terms. The "
    "declared `rounding` is relative to the largest value of the tensor, or to `reach` if that is larger: declare how large the terms are",
)


@dataclass(frozen=True)
class Comparison:
    """Results of one kind, such as "parameter gradient": this rank's part, and from rank 0 the parts expected of all.

    For gradients, `without` names the tensors that have none on this rank, because it was not required; for other results it is
    `None`.
    """

    what: str
    space: Space
    actual: Local
    tolerance: Tolerance
    without: frozenset[str] | None = None
    expected: tuple[Local, ...] | None = None
    # The rounding of the twin's results, and the name of the one that this is compared with; from rank 0 if at all.
    allowances: Allowances | None = None
    result: str = ""
    not_finite: WhereNotFinite = WhereNotFinite.WRONG
    # The tolerance is for sums that the check itself makes, not a declaration of the layer.
    is_own: bool = False

    def tolerances(self, position: int) -> Iterator[Tolerance]:
        """The tolerance of a tensor; if it has to be measured, smaller ones first, which cost less and mostly suffice."""
        if self.allowances is None:
            yield self.tolerance
        else:
            for differences in self.allowances:
                yield replace(self.tolerance, absolute=differences[self.result][position])


MakeHint: TypeAlias = Callable[[Tensor, Sequence[NumpyArray], Sequence[NumpyArray], float], Hint | None]
"""Called with a wrong tensor, the parts that the ranks hold, those that they should hold, and the allowed difference."""


class Change(NamedTuple):
    """A tensor that the layer has written into although it must not."""

    what: str  # such as "an input"
    tensor: str
    allowed_by: str = ""  # declaration that would allow it


@dataclass(frozen=True)
class PassObservation:
    """All results of one pass on one rank."""

    comparisons: tuple[Comparison, ...]
    changes: tuple[Change, ...] = ()
    plan: PassPlan = ONE_PASS
    refused_order: str = ""  # of memory, by the sequential module: inputs are row-major
    left_out: tuple[str, ...] = ()  # names of outputs
    cotangents: str = ""  # description, if they are special
    # Parameters with elements on this rank that, as made, do not or do require a gradient; from rank 0 also the twin's frozen ones.
    frozen: frozenset[str] = frozenset()
    trained: frozenset[str] = frozenset()
    frozen_in_twin: frozenset[str] | None = None
    steps: str = ""  # description of an optimiser's steps, if they are special


def first_wrong(observations: Sequence[tuple[PassObservation, ...]]) -> Verdict:
    """Return the verdict on all passes: the first tensor that the layer must not have written into, or its first difference from its twin."""
    for rank, passes in enumerate(observations):
        for change in (change for seen in passes for change in seen.changes):
            allowed = [("to allow it", change.allowed_by)] if change.allowed_by else []
            place = "tensor", f"{change.tensor} (rank {rank})"
            return incoherent(f"the layer writes into {change.what}", place, *allowed)
    for number, ranks in enumerate(zip(*observations, strict=True)):
        if found := _first_difference(ranks):
            return _not_sequential(ranks, *found, is_repeated=bool(number))
    if verdict := _frozen_otherwise(observations):
        return verdict
    figures: Figures = {}
    if taken := max(map(_taken_for_rounding, zip(*observations, strict=True))):
        figures[Figure.ROUNDING] = taken
    if reached := _parts_reached(observations[0]):
        least = min(reached, key=lambda name: reached[name])
        figures |= {Figure.REACHED: reached[least], Figure.LEAST_REACHED: least}
    return coherent(figures)


def _not_sequential(
    ranks: Sequence[PassObservation], wrong: Comparison, difference: Difference, *, is_repeated: bool
) -> Verdict:
    what = wrong.what
    verb = "are not the sequential ones" if what.endswith("s") else "is not the sequential one"
    return incoherent(
        f"the layer's {what} {verb}",
        (what, difference.where),
        ("distributed", difference.actual),
        ("sequential", difference.expected),
        *_reasons(wrong, difference),
        *_circumstances(ranks[0], wrong, is_repeated=is_repeated),
        kind=what,
        evidence=difference.evidence("distributed", "sequential", _own_hint(ranks, wrong, difference)),
    )


def _reasons(wrong: Comparison, difference: Difference) -> Iterator[tuple[str, str]]:
    """A line on a possible cause of the difference, if its values suggest one."""
    if "nan" in difference.actual and wrong.not_finite is WhereNotFinite.WRONG:
        yield _UNWRITTEN
    elif "nan" in difference.actual:
        yield _INFINITE_INPUT
    elif wrong.allowances is not None and wrong.allowances.is_random:
        yield _RANDOM
    elif difference.is_small and wrong.what != AFTER_STEPS:
        yield _ANOTHER_FORMULA
    elif not wrong.is_own and 0.0 < difference.error <= wrong.tolerance.relative * _LARGEST_TERMS:
        yield _DECLARED_ROUNDING


def _circumstances(
    first: PassObservation, wrong: Comparison, *, is_repeated: bool
) -> Iterator[tuple[str, str]]:
    """Lines on the pass in which the difference occurred."""
    is_gradient, plan = wrong.without is not None, first.plan
    if is_repeated:
        yield SECOND_PASS
    if is_gradient and plan.accumulated:
        yield "accumulated", ".grad held other gradients before, which are subtracted here"
    if wrong.what == PARAMETER_GRADIENT.name and plan.joined:
        yield _JOINED
    if is_gradient and (without := _not_required(first)):
        yield "without", f"gradients of {', '.join(without)}, which require none here"
    if plan.before:
        others = f"a {plan.other_batch} batch" if plan.other_batch else "other inputs"
        how = "without gradients" if plan.before == EVALUATION else "and backward"
        how += " in evaluation mode" * plan.in_evaluation_mode
        yield "before", f"the same instance has gone forward {how}, with {others}"
    if first.refused_order:
        yield "inputs", f"row-major, because the sequential module takes none in {first.refused_order} memory"
    if first.cotangents and wrong.what not in _VALUES:
        yield "cotangents", first.cotangents
    if first.steps:
        yield "steps", first.steps
    if is_gradient and first.left_out:
        yield "loss", f"of the other outputs: it does not depend on {', '.join(first.left_out)}"


_VALUES: Final = frozenset({OUTPUTS.name, BUFFERS.name, PARAMETERS.name})
"""Results that are not derivatives."""


def _taken_for_rounding(ranks: Sequence[PassObservation]) -> float:
    """The largest relative difference of a pass that the sequential layer's own rounding allows; 0 if that was not measured.

    Gradients are relative to the largest of all gradients: for a tensor on which the loss does not depend it is nothing but rounding.
    """
    largest, steepest = 0.0, _largest_gradient(ranks[0])
    for each in _compared(ranks):
        first = each.comparison
        is_measured = first.allowances is not None and first.allowances.is_measured
        if is_measured and not each.tensor.element.is_integer:
            reach = max(first.tolerance.reach, 0.0 if first.what in _VALUES else steepest)
            largest = max(largest, relative_difference(each.tensor, each.got, each.want, reach))
    return largest


def _parts_reached(passes: Sequence[PassObservation]) -> dict[str, int]:
    """For each parameter that is cut, the number of parts whose sequential gradient is not zero, if there are any.

    `passes` are those of rank 0. A parameter that no gradient reaches does not count: the module may not use it.
    """
    reached: dict[str, set[tuple[Window, ...] | None]] = {}
    comparisons = (each for seen in passes for each in seen.comparisons)
    for each in (each for each in comparisons if each.what == PARAMETER_GRADIENT.name):
        assert each.expected is not None
        for position, tensor in enumerate(each.space.tensors):
            layout = tensor.layout
            holders = [rank for rank in layout.partition.ranks if layout.local_size(rank)]
            parts = {layout.window(rank) for rank in holders}
            if len(parts) > 1 and tensor.name not in (each.without or ()):
                found = {layout.window(rank) for rank in holders if each.expected[rank][position].any()}
                reached.setdefault(tensor.name, set()).update(found)
    return {name: len(found) for name, found in reached.items() if found}


def _largest_gradient(leader: PassObservation) -> float:
    return max(
        (
            largest_magnitude(array)
            for each in leader.comparisons
            if each.what not in _VALUES
            for local in each.expected or ()
            for array in local
        ),
        default=0.0,
    )


def _not_required(seen: PassObservation) -> list[str]:
    """Tensors that could require a gradient, but do not in this pass on this rank."""
    return [
        tensor.name
        for each in seen.comparisons
        if each.without is not None
        for tensor in each.space.tensors
        if tensor.name in each.without and not tensor.element.is_integer
    ]


def _frozen_otherwise(observations: Sequence[tuple[PassObservation, ...]]) -> Verdict | None:
    """Verdict on a parameter that only one side trains. Gradients do not show it: for their comparison the lab sets `requires_grad`."""
    in_twin = observations[0][0].frozen_in_twin
    if in_twin is None:
        return None
    for rank, passes in enumerate(observations):
        if only := sorted(passes[0].frozen - in_twin):
            return _not_trained(only[0], rank, "the layer's", "the sequential one's")
    if only := sorted(in_twin & frozenset().union(*(passes[0].trained for passes in observations))):
        return _not_trained(only[0], None, "the sequential layer's", "the distributed one's")
    return None


def _not_trained(name: str, rank: int | None, frozen: str, trained: str) -> Verdict:
    lines = [] if rank is None else [("rank", str(rank))]
    return incoherent(
        f"{frozen} parameter {name} does not require a gradient as it is made, {trained} does",
        *lines,
        ("so", "an optimiser would train one and not the other; freeze both, or neither"),
        kind="requires_grad",
    )


@dataclass(frozen=True)
class _Compared:
    """The tensor at a `position` of rank 0's `comparison`: the parts that all ranks have, and those that each should have."""

    comparison: Comparison
    position: int
    got: Sequence[NumpyArray]
    want: Sequence[NumpyArray]

    @property
    def tensor(self) -> Tensor:
        return self.comparison.space.tensors[self.position]

    def difference(self) -> Difference | None:
        """The first place that differs from the expected value by more than each of the tolerances."""
        found, not_finite = None, self.comparison.not_finite
        for tolerance in self.comparison.tolerances(self.position):
            found = tensor_difference(self.tensor, self.got, self.want, tolerance, not_finite)
            if found is None:
                break
        return found


def _compared(ranks: Sequence[PassObservation]) -> Iterator[_Compared]:
    """The tensors of all results of a pass, separately: the tolerance is relative to the largest value of each."""
    for of_ranks in zip(*(seen.comparisons for seen in ranks), strict=True):
        first, *_ = of_ranks
        assert first.expected is not None
        for position, tensor in enumerate(first.space.tensors):
            want = [local[position] for local in first.expected]
            got = _parts_to_judge(tensor, [each.actual[position] for each in of_ranks], want, of_ranks)
            yield _Compared(first, position, got, want)


def _parts_to_judge(
    tensor: Tensor, got: Sequence[NumpyArray], want: Sequence[NumpyArray], ranks: Sequence[Comparison]
) -> Sequence[NumpyArray]:
    """The parts of a tensor on all ranks, with the expected parts in place of gradients that were not required."""
    is_missing = [tensor.name in (each.without or ()) for each in ranks]
    if LocalType.PARTIAL in tensor.types and any(is_missing):
        return want  # without one summand there is no sum to judge
    return [due if missing else own for own, due, missing in zip(got, want, is_missing, strict=True)]


def _first_difference(ranks: Sequence[PassObservation]) -> tuple[Comparison, Difference] | None:
    for each in _compared(ranks):
        if (difference := each.difference()) is not None:
            return each.comparison, difference
    return None


def _own_hint(ranks: Sequence[PassObservation], wrong: Comparison, difference: Difference) -> Hint | None:
    """The hint on results whose values alone show little: compared with the other copies, and for outputs with the parameters."""
    said = None if difference.hint is None else difference.hint.kind
    if not (makers := list(_makers(ranks[0], wrong, said))):
        return None
    for each in _compared(ranks):
        if each.comparison is not wrong:
            continue
        scale = max((float(np.abs(array).max(initial=0.0)) for array in each.want), default=0.0)
        allowed = max(tolerance.allowed(scale) for tolerance in wrong.tolerances(each.position))
        for make in makers:
            if (hint := make(each.tensor, each.got, each.want, allowed)) is not None:
                return hint
    return None


def _makers(leader: PassObservation, wrong: Comparison, said: FaultKind | None) -> Iterator[MakeHint]:
    """Functions that may make a hint on a wrong tensor; `said` is the kind of the hint that its values alone gave."""
    if said in (None, FaultKind.EXTRA, FaultKind.MISSING, FaultKind.ZERO_RANK):
        yield unsummed_hint
    if wrong.what == OUTPUTS.name and said in (None, FaultKind.EXTRA):
        parameters = next(each for each in leader.comparisons if each.what == PARAMETERS.name)
        expected = parameters.expected
        assert expected is not None
        yield lambda tensor, actual, of_output, allowed: repeated_hint(
            tensor, actual, of_output, (parameters.space, expected), allowed
        )
