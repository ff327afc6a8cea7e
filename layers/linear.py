"""The distributed affine layer [Hewett21, figure 5]: y = x Wᵀ + b over a partition P_lead x P_fo x P_fi.

    forward    x̂ = B_{P_x→P} x    Ŵ = B_{P_w→P} W    b̂ = B_{P_b→P_y} b
               ŷ = Affine(x̂, Ŵ, b̂)                                     on each worker
               y = R_{P→P_y} ŷ
    adjoint    δŷ = R* δy    (δx̂, δŴ, δb̂) = Affine* δŷ    δx = B* δx̂    δW = B* δŴ    δb = B* δb̂

P_x is P with P_fo = 1, P_y with P_fi = 1, P_w with all leading sides 1, P_b with leading sides and P_fi = 1. Column-parallel
(P_fi = 1) and row-parallel (P_fo = 1) are the cases in which the reduction or the broadcast of x sends nothing.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from adjointlab.core.layout import Layout
from adjointlab.layers.affine import AffineModule
from adjointlab.layers.differentiable import connected
from adjointlab.layers.grids import with_index_zero

__all__ = ["Linear", "affine_summand"]


class Linear(AffineModule, torch_classes=(nn.Linear,)):
    """`torch.nn.Linear` over `partition` = P_lead... x P_fo x P_fi, for inputs of global shape `input_shape`.

    The input (*lead, in_features) is cut over the leading dimensions and P_fi, on the workers whose index along P_fo is
    0; the output (*lead, out_features) over the leading dimensions and P_fo, on those whose index along P_fi is 0.
    All other workers take and return tensors of zero volume.

    Raises `ValueError` for an input that does not end in `in_features`, and for a partition of another order.
    """

    def lay_out(self, module: nn.Linear) -> None:
        partition, shape = self.partition, self.input_shape
        if not shape or shape[-1] != module.in_features:
            raise ValueError(f"input_shape: {shape} does not end in in_features = {module.in_features}")
        if partition.order != len(shape) + 1:
            raise ValueError(
                f"partition: of order {partition.order} ({partition}), but inputs of order {len(shape)} need one dimension "
                "for each leading dimension, one for the output features and one for the input features"
            )
        lead = tuple(range(len(shape) - 1))
        fo, fi = len(lead), len(lead) + 1  # of the partition
        outputs = module.out_features
        self.compose(
            module,
            x=Layout(shape, with_index_zero(partition, fo), axes=(*lead, fi)),
            y=Layout((*shape[:-1], outputs), with_index_zero(partition, fi), axes=(*lead, fo)),
            weight=Layout((outputs, module.in_features), with_index_zero(partition, *lead), axes=(fo, fi)),
            bias=Layout((outputs,), with_index_zero(partition, *lead, fi), axes=(fo,)),
        )

    def summand(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return affine_summand(x, weight, bias)


def affine_summand(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Return a worker's summand x Wᵀ + b; if the bias has no elements, another worker of the same sum adds it."""
    if bias is not None and bias.numel():
        return functional.linear(x, weight, bias)
    # y depends on the empty bias in the graph, so that this worker takes part in the reduction of its gradient, too.
    y = functional.linear(x, weight)
    return y if bias is None else connected(y, bias)
