"""Parameters after some steps of an optimiser, and the optimiser's state, beside those of the sequential layer.

A step goes forward on fresh inputs, backward from fresh cotangents, and lets the optimiser change the parameters. So what a step leaves
behind and the next one meets is compared too: parameters that a rank has changed alone, gradients that are kept, state that is cut
otherwise than its parameter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from adjointlab.checks.check import CheckedSubject
from adjointlab.checks.context import INFINITE, CheckContext
from adjointlab.checks.elements import Local, WhereNotFinite
from adjointlab.checks.layers.modules import (
    LocalModule,
    ModuleUnderTest,
    SequentialTwin,
    pass_keys,
    values,
)
from adjointlab.checks.layers.twin import (
    Comparison,
    PassObservation,
    TwinCheck,
    results_of_twin,
    tolerance_of,
    with_expected,
)
from adjointlab.core import arrays
from adjointlab.core.layer import Layer

if TYPE_CHECKING:
    import torch

__all__ = ["TRAINING", "TrainingCheck"]

_PARAMETERS = "parameters after the steps"


class TrainingCheck(TwinCheck):
    """k steps of an optimiser, for subjects that declare one."""

    name = "training"
    order = 95
    varies_values = True

    def applies_to(self, subject: CheckedSubject) -> bool:
        return subject.is_layer and subject.takes_steps

    def observe(self, context: CheckContext) -> tuple[PassObservation, ...]:
        layer = context.layer
        kinds = _state_kinds(layer)
        found = _trained(context, LocalModule(context), kinds)
        tolerance = tolerance_of(layer)
        not_finite = WhereNotFinite.UNJUDGED if context.values == INFINITE else WhereNotFinite.WRONG
        comparisons = tuple(
            Comparison(what, layer.parameters, local, tolerance, not_finite=not_finite)
            for what, local in found.items()
        )
        if not context.rank:
            expected, allowances = results_of_twin(
                context, lambda: _trained(context, SequentialTwin(context), kinds)
            )
            comparisons = with_expected(comparisons, expected, allowances, context.comm.Get_size())
        return (PassObservation(comparisons),)


def _trained(context: CheckContext, version: ModuleUnderTest, kinds: tuple[str, ...]) -> Mapping[str, Local]:
    layer = version.layer
    assert layer.optimizer is not None
    version.fill_parameters(pass_keys(context, 0)["parameters"])
    frozen = layer.frozen or frozenset()
    parameters = version.parameters()
    for tensor, parameter in zip(layer.parameters.tensors, parameters, strict=True):
        parameter.requires_grad_(tensor.name not in frozen)
    optimizer = layer.optimizer([parameter for parameter in parameters if parameter.requires_grad])
    for number in range(layer.steps):
        keys = pass_keys(context, number)
        inputs = version.inputs(keys["inputs"])
        outputs = version(inputs)
        values(outputs)  # as a loss would read them: a collective may still have to be waited for
        cotangents = version.tensors(layer.codomain.dual, keys["cotangents"])
        version.go_back(inputs, outputs, version.as_loss(cotangents))
        optimizer.step()
        optimizer.zero_grad()
    return {_PARAMETERS: values(parameters)} | {
        f"{kind} of the optimiser": tuple(_state(optimizer, p, kind) for p in parameters) for kind in kinds
    }


def _state(optimizer: Any, parameter: torch.Tensor, kind: str) -> Any:
    state = optimizer.state.get(parameter, {}).get(kind)
    if state is None:
        return np.zeros(tuple(arrays.local_part(parameter.detach()).shape))
    return values([state])[0]


def _state_kinds(layer: Layer) -> tuple[str, ...]:
    """The names under which the optimiser keeps tensors of the shape of a parameter; the same on all ranks."""
    import torch

    assert layer.optimizer is not None
    parameter = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
    optimizer = layer.optimizer([parameter])
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return tuple(
        sorted(
            name
            for name, value in optimizer.state[parameter].items()
            if isinstance(value, torch.Tensor) and value.shape == parameter.shape
        )
    )


TRAINING = TrainingCheck()
