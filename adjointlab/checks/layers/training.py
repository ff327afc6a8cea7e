"""Parameters and buffers after some steps of an optimiser, and the optimiser's state, compared with those of the sequential layer.

A step runs forward on new inputs, backward from new cotangents, and lets the optimiser change the parameters. So it also shows faults
that one step leaves to the next: parameters and buffers that only one rank has changed, gradients that are not cleared, state that is
cut differently from its parameter. In half of the cases a step accumulates the gradients of two microbatches, if they may accumulate;
in half of them learning rates are halved after each step, as a scheduler does, which an optimiser of shards has to pass on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from adjointlab.checks.check import CheckedSubject, Spaces
from adjointlab.checks.context import INFINITE, CheckContext
from adjointlab.checks.elements import Local, WhereNotFinite, largest_magnitude
from adjointlab.checks.layers.compared_passes import AFTER_STEPS, Comparison, PassObservation
from adjointlab.checks.layers.drawn_values import described_cotangents, pass_keys
from adjointlab.checks.layers.modules import LocalModule, ModuleUnderTest, SequentialTwin, values
from adjointlab.checks.layers.twin import TwinCheck, has_nan, results_of_twin, tolerance_of, with_expected
from adjointlab.checks.seed_digits import ACCUMULATED, APART
from adjointlab.checks.verdict import Inapplicable, Verdict
from adjointlab.checks.whole_tensors import held
from adjointlab.core import arrays
from adjointlab.core.layer import Layer, element_type_noted
from adjointlab.core.space import Tensor
from adjointlab.core.vectors import SMALL_INTEGERS, THIRDS
from adjointlab.notes import noted
from adjointlab.typing import NumpyArray

if TYPE_CHECKING:
    import torch

__all__ = ["TRAINING", "TrainingCheck"]


_BUFFERS: Final = "buffers after the steps"

_IN_SECOND_MICROBATCH: Final = (
    "raised in the second microbatch of a step, which adds up the gradients of two, as in half of all cases: if the code "
    "supports only one backward pass in a step, a parallel module says accumulates=False"
)


class _Course(NamedTuple):
    """Plan of a case's steps: the number of microbatches of each, and whether learning rates are halved after it."""

    microbatches: int
    halves_rates: bool

    @classmethod
    def of(cls, seed: int, layer: Layer) -> _Course:
        adds_up = layer.accumulates or layer.joins_passes
        return cls(2 if adds_up and ACCUMULATED.of(seed) else 1, layer.steps > 1 and bool(APART.of(seed)))

    def __str__(self) -> str:
        of_two = "of two microbatches, whose gradients are added up (accumulates=False forbids it)"
        parts = [
            of_two if self.microbatches > 1 else "",
            "the learning rates are halved after each" if self.halves_rates else "",
        ]
        return "; ".join(filter(None, parts))


class TrainingCheck(TwinCheck):
    """k steps of an optimiser, for subjects that declare one."""

    name = "training"
    order = 95
    varies_values = True

    def applies_to(self, subject: CheckedSubject) -> bool:
        return subject.is_layer and subject.takes_steps

    def observe(self, context: CheckContext) -> tuple[PassObservation, ...]:
        layer = context.layer
        if layer.rounding and context.values not in (SMALL_INTEGERS, THIRDS):
            raise Inapplicable("steps enlarge a declared rounding, without bound unless values are moderate")
        course = _Course.of(context.setting.seed, layer)
        found, stateless, has_rates = _trained(context, LocalModule(context), course)
        # A wrapper of an optimiser need not expose its learning rates.
        course = course._replace(halves_rates=course.halves_rates and has_rates)
        tolerance = tolerance_of(layer)
        not_finite = WhereNotFinite.UNJUDGED if context.values == INFINITE else WhereNotFinite.WRONG
        comparisons = tuple(
            # One of the ranks that hold a parameter may keep its state for all, as in ZeRO.
            Comparison(
                what,
                layer.buffers if what == _BUFFERS else layer.parameters,
                local,
                tolerance,
                stateless.get(what),
                not_finite=not_finite,
            )
            for what, local in found.items()
        )
        if not context.rank:
            expected, allowances = results_of_twin(
                context, lambda: _trained(context, SequentialTwin(context), course).found
            )
            own = {each.what: each for each in comparisons}
            comparisons = with_expected(
                [own.get(what) or _nothing_of(what, comparisons[0]) for what in expected],
                expected,
                allowances,
                context.comm.Get_size(),
            )
        cotangents = described_cotangents(context.setting.seed, layer)
        return (PassObservation(comparisons, cotangents=cotangents, steps=str(course)),)

    def judge(self, spaces: Spaces, observations: Sequence[tuple[PassObservation, ...]]) -> Verdict:
        first, *others = (seen for (seen,) in observations)
        alike = [(first,)]
        for seen in others:
            own = {each.what: each for each in seen.comparisons}
            parts = [
                own.get(each.what) or _nothing_of(each.what, own[AFTER_STEPS]) for each in first.comparisons
            ]
            alike.append((replace(seen, comparisons=tuple(parts)),))
        return super().judge(spaces, alike)


def _nothing_of(kind: str, parameters: Comparison) -> Comparison:
    """The part of a rank whose optimiser has no state of that kind: nothing is compared there."""
    names = frozenset(tensor.name for tensor in parameters.space.tensors)
    return replace(parameters, what=kind, without=names)


class _Trained(NamedTuple):
    """Parameters, buffers and state after the steps, by name.

    For each kind of state also the parameters for which this rank's optimiser has none; and whether it has learning rates.
    """

    found: Mapping[str, Local]
    stateless: Mapping[str, frozenset[str]]
    has_rates: bool


def _trained(context: CheckContext, version: ModuleUnderTest, course: _Course) -> _Trained:
    """Take the steps. Collective for a layer."""
    layer = version.layer
    assert layer.optimizer is not None
    if layer.initial is None:
        version.fill_parameters(pass_keys(context, 0)["parameters"])
    else:  # what was derived from them when the module was made, such as master weights, stays valid
        version.begin_with(layer.initial)
    version.require_gradients(version.trainable)
    parameters = version.parameters()
    before = values(parameters)
    with element_type_noted():
        optimizer = layer.optimizer([parameter for parameter in parameters if parameter.requires_grad])
    for number in range(layer.steps):
        outputs = _step(context, version, optimizer, number, course)
        if isinstance(version, SequentialTwin) and context.values == INFINITE and has_nan(outputs):
            raise Inapplicable("the sequential layer gives NaN, of which gradients depend on the formula")
    if layer.rounding and isinstance(version, SequentialTwin):
        _require_visible_steps(layer, before, values(parameters))
    found = {AFTER_STEPS: version.in_space(values(parameters)), _BUFFERS: values(version.buffers())}
    stateless: dict[str, frozenset[str]] = {}
    for kind in _state_kinds(optimizer, parameters):
        what = f"{kind} of the optimiser"
        found[what], stateless[what] = _state(version, optimizer, parameters, kind)
    return _Trained(found, stateless, bool(_groups_with_rates(optimizer)))


def _step(
    context: CheckContext,
    version: ModuleUnderTest,
    optimizer: torch.optim.Optimizer,
    number: int,
    course: _Course,
) -> list[Local]:
    """Run forward and backward with each microbatch, and let the optimiser step; return the outputs. Collective for a layer."""
    read = []
    for microbatch in range(course.microbatches):
        with noted(_IN_SECOND_MICROBATCH if microbatch else ""):
            keys = pass_keys(context, number + microbatch * version.layer.steps)
            inputs = version.inputs(keys["inputs"])
            outputs = version(inputs)
            # Read, as a loss does: a collective may still be pending.
            read.append(values(outputs))
            version.go_back(
                inputs,
                outputs,
                version.as_loss(version.cotangents(keys["cotangents"])),
                goes_on=microbatch > 0,
                is_continued=microbatch + 1 < course.microbatches,
            )
    with element_type_noted():
        optimizer.step()
    optimizer.zero_grad()
    if course.halves_rates:
        for group in _groups_with_rates(optimizer):
            group["lr"] /= 2
    return read


def _groups_with_rates(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """The optimiser's groups of parameters that have a learning rate; a wrapper of an optimiser may expose none."""
    groups: Sequence[dict[str, Any]] = getattr(optimizer, "param_groups", ())
    return [group for group in groups if isinstance(group.get("lr"), float)]


def _state(
    version: ModuleUnderTest, optimizer: torch.optim.Optimizer, parameters: Sequence[torch.Tensor], kind: str
) -> tuple[Local, frozenset[str]]:
    """The state of that kind, zero for parameters without any; and the names of the latter."""
    tensors = version.layer.parameters.tensors
    states = [_comparable_state(optimizer, parameter).get(kind) for parameter in parameters]
    of_parameters = [
        np.zeros(tuple(arrays.local_part(parameter.detach()).shape)) if state is None else values([state])[0]
        for parameter, state in zip(parameters, states, strict=True)
    ]
    in_space = zip(version.in_space(of_parameters), tensors, strict=True)
    return (
        tuple(_own_part(array, tensor, version) for array, tensor in in_space),
        frozenset(tensor.name for tensor, state in zip(tensors, states, strict=True) if state is None),
    )


def _kept(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> Mapping[str, Any]:
    """The state of a parameter. A wrapper of an optimiser, as for master weights, may have no `state` at all."""
    state: Mapping[torch.Tensor, Mapping[str, Any]] = getattr(optimizer, "state", {})
    return state.get(parameter, {})


def _require_visible_steps(layer: Layer, before: Local, after: Local) -> None:
    """Raise :class:`Inapplicable` if the declared rounding would hide an optimiser that makes no step at all."""
    tolerance = tolerance_of(layer)
    if all(
        largest_magnitude(new - old)
        <= tolerance.relative * max(tolerance.reach, largest_magnitude(old), largest_magnitude(new))
        for old, new in zip(before, after, strict=True)
    ):
        raise Inapplicable(
            "the steps change no parameter by more than the declared rounding: declare more `steps`, or a larger learning rate"
        )


def _own_part(array: NumpyArray, tensor: Tensor, version: ModuleUnderTest) -> NumpyArray:
    """The state of this rank's part of a parameter; some optimisers keep the whole state on every rank, such as averages of gathered gradients."""
    if isinstance(version, LocalModule) and array.shape == tensor.layout.shape:
        return held(tensor, array, version.rank)
    return array


def _state_kinds(optimizer: torch.optim.Optimizer, parameters: Sequence[torch.Tensor]) -> tuple[str, ...]:
    """The names of comparable state; a rank may keep only state of other ranks' parameters."""
    return tuple(sorted({name for each in parameters for name in _comparable_state(optimizer, each)}))


def _comparable_state(
    optimizer: torch.optim.Optimizer, parameter: torch.Tensor
) -> Mapping[str, torch.Tensor]:
    """The state of a parameter with its shape, or that of this rank's part: not a flat shard of it, nor statistics of its rows."""
    import torch

    shapes = (parameter.shape, arrays.local_part(parameter.detach()).shape)
    return {
        name: value
        for name, value in _kept(optimizer, parameter).items()
        # A count of steps has the shape of a parameter of order 0.
        if isinstance(value, torch.Tensor) and name != "step" and value.shape in shapes
    }


TRAINING = TrainingCheck()
