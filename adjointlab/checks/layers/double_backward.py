"""Second derivatives of a layer, by two backward passes, compared with the sequential ones.

With outputs F(x, θ) and random cotangents w, the first backward pass gives the gradients g = J*w of <F(x, θ), w> by inputs and
parameters, and records a graph for them (``create_graph=True``). The second gives the derivatives of <g, v> along random
directions v:

    by inputs and parameters:  H v, with H the matrix of second derivatives of <F(x, θ), w>
    by w:                      J v, because g is linear in w

For a parallel module g is by inputs only, as for a gradient penalty or for forces, and the second pass starts from the outputs
too.

Autograd derives every message of the second pass from the layer's backward. So a backward that is right but
cannot be differentiated on some rank makes the others hang here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from adjointlab.checks.check import CheckedSubject
from adjointlab.checks.context import CheckContext
from adjointlab.checks.elements import Local, Tolerance
from adjointlab.checks.layers.compared_passes import Comparison, PassObservation
from adjointlab.checks.layers.drawn_values import direction_keys, pass_keys
from adjointlab.checks.layers.modules import LocalModule, ModuleUnderTest, SequentialTwin
from adjointlab.checks.layers.passes import as_leaf, gradients
from adjointlab.checks.layers.twin import TwinCheck, results_of_twin, tolerance_of, with_expected
from adjointlab.checks.verdict import Inapplicable
from adjointlab.core import arrays

if TYPE_CHECKING:
    import torch

__all__ = ["DOUBLE_BACKWARD", "DoubleBackwardCheck"]

_BY_INPUT = "second derivative by an input"
_BY_PARAMETER = "second derivative by a parameter"
_BY_COTANGENT = "derivative of gradients by a cotangent"


class DoubleBackwardCheck(TwinCheck):
    """H v and J v, for layers that declare that they are twice differentiable.

    In half of the cases the cotangents require a gradient, so that J v is computed. Each of its entries adds up as many terms as there are
    inputs and parameters, so the layer's declared `rounding` is multiplied by that number.
    """

    name = "double_backward"
    order = 110
    share = 0.4

    def applies_to(self, subject: CheckedSubject) -> bool:
        return subject.is_layer and subject.twice_differentiable

    def observe(self, context: CheckContext) -> tuple[PassObservation, ...]:
        layer = context.layer
        found = _second_derivatives(context, LocalModule(context))
        tolerance = tolerance_of(layer)
        terms = sum(
            math.prod(tensor.layout.shape)
            for space in (layer.domain, layer.parameters)
            for tensor in space.tensors
        )
        # The directions are integers: if their multiples cancel, the result has the rounding of numbers of that size.
        of_sums = Tolerance(tolerance.relative * max(1, terms), max(1.0, tolerance.reach))
        comparisons: tuple[Comparison, ...] = (
            Comparison(_BY_INPUT, layer.domain.dual, found[_BY_INPUT], tolerance),
            Comparison(_BY_PARAMETER, layer.parameters.dual, found[_BY_PARAMETER], tolerance),
            Comparison(_BY_COTANGENT, layer.codomain, found[_BY_COTANGENT], of_sums),
        )
        if not context.rank:
            expected, allowances = results_of_twin(
                context, lambda: _second_derivatives(context, SequentialTwin(context))
            )
            comparisons = with_expected(comparisons, expected, allowances, context.comm.Get_size())
        return (PassObservation(comparisons),)


def _second_derivatives(context: CheckContext, version: ModuleUnderTest) -> dict[str, Local]:
    import torch

    layer, seed, keys = version.layer, context.setting.seed, pass_keys(context, 0)
    along = direction_keys(context)
    version.fill_parameters(keys["parameters"])
    version.require_gradients(version.trainable)
    frozen = layer.frozen or frozenset()
    drawn = zip(layer.domain.tensors, version.inputs(keys["inputs"]), strict=True)
    inputs, parameters = [as_leaf(x, tensor.name not in frozen) for tensor, x in drawn], version.parameters()
    cotangents = version.tensors(layer.codomain.dual, keys["cotangents"])
    directions = version.tensors(layer.domain, along["inputs"])
    # A parallel module reduces gradients of parameters when a backward pass accumulates them, so the first derivative is by inputs only.
    is_by_parameters = layer.frozen is None
    if is_by_parameters:
        directions += version.tensors(layer.parameters, along["parameters"])
    by_cotangents = seed % 2 == 1
    for cotangent in cotangents:
        cotangent.requires_grad_(by_cotangents and arrays.is_differentiable(cotangent))
    outputs = version(inputs)
    ends, of_those = arrays.with_graph(outputs, version.of_means(cotangents))
    leaves = (*inputs, *parameters) if is_by_parameters else tuple(inputs)
    wanted = [
        (leaf, arrays.in_shape_of(leaf, v))
        for leaf, v in zip(leaves, directions, strict=True)
        if leaf.requires_grad
    ]
    if not is_by_parameters and not wanted:
        raise Inapplicable("no input of the module has a gradient")
    first: Sequence[torch.Tensor | None] = ()
    if ends and wanted:
        with version.pass_context():
            first = torch.autograd.grad(
                ends, [leaf for leaf, _ in wanted], of_those, create_graph=True, allow_unused=True
            )
    # The gradients of a layer that is linear in everything are constant: there is nothing to differentiate.
    second = [(g, v) for g, (_, v) in zip(first, wanted, strict=False) if g is not None]
    if not is_by_parameters:
        # As in training with a loss and a penalty: DistributedDataParallel waits for the gradients of all parameters.
        second += zip(ends, of_those, strict=True)
    version.go_back(inputs, [g for g, _ in second], [v for _, v in second])
    return {
        _BY_INPUT: version.of_sums(gradients(inputs)),
        _BY_PARAMETER: version.in_space(gradients(parameters)),
        _BY_COTANGENT: version.of_sums(gradients(cotangents)),
    }


DOUBLE_BACKWARD = DoubleBackwardCheck()
