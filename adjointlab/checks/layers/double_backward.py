"""Are a layer's second derivatives the sequential ones, and does their computation come back on every rank?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from adjointlab.checks.check import Check, CheckedSubject, Spaces
from adjointlab.checks.compare import Local, Tolerance
from adjointlab.checks.context import CheckContext
from adjointlab.checks.layers.passes import as_tuple, fill, gradients
from adjointlab.checks.layers.twin import (
    LARGEST,
    Compared,
    Seen,
    check_outputs,
    check_parameters,
    check_whole_outputs,
    cut_up,
    draws,
    first_wrong,
    local_inputs,
    local_tensors,
    make_twin,
    whole_inputs,
    whole_tensors,
)
from adjointlab.checks.verdict import Verdict
from adjointlab.core.values import Draw

__all__ = ["DoubleBackwardCheck"]


class DoubleBackwardCheck(Check[tuple[Seen, ...]]):
    """Products of the layer's second derivatives with random directions, by two backward passes.

    The first gives g = J*w, the gradients of <F(x, θ), w> by inputs and parameters, with a graph of their own
    (``create_graph=True``); the second the gradients of <g, v> by inputs and parameters again, and, in half of the cases, by
    w. That last is Jv: compared where the arithmetic is exact, for what is rounded by as many terms as there are inputs is
    no matter of the layer's own `rounding`. For layers that say that they are twice differentiable.
    """

    name = "double_backward"
    order = 110

    def applies_to(self, subject: CheckedSubject) -> bool:
        return subject.is_layer and subject.twice_differentiable

    def observe(self, context: CheckContext) -> tuple[Seen, ...]:
        layer, rank = context.layer, context.rank
        keys, directions = draws(context, 0), Draw(context.setting.seed, 7, "primal", LARGEST)
        by_cotangents = context.setting.seed % 2 == 1
        names = [tensor.name for tensor in layer.parameters.tensors]
        check_parameters(layer)
        values = local_tensors(layer.parameters, keys["parameters"], rank)
        fill(layer.module, dict(zip(names, values, strict=True)))
        found = _second_derivatives(
            context,
            layer.module,
            local_inputs(context, layer, keys["inputs"]),
            local_tensors(layer.codomain.dual, keys["cotangents"], rank),
            [
                *local_tensors(layer.domain, directions, rank),
                *local_tensors(layer.parameters, directions, rank),
            ],
            by_cotangents,
            lambda outputs: check_outputs(layer, outputs, rank),
        )
        spaces = (layer.domain.dual, layer.parameters.dual, layer.codomain)
        tolerance = Tolerance(layer.rounding, layer.reach)
        compared = tuple(
            Compared(what, space, found[what], tolerance)
            for what, space in zip(_WHAT, spaces, strict=True)
            if what != _WHAT[2] or not layer.rounding
        )
        if rank:
            return (Seen(compared),)
        twin = make_twin(context)
        fill(twin, dict(zip(names, whole_tensors(layer.parameters, keys["parameters"]), strict=True)))
        expected = _second_derivatives(
            context,
            twin,
            whole_inputs(layer, keys["inputs"]),
            whole_tensors(layer.codomain.dual, keys["cotangents"]),
            [*whole_tensors(layer.domain, directions), *whole_tensors(layer.parameters, directions)],
            by_cotangents,
            lambda outputs: check_whole_outputs(layer, outputs),
        )
        return (Seen(cut_up(compared, expected, context.comm.Get_size())),)

    def judge(self, spaces: Spaces, observations: Sequence[tuple[Seen, ...]]) -> Verdict:
        return first_wrong(observations)


_WHAT = (
    "second derivative by an input",
    "second derivative by a parameter",
    "derivative of gradients by a cotangent",
)


def _second_derivatives(
    context: CheckContext,
    module: Any,
    inputs: Sequence[Any],
    cotangents: Sequence[Any],
    directions: Sequence[Any],
    by_cotangents: bool,
    check: Any,
) -> dict[str, Local]:
    import torch

    layer = context.layer
    parameters = [module.get_parameter(tensor.name) for tensor in layer.parameters.tensors]
    for leaf in (*inputs, *parameters, *(cotangents if by_cotangents else ())):
        leaf.requires_grad_(leaf.is_floating_point()).grad = None
    outputs = as_tuple(module(*(x.clone() if layer.overwrites_inputs else x for x in inputs)))
    check(outputs)
    reached = [(y, w) for y, w in zip(outputs, cotangents, strict=True) if y.requires_grad]
    leaves = [leaf for leaf in (*inputs, *parameters) if leaf.requires_grad]
    along = [v for leaf, v in zip((*inputs, *parameters), directions, strict=True) if leaf.requires_grad]
    if reached and leaves:
        first: Any = torch.autograd.grad(
            [y for y, _ in reached], leaves, [w for _, w in reached], create_graph=True, allow_unused=True
        )
        second = [(g, v) for g, v in zip(first, along, strict=True) if g is not None and g.requires_grad]
        if second:
            torch.autograd.backward([g for g, _ in second], [v for _, v in second])
    found = gradients([*inputs, *parameters, *cotangents])
    ends = len(inputs), len(inputs) + len(parameters)
    return dict(zip(_WHAT, (found[: ends[0]], found[ends[0] : ends[1]], found[ends[1] :]), strict=True))


DOUBLE_BACKWARD = DoubleBackwardCheck()
