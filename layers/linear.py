"""The distributed affine layer [Hewett21, figure 5]: y = x Wᵀ + b over a partition P_lead x P_fo x P_fi.

    forward    x̂ = B_{P_x→P} x    Ŵ = B_{P_w→P} W    b̂ = B_{P_b→P_y} b
               ŷ = Affine(x̂, Ŵ, b̂)                                     on each worker
               y = R_{P→P_y} ŷ
    adjoint    δŷ = R* δy    (δx̂, δŴ, δb̂) = Affine* δŷ    δx = B* δx̂    δW = B* δŴ    δb = B* δb̂

P_x is P with P_fo = 1, P_y with P_fi = 1, P_w with all leading sides 1, P_b with leading sides and P_fi = 1. Column-parallel
(P_fi = 1) and row-parallel (P_fo = 1) are the cases in which the reduction or the broadcast of x moves nothing. The bias
is added where P_fi's index is 0, so that the sum holds it once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import nn
from torch.nn import functional

from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.core.space import Space
from adjointlab.layers.differentiable import carried
from adjointlab.layers.distributed import DistributedModule, connected, dtype_name, face
from adjointlab.primitives.broadcast import Broadcast
from adjointlab.primitives.sum_reduce import SumReduce

__all__ = ["Linear"]


class Linear(DistributedModule):
    """`torch.nn.Linear` over `partition` = P_lead... x P_fo x P_fi, for inputs of global shape `input_shape`.

    The input (*lead, in_features) is cut over the leading dimensions and P_fi, on the workers whose index along P_fo is
    0; the output (*lead, out_features) over the leading dimensions and P_fo, on those whose index along P_fi is 0.
    Everybody else takes and returns tensors of zero volume. The other arguments are torch's.

    Raises `ValueError` for an input that does not end in `in_features`, and for a partition of another order.
    """

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(
        self,
        comm: Any,
        partition: Partition,
        input_shape: Sequence[int],
        in_features: int,
        out_features: int,
        bias: bool = True,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(comm, partition)
        shape = tuple(input_shape)
        if not shape or shape[-1] != in_features:
            raise ValueError(f"input_shape: {shape} does not end in in_features = {in_features}")
        if partition.order != len(shape) + 1:
            raise ValueError(
                f"partition: of order {partition.order} ({partition}), but inputs of order {len(shape)} need one dimension "
                "for each leading dimension, one for the output features and one for the input features"
            )
        self.in_features, self.out_features, self.has_bias = in_features, out_features, bias
        lead = tuple(range(len(shape) - 1))
        fo, fi = len(lead), len(lead) + 1
        whole = self.sequential_of(dtype)
        name = dtype_name(whole.weight.dtype)
        x = Layout(shape, face(partition, fo), axes=(*lead, fi))
        y = Layout((*shape[:-1], out_features), face(partition, fi), axes=(*lead, fo))
        weight = Layout((out_features, in_features), face(partition, *lead), axes=(fo, fi))
        self.spread_x = Broadcast(comm, x, partition, dtype=name, preserve_batch=False)
        self.spread_weight = Broadcast(comm, weight, partition, dtype=name, preserve_batch=False)
        summed = Layout(y.shape, partition, y.windows, y.axes)
        self.sum_y = SumReduce(comm, summed, y.partition, dtype=name, preserve_batch=False)
        layouts = {"weight": weight}
        self.spread_bias: Broadcast | None = None
        if bias:
            layouts["bias"] = Layout((out_features,), face(partition, *lead, fi), axes=(fo,))
            self.spread_bias = Broadcast(comm, layouts["bias"], y.partition, dtype=name, preserve_batch=False)
        self.domain, self.codomain = Space(x, dtype=name), Space(y, dtype=name, name="y")
        self.own(whole, layouts)

    def sequential_of(self, dtype: torch.dtype | None) -> nn.Linear:
        """The sequential module in an element type."""
        return nn.Linear(self.in_features, self.out_features, self.has_bias, dtype=dtype)

    def sequential(self) -> nn.Linear:
        """`torch.nn.Linear` with the same arguments."""
        return self.sequential_of(self.weight.dtype)

    @classmethod
    def from_sequential(
        cls, module: nn.Linear, comm: Any, partition: Partition, input_shape: Sequence[int]
    ) -> Self:
        """The distributed layer with the arguments and values of `module`, which every rank has, and in its mode.

        Raises `ValueError` for a module of another class.
        """
        cls.check_sequential(module, nn.Linear)
        layer = cls(
            comm,
            partition,
            input_shape,
            module.in_features,
            module.out_features,
            module.bias is not None,
            module.weight.dtype,
        )
        layer.load_sequential(module)
        return layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The local tensor of y, from that of x. Under autocast the local products alone are of the lower precision.

        Raises `ValueError` on every rank where one of them has a tensor of another shape or element type.
        """
        (x,) = self.check_inputs(x)
        x = carried(self.spread_x, x)
        weight = carried(self.spread_weight, self.weight)
        bias = None if self.spread_bias is None or self.bias is None else carried(self.spread_bias, self.bias)
        if bias is not None and bias.numel():
            y = functional.linear(x, weight, bias)
        else:  # of zero volume it is another worker's to add; what stays is the place in the graph
            y = functional.linear(x, weight)
            y = y if bias is None else connected(y, bias)
        return carried(self.sum_y, y.to(x.dtype))
