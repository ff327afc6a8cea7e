"""Passes of a layer and of its sequential twin on the same values: each rank's observations, and the twin's results for all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from adjointlab.checks.check import Check, CheckedSubject, Spaces
from adjointlab.checks.context import INFINITE, SUBNORMAL, CheckContext
from adjointlab.checks.elements import Local, Tolerance, WhereNotFinite
from adjointlab.checks.fresh_memory import controlled
from adjointlab.checks.layers.compared_passes import Change, Comparison, PassObservation, first_wrong
from adjointlab.checks.layers.drawn_values import LARGEST, described_cotangents
from adjointlab.checks.layers.modules import LocalModule, SequentialTwin, first_positions
from adjointlab.checks.layers.passes import (
    INPUT_GRADIENT,
    OUTPUTS,
    PARAMETER_GRADIENT,
    Pass,
    PassPlan,
    ResultKind,
    run_passes,
)
from adjointlab.checks.layers.sensitivity import Allowances, measured
from adjointlab.checks.memory_orders import ORDERS, unmixed
from adjointlab.checks.verdict import Inapplicable, Verdict
from adjointlab.checks.whole_tensors import held_by_all
from adjointlab.core import arrays
from adjointlab.core.declaration import SubjectError
from adjointlab.core.layer import Layer, trained
from adjointlab.core.vectors import SMALL_INTEGERS
from adjointlab.devices.memories import is_on_device

__all__ = [
    "TwinCheck",
    "has_nan",
    "is_measured",
    "results_of_twin",
    "tolerance_of",
    "twin_passes",
    "with_expected",
]


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

    The second pass shows state that a layer wrongly keeps from the first. Inputs and cotangents have the memory orders of the
    case's setting, except for inputs in an order that the sequential module does not take.
    """
    import torch

    layer = context.layer
    plan = PassPlan.of(context.setting.seed, backward=backward).for_layer(layer)
    # On all ranks alike, because it calls the sequential module.
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
        # If the twin does not take the values, this is raised only after the layer has run: the other ranks wait for its messages.
        with suppress(*([] if unfit is None else [Exception])):
            passes = run_passes(LocalModule(context), plan, context, differentiated)
        if unfit is not None:
            raise unfit
        observed = tuple(_observed(context, each, differentiated, plan, refused_order) for each in passes)
        if context.rank:
            return observed
        expected, allowances, frozen_in_twin = twin or _twin_results(context, plan)
    if context.values == INFINITE and has_nan(_of_kind(expected, OUTPUTS).values()):
        expected = _with_any_gradients(layer, expected)
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
        plan,
        refused_order,
        _left_out(layer, plan),
        described_cotangents(context.setting.seed, layer) if plan.backward else "",
        frozen,
        trained_here,
    )


def _alike_where_tied(layer: Layer, differentiated: frozenset[str]) -> frozenset[str]:
    """Name either all of a group of tied parameters or none, like the first of them: they are one tensor with one `requires_grad`."""
    names = [tensor.name for tensor in layer.parameters.tensors]
    firsts = first_positions([layer.module.get_parameter(name) for name in names])
    wanted = {name for name, first in zip(names, firsts, strict=True) if names[first] in differentiated}
    return differentiated.difference(names) | wanted


def _left_out(layer: Layer, plan: PassPlan) -> tuple[str, ...]:
    outputs = zip(layer.codomain.tensors, plan.in_loss(layer), strict=True)
    return tuple(tensor.name for tensor, is_in_loss in outputs if not is_in_loss)


def _frozen_and_trained(layer: Layer, rank: int) -> tuple[frozenset[str], frozenset[str]]:
    """Parameters with elements on this rank that, as the layer was made, do not and do require a gradient; empty if that is unknown."""
    if layer.trained is None:
        return frozenset(), frozenset()
    held = frozenset(tensor.name for tensor in layer.parameters.tensors if tensor.layout.local_size(rank))
    return held - layer.trained, held & layer.trained


def is_measured(context: CheckContext) -> bool:
    """Return True if rounding has to be measured on the twin: the layer does not declare it, or not for such values."""
    return context.layer.rounding is None or context.values != SMALL_INTEGERS


def results_of_twin(
    context: CheckContext, run: Callable[[], Mapping[str, Local]]
) -> tuple[Mapping[str, Local], Allowances | None]:
    """Run the twin; return its results by name, and their rounding if it has to be measured. On rank 0 only.

    Raises :class:`Inapplicable` if its results are not finite, and if it does not take values other than small integers.
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
        except (Inapplicable, SubjectError):  # independent of the values
            raise
        except Exception as error:
            raise unfit from error
    if context.values != INFINITE and not all(
        np.isfinite(array).all() for local in results.values() for array in local if array.dtype.kind in "fc"
    ):
        raise unfit
    if context.needs_run and allowances is not None:
        allowances = allowances.measured_now(context.measurement)
    return results, allowances


def _run_alone(context: CheckContext, run: Callable[[], Mapping[str, Local]]) -> Mapping[str, Local]:
    with context.alone():
        return run()


@contextmanager
def _named(context: CheckContext) -> Iterator[None]:
    """Add a note to an exception that the twin raised it, and the type of its parameters if that is not the declared one."""
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
    """Results by pass and name, their rounding, and the parameters that do not require a gradient as the twin is made.

    The last is None if that is not known for the layer.
    """
    frozen: frozenset[str] | None = None
    layer, setting = context.layer, context.setting
    everything = frozenset(tensor.name for tensor in (*layer.domain.tensors, *layer.parameters.tensors))

    def run() -> Mapping[str, Local]:
        # In the memory orders of the ranks, because torch draws dropout masks in the order of memory. But not if the layer has another
        # formula, which rounds differently from torch in such memory. The twin need not support an order that the layer supports.
        if set(setting.orders) == {ORDERS[0]} or not layer.is_made_of_twin:
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
            # The case freezes parameters only in the module from which the layer is made.
            frozen = names - (trained(twin.module) - (twin.layer.frozen or frozenset()))
        passes = run_passes(twin, plan, context, everything)
        return {
            f"pass {number}, {name}": local
            for number, each in enumerate(passes)
            for name, local in each.by_name().items()
        }

    results, allowances = results_of_twin(context, run)
    return results, allowances, frozen


def has_nan(results: Iterable[Local]) -> bool:
    """Return True if one of the numbers is NaN."""
    return any(np.isnan(array).any() for local in results for array in local if array.dtype.kind in "fc")


def _of_kind(results: Mapping[str, Local], kind: ResultKind) -> Mapping[str, Local]:
    """The twin's results of one kind, from all passes."""
    return {name: local for name, local in results.items() if name.endswith(f", {kind.name}")}


def _with_any_gradients(layer: Layer, results: Mapping[str, Local]) -> Mapping[str, Local]:
    """The twin's results with gradients replaced by NaN, so that any are right (:func:`_where_not_finite`).

    Whether a gradient passes through an output that is NaN depends on the formula: it does in torch's rectifier, but not in one with y > 0.
    """
    return dict(results) | {
        name: tuple(
            array if tensor.element.is_integer else np.full_like(array, np.nan)
            for tensor, array in zip(kind.space(layer).tensors, local, strict=True)
        )
        for kind in (INPUT_GRADIENT, PARAMETER_GRADIENT)
        for name, local in _of_kind(results, kind).items()
    }


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
        # Adding to an earlier gradient rounds relative to the sum, and subtracting it does not undo that. If gradients are averaged over
        # ranks, each rank's gradient is larger by their number (:meth:`ModuleUnderTest.of_means`).
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
        # Products of zero and infinity depend on the formula of a derivative.
        return WhereNotFinite.UNJUDGED
    # And on the kernel of a device: torch's RMSNorm of (∞, 1) is (NaN, NaN) there, and (NaN, 0) on the host.
    return WhereNotFinite.THERE_UNJUDGED if is_on_device(context.setting.library) else WhereNotFinite.ALIKE


_A_COPY: Final = "return a module that hands over a copy, x.clone(), instead of the input"


def tolerance_of(layer: Layer) -> Tolerance:
    """The tolerance that a layer declares."""
    return Tolerance(layer.rounding or 0.0, layer.reach)


def _changes(layer: Layer, each: Pass) -> tuple[Change, ...]:
    # A module made from the sequential one declares nothing, and must leave inputs unchanged as that one does.
    allowed_by = _A_COPY if layer.is_made_of_twin else "declare overwrites_inputs = True"
    return (
        *(
            Change("an input", tensor.name, allowed_by, placed.is_restored)
            for tensor, placed in zip(layer.domain.tensors, each.inputs, strict=True)
            if not placed.unchanged
        ),
        *(
            Change("a cotangent", tensor.name, is_restored=placed.is_restored)
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
    """Return `comparisons` with the parts of the twin's `whole` results that each of `size` ranks should hold, and their rounding.

    The names of the results are those of the comparisons after `prefix`.
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
