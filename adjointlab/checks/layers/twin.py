"""Comparison of a layer with its sequential twin on the same values: outputs, gradients, and what is left in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from adjointlab.checks.check import Check, CheckedSubject, Spaces
from adjointlab.checks.context import INFINITE, SUBNORMAL, CheckContext
from adjointlab.checks.elements import (
    ORDERS,
    Difference,
    Local,
    Tolerance,
    WhereNotFinite,
    largest_magnitude,
    relative_difference,
    tensor_difference,
    unmixed,
)
from adjointlab.checks.fresh_memory import controlled
from adjointlab.checks.hints import FaultKind, Hint
from adjointlab.checks.layers.modules import (
    LARGEST,
    LocalModule,
    SequentialTwin,
    first_positions,
    has_small_cotangents,
)
from adjointlab.checks.layers.passes import (
    BUFFERS,
    EVALUATION,
    OUTPUTS,
    PARAMETERS,
    Pass,
    PassPlan,
    ResultKind,
    run_passes,
)
from adjointlab.checks.layers.repeated import repeated_hint
from adjointlab.checks.layers.sensitivity import Allowances, measured
from adjointlab.checks.verdict import Figure, Inapplicable, Verdict, coherent, incoherent
from adjointlab.checks.whole_tensors import held_by_all
from adjointlab.core import arrays
from adjointlab.core.declaration import SubjectError
from adjointlab.core.layer import Layer, trained
from adjointlab.core.space import LocalType, Space, Tensor
from adjointlab.core.vectors import SMALL_INTEGERS
from adjointlab.devices.memories import is_on_device
from adjointlab.typing import NumpyArray

__all__ = [
    "AFTER_STEPS",
    "SECOND_PASS",
    "Comparison",
    "PassObservation",
    "TwinCheck",
    "first_wrong",
    "is_measured",
    "results_of_twin",
    "tolerance_of",
    "twin_passes",
    "with_expected",
]


SECOND_PASS: Final = (
    "pass",
    "the second one, with other data; the first was right: its data hide the fault, or something is kept from it",
)

_RANDOM: Final = (
    "random",
    "the sequential layer gives something else with other random numbers, as dropout in training mode does, and the layer draws its own: "
    "call .eval() on both, or let both seed a generator alike",
)

_UNWRITTEN: Final = (
    "perhaps",
    "it reads memory that nobody wrote, or the result of a message that has not been waited for, which are filled with NaN here; or a "
    "formula has no value there, such as 0/0",
)

_INFINITE_INPUT: Final = (
    "perhaps",
    "an infinite input meets a zero, such as that of a mask, or another infinite one; where they are not meant, `prepare` makes legal inputs",
)

_ANOTHER_FORMULA: Final = (
    "perhaps",
    "a cast to a narrower element type, or a formula that rounds more than the sequential one: how far it may be off is declared as "
    "`rounding`, relative to the largest value of the tensor, or to `reach` if that is larger; where neither is meant, it is a fault",
)

AFTER_STEPS: Final = "parameters after the steps"
"""The result of an optimiser's steps. A difference is small beside a parameter also where it is as large as a step."""

_LARGEST_TERMS: Final = 1e6
"""Terms of what a layer computes of small integers are seldom larger: a larger difference is not the rounding of terms that cancel."""

_DECLARED_ROUNDING: Final = (
    "perhaps",
    "terms that cancel, or a function that saturates in a narrow element type: what is left is smaller than what rounding did to them. The "
    "declared `rounding` is relative to the largest value of the tensor, or to `reach` if that is larger: declare how large the terms are",
)


@dataclass(frozen=True)
class Comparison:
    """Results of one kind, such as "parameter gradient": this rank's part, and from rank 0 the parts expected of all.

    Of gradients, `without` names the tensors that this rank has none of, because it was not required; of other results it is
    `None`.
    """

    what: str
    space: Space
    actual: Local
    tolerance: Tolerance
    without: frozenset[str] | None = None
    expected: tuple[Local, ...] | None = None
    # What rounding may change in the twin's results, and which of them this one is compared with; from rank 0 if at all.
    allowances: Allowances | None = None
    result: str = ""
    not_finite: WhereNotFinite = WhereNotFinite.WRONG
    # The tolerance is for sums that the check itself makes, and none that the layer declares.
    is_own: bool = False

    def tolerances(self, position: int) -> Iterator[Tolerance]:
        """The tolerance of a tensor; where it is to be measured, one that it exceeds comes first, which mostly does."""
        if self.allowances is None:
            yield self.tolerance
        else:
            yield replace(self.tolerance, absolute=self.allowances.least[self.result][position])
            yield replace(self.tolerance, absolute=self.allowances.most[self.result][position])


class Change(NamedTuple):
    """A tensor that the layer has written into and should not have."""

    what: str  # such as "an input"
    tensor: str
    allowed_by: str = ""  # declaration that would allow it


@dataclass(frozen=True)
class PassObservation:
    """All results of one pass on one rank."""

    comparisons: tuple[Comparison, ...]
    changes: tuple[Change, ...] = ()
    accumulated: bool = False
    before: str = ""
    other_batch: str = ""
    refused_order: str = ""  # of memory, by the sequential module: inputs are row-major
    left_out: tuple[str, ...] = ()  # names of outputs
    small_cotangents: bool = False
    # Parameters that this rank has elements of, and that require no gradient, or one, as they are made; from rank 0 those of the twin.
    frozen: frozenset[str] = frozenset()
    trained: frozenset[str] = frozenset()
    frozen_in_twin: frozenset[str] | None = None


class TwinCheck(Check[tuple[PassObservation, ...]]):
    """A check of layers that compares passes with those of the twin."""

    def applies_to(self, subject: CheckedSubject) -> bool:
        return subject.is_layer

    def surroundings(self) -> AbstractContextManager[None]:
        return controlled()

    def judge(self, spaces: Spaces, observations: Sequence[tuple[PassObservation, ...]]) -> Verdict:
        return first_wrong(observations)


def twin_passes(context: CheckContext, *, backward: bool) -> tuple[PassObservation, ...]:
    """Run the layer, and on rank 0 its twin, through passes with different data. Collective.

    The second pass shows what a layer keeps from the first and should not. Inputs and cotangents lie in memory as the case's
    setting says, but for inputs in an order that the sequential module does not take.
    """
    import torch

    layer = context.layer
    plan = PassPlan.of(context.setting.seed, backward=backward).for_layer(layer)
    # Asked on all ranks at once: the sequential module is called for it.
    order, refused_order = unmixed(context.setting.primal_order), ""
    if not layer.takes_order(order):
        context.setting, refused_order = replace(context.setting, primal_order=ORDERS[0]), order
    differentiated = _alike_where_tied(layer, plan.differentiated(context))
    with torch.set_grad_enabled(backward or layer.needs_graph):
        twin, unfit = None, None
        if not context.rank and is_measured(context):
            try:
                twin = _twin_results(context, plan)
            except Inapplicable as error:
                unfit = error
        # Whether the values are for the layer is known by now, and said in the end: the other ranks wait for messages.
        with suppress(*([] if unfit is None else [Exception])):
            passes = run_passes(LocalModule(context), plan, context, differentiated)
        if unfit is not None:
            raise unfit
        observed = tuple(_observed(context, each, differentiated, plan, refused_order) for each in passes)
        if context.rank:
            return observed
        expected, allowances, frozen_in_twin = twin or _twin_results(context, plan)
    size = context.comm.Get_size()
    return tuple(
        replace(
            each,
            comparisons=with_expected(each.comparisons, expected, allowances, size, f"pass {number}, "),
            frozen_in_twin=frozen_in_twin if backward else None,
        )
        for number, each in enumerate(observed)
    )


def _observed(
    context: CheckContext, each: Pass, differentiated: frozenset[str], plan: PassPlan, refused_order: str
) -> PassObservation:
    layer = context.layer
    frozen, trained_here = _frozen_and_trained(layer, context.rank)
    return PassObservation(
        tuple(
            _comparison(context, kind, local, differentiated, plan) for kind, local in each.results.items()
        ),
        _changes(layer, each),
        plan.accumulated,
        plan.before,
        plan.other_batch,
        refused_order,
        _left_out(layer, plan),
        plan.backward and has_small_cotangents(context.setting.seed, layer),
        frozen,
        trained_here,
    )


def _alike_where_tied(layer: Layer, differentiated: frozenset[str]) -> frozenset[str]:
    """Of tied parameters, name all or none, as the first of them is named: they are one tensor, which requires a gradient or does not."""
    names = [tensor.name for tensor in layer.parameters.tensors]
    firsts = first_positions([layer.module.get_parameter(name) for name in names])
    wanted = {name for name, first in zip(names, firsts, strict=True) if names[first] in differentiated}
    return differentiated.difference(names) | wanted


def _left_out(layer: Layer, plan: PassPlan) -> tuple[str, ...]:
    outputs = zip(layer.codomain.tensors, plan.in_loss(layer), strict=True)
    return tuple(tensor.name for tensor, is_in_loss in outputs if not is_in_loss)


def _frozen_and_trained(layer: Layer, rank: int) -> tuple[frozenset[str], frozenset[str]]:
    """Parameters that a rank has elements of, if it is known: those that require no gradient as the layer is made, and those that do."""
    if layer.trained is None:
        return frozenset(), frozenset()
    held = frozenset(tensor.name for tensor in layer.parameters.tensors if tensor.layout.local_size(rank))
    return held - layer.trained, held & layer.trained


def is_measured(context: CheckContext) -> bool:
    """Return True if the twin is to show what rounding does: the layer does not say, or not for such values."""
    return context.layer.rounding is None or context.values != SMALL_INTEGERS


def results_of_twin(
    context: CheckContext, run: Callable[[], Mapping[str, Local]]
) -> tuple[Mapping[str, Local], Allowances | None]:
    """Run the twin; return its results by name, and what rounding may change if that is to be measured. On rank 0 alone.

    Raises :class:`Inapplicable` where its results are not finite, and where other values than small integers are too much for it.
    """
    run = partial(_run_alone, context, run)
    unfit = Inapplicable("the sequential layer gives NaN or infinity")
    allowances = None
    computes_in = context.layer.computes_in
    if (context.layer.rounding or computes_in) and context.values == SUBNORMAL:
        raise Inapplicable("a declared rounding is relative, and that of subnormal values is not")
    if context.values == SMALL_INTEGERS:
        with _named(context):
            results, allowances = (
                measured(run, computes_in=computes_in) if is_measured(context) else (run(), None)
            )
    else:
        unfit = Inapplicable(f"the sequential layer does not take {context.values} values")
        try:
            is_subnormal = context.values == SUBNORMAL
            results, allowances = measured(run, is_subnormal=is_subnormal, computes_in=computes_in)
        except (Inapplicable, SubjectError):  # whatever the values are
            raise
        except Exception as error:
            raise unfit from error
    if context.values != INFINITE and not all(
        np.isfinite(array).all() for local in results.values() for array in local if array.dtype.kind in "fc"
    ):
        raise unfit
    if context.needs_run and allowances is not None:
        if context.measures_rounding:
            allowances = allowances.measured_now()
        else:
            allowances = allowances.without_measurement()
    return results, allowances


def _run_alone(context: CheckContext, run: Callable[[], Mapping[str, Local]]) -> Mapping[str, Local]:
    with context.alone():
        return run()


@contextmanager
def _named(context: CheckContext) -> Iterator[None]:
    """Note of an exception that it was the twin that raised it, and of which type its parameters are if not of the declared one."""
    try:
        yield
    except (SubjectError, Inapplicable):
        raise
    except Exception as error:
        assert context.reference is not None
        error.add_note(f"raised by the sequential twin, not by the layer{_other_types(context)}")
        raise


def _other_types(context: CheckContext) -> str:
    assert context.reference is not None
    own = dict(context.reference().named_parameters())
    for tensor in context.layer.parameters.tensors:
        name = tensor.name
        if name in own and (dtype := arrays.dtype_name(own[name])) != tensor.dtype:
            return f"; its parameter {name} is {dtype}, and parameter_space declares {tensor.dtype}"
    return ""


def _twin_results(
    context: CheckContext, plan: PassPlan
) -> tuple[Mapping[str, Local], Allowances | None, frozenset[str] | None]:
    """Results by pass and name, what rounding may change, and the parameters that require no gradient as the twin is made.

    These are None where that is not known of the layer's.
    """
    frozen: frozenset[str] | None = None
    layer, setting = context.layer, context.setting
    everything = frozenset(tensor.name for tensor in (*layer.domain.tensors, *layer.parameters.tensors))

    def run() -> Mapping[str, Local]:
        # In the memory orders of the ranks, for torch draws masks of dropout in the order of memory. Not where the layer has another
        # formula, which rounds otherwise than torch does in such memory. What a layer copes with, its twin need not.
        is_plain = setting.primal_order == setting.dual_order == ORDERS[0]
        if is_plain or not layer.is_made_of_twin:
            return run_in(takes_orders=False)
        try:
            return run_in(takes_orders=True)
        except Exception:
            return run_in(takes_orders=False)

    def run_in(*, takes_orders: bool) -> Mapping[str, Local]:
        nonlocal frozen
        twin = SequentialTwin(context)
        twin.takes_orders = takes_orders
        if layer.trained is not None:
            names = frozenset(tensor.name for tensor in twin.layer.parameters.tensors)
            # What the case freezes, it freezes in the module of which the layer is made.
            frozen = names - (trained(twin.module) - (twin.layer.frozen or frozenset()))
        passes = run_passes(twin, plan, context, everything)
        return {
            f"pass {number}, {name}": local
            for number, each in enumerate(passes)
            for name, local in each.by_name().items()
        }

    results, allowances = results_of_twin(context, run)
    return results, allowances, frozen


def _comparison(
    context: CheckContext, kind: ResultKind, local: Local, differentiated: frozenset[str], plan: PassPlan
) -> Comparison:
    layer = context.layer
    space = kind.space(layer)
    not_finite = _where_not_finite(context, kind)
    if not kind.is_gradient:
        return Comparison(kind.name, space, local, tolerance_of(layer), not_finite=not_finite)
    tolerance = tolerance_of(layer)
    if plan.accumulated:
        # The sum with an earlier gradient is rounded relative to the sum, which is not taken off again. Where the mean over ranks is
        # taken, what each of them adds to it is as many times as large (:meth:`ModuleUnderTest.of_means`).
        precision = min((tensor.element.precision for tensor in space.tensors), default=0)
        measured = layer.averaged * 2.0 ** (2 - precision)
        relative = max(tolerance.relative, measured if is_measured(context) else 0.0)
        tolerance = Tolerance(relative, max(layer.reach, 2 * LARGEST))
    without = frozenset(
        tensor.name
        for tensor in space.tensors
        if tensor.name not in differentiated or tensor.element.is_integer
    )
    is_own = plan.accumulated and not layer.rounding
    return Comparison(kind.name, space, local, tolerance, without, not_finite=not_finite, is_own=is_own)


def _where_not_finite(context: CheckContext, kind: ResultKind) -> WhereNotFinite:
    if context.values != INFINITE:
        return WhereNotFinite.WRONG
    if kind.is_gradient:
        # Products of zero and infinity come and go with the formula of a derivative.
        return WhereNotFinite.UNJUDGED
    # And with the kernel of a device: torch's RMSNorm of (∞, 1) is (NaN, NaN) there, and (NaN, 0) on the host.
    return WhereNotFinite.THERE_UNJUDGED if is_on_device(context.setting.library) else WhereNotFinite.ALIKE


def tolerance_of(layer: Layer) -> Tolerance:
    """The tolerance that a layer declares."""
    return Tolerance(layer.rounding or 0.0, layer.reach)


def _changes(layer: Layer, each: Pass) -> tuple[Change, ...]:
    return (
        *(
            Change("an input", tensor.name, "declare overwrites_inputs = True")
            for tensor, placed in zip(layer.domain.tensors, each.inputs, strict=True)
            if not placed.unchanged
        ),
        *(
            Change("a cotangent", tensor.name)
            for tensor, placed in zip(layer.codomain.tensors, each.cotangents, strict=True)
            if not placed.unchanged
        ),
        *(
            Change("what it has returned before", tensor.name)
            for position, tensor in enumerate(layer.codomain.tensors)
            if position in each.overwritten
        ),
    )


def with_expected(
    comparisons: Sequence[Comparison],
    whole: Mapping[str, Local],
    allowances: Allowances | None,
    size: int,
    prefix: str = "",
) -> tuple[Comparison, ...]:
    """Return `comparisons` with what each of `size` ranks should hold of the twin's `whole` results, and what rounding may change.

    The results have the names of the comparisons after `prefix`.
    """
    return tuple(
        replace(
            each,
            expected=held_by_all(each.space, whole[prefix + each.what], size),
            allowances=allowances,
            result=prefix + each.what,
        )
        for each in comparisons
    )


def first_wrong(observations: Sequence[tuple[PassObservation, ...]]) -> Verdict:
    """Return the verdict on all passes: what the layer has written into, or where it first differs from its twin."""
    for rank, passes in enumerate(observations):
        for what, tensor, allowed_by in (change for seen in passes for change in seen.changes):
            lines = [("tensor", f"{tensor} (rank {rank})")]
            if allowed_by:
                lines.append(("to allow it", allowed_by))
            return incoherent(f"the layer writes into {what}", *lines)
    for number, ranks in enumerate(zip(*observations, strict=True)):
        if found := _first_difference(ranks):
            wrong, difference = found
            what = wrong.what
            verb = "are not the sequential ones" if what.endswith("s") else "is not the sequential one"
            lines = [
                (what, difference.where),
                ("distributed", difference.actual),
                ("sequential", difference.expected),
                *_reasons(wrong, difference),
                *_circumstances(ranks[0], wrong, is_repeated=bool(number)),
            ]
            evidence = difference.evidence("distributed", "sequential", _own_hint(ranks, *found))
            return incoherent(f"the layer's {what} {verb}", *lines, kind=what, evidence=evidence)
    verdict = _frozen_alike(observations)
    if not verdict.is_coherent or not (
        taken := max(map(_taken_for_rounding, zip(*observations, strict=True)))
    ):
        return verdict
    return coherent({Figure.ROUNDING: taken})


def _reasons(wrong: Comparison, difference: Difference) -> Iterator[tuple[str, str]]:
    """A line on what the difference may be due to, if its values suggest any."""
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
    """Lines on the pass in which the difference was seen."""
    is_gradient = wrong.without is not None
    if is_repeated:
        yield SECOND_PASS
    if is_gradient and first.accumulated:
        yield "accumulated", ".grad held other gradients before, which are taken off here"
    if is_gradient and (without := _not_required(first)):
        yield "without", f"gradients of {', '.join(without)}, which require none here"
    if first.before:
        others = f"a {first.other_batch} batch" if first.other_batch else "other inputs"
        how = "without gradients" if first.before == EVALUATION else "and backward"
        yield "before", f"the same instance has gone forward {how}, with {others}"
    if first.refused_order:
        yield "inputs", f"row-major, for the sequential module takes none in {first.refused_order} memory"
    if first.small_cotangents and wrong.what not in _VALUES:
        yield "cotangents", "far below 1, so that gradients are small"
    if is_gradient and first.left_out:
        yield "loss", f"of the other outputs: it does not depend on {', '.join(first.left_out)}"


_VALUES: Final = frozenset({OUTPUTS.name, BUFFERS.name, PARAMETERS.name})
"""Results that are no derivatives."""


def _taken_for_rounding(ranks: Sequence[PassObservation]) -> float:
    """The largest relative difference of a pass that the sequential layer's own rounding allows; 0 where it had not to be measured.

    Gradients are relative to the largest of all gradients: that of a tensor on which the loss does not depend is rounding alone.
    """
    largest, steepest = 0.0, _largest_gradient(ranks[0])
    for each in _compared(ranks):
        first = each.comparison
        is_measured = first.allowances is not None and first.allowances.is_measured
        if is_measured and not each.tensor.element.is_integer:
            reach = max(first.tolerance.reach, 0.0 if first.what in _VALUES else steepest)
            largest = max(largest, relative_difference(each.tensor, each.got, each.want, reach))
    return largest


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
    """Tensors that could require a gradient, and require none in this pass on this rank."""
    return [
        tensor.name
        for each in seen.comparisons
        if each.without is not None
        for tensor in each.space.tensors
        if tensor.name in each.without and not tensor.element.is_integer
    ]


def _frozen_alike(observations: Sequence[tuple[PassObservation, ...]]) -> Verdict:
    """Parameters that one side trains and the other does not: gradients are compared of all, whoever asks for them."""
    in_twin = observations[0][0].frozen_in_twin
    if in_twin is None:
        return coherent()
    for rank, passes in enumerate(observations):
        if only := sorted(passes[0].frozen - in_twin):
            return _not_trained(only[0], rank, "the layer's", "the sequential one's")
    if only := sorted(in_twin & frozenset().union(*(passes[0].trained for passes in observations))):
        return _not_trained(only[0], None, "the sequential layer's", "the distributed one's")
    return coherent()


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
    """A tensor of rank 0's `comparison`, at that position: what all ranks have got of it, and what each should have."""

    comparison: Comparison
    position: int
    got: Sequence[NumpyArray]
    want: Sequence[NumpyArray]

    @property
    def tensor(self) -> Tensor:
        return self.comparison.space.tensors[self.position]

    def difference(self) -> Difference | None:
        """The first place in which the ranks differ from what they should have, under each of the tolerances."""
        found, not_finite = None, self.comparison.not_finite
        for tolerance in self.comparison.tolerances(self.position):
            found = tensor_difference(self.tensor, self.got, self.want, tolerance, not_finite)
            if found is None:
                break
        return found


def _compared(ranks: Sequence[PassObservation]) -> Iterator[_Compared]:
    """The tensors of all results of a pass, one by one: the tolerance is relative to the largest value of each."""
    for of_ranks in zip(*(seen.comparisons for seen in ranks), strict=True):
        first, *_ = of_ranks
        assert first.expected is not None
        for position, tensor in enumerate(first.space.tensors):
            want = [local[position] for local in first.expected]
            got = _required(tensor, [each.actual[position] for each in of_ranks], want, of_ranks)
            yield _Compared(first, position, got, want)


def _required(
    tensor: Tensor, got: Sequence[NumpyArray], want: Sequence[NumpyArray], ranks: Sequence[Comparison]
) -> Sequence[NumpyArray]:
    """The parts of a tensor that all ranks have got, with those that they should have in place of gradients that were not required."""
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
    """The hint on outputs of which the values alone say nothing: beside the parameters that they were made with."""
    of_values = difference.hint
    if wrong.what != OUTPUTS.name or (of_values is not None and of_values.kind is not FaultKind.EXTRA):
        return None
    parameters = next(each for each in ranks[0].comparisons if each.what == PARAMETERS.name)
    assert parameters.expected is not None
    for each in _compared(ranks):
        if each.comparison is not wrong:
            continue
        scale = max((float(np.abs(array).max(initial=0.0)) for array in each.want), default=0.0)
        allowed = max(tolerance.allowed(scale) for tolerance in wrong.tolerances(each.position))
        made_with = parameters.space, parameters.expected
        if (hint := repeated_hint(each.tensor, each.got, each.want, made_with, allowed)) is not None:
            return hint
    return None
