"""Distributed softmax over a dimension that may be cut: y = exp(x - m) / s.

    forward    m = max over the dimension                        no gradient: y does not depend on it
               s = 𝒜 Σ exp(x - m)
               y = exp(x - m) / s;    log y = (x - m) - log s
    adjoint    that of each step in the reverse order, with 𝒜* = 𝒜

𝒜 sums over the workers along the dimension; if it is not cut, nothing is sent.
"""

from __future__ import annotations

import torch
from torch import nn

from adjointlab.core.layout import Layout
from adjointlab.core.space import Space
from adjointlab.layers.differentiable import carried, connected
from adjointlab.layers.distributed import TorchLayer
from adjointlab.layers.grids import without_dims
from adjointlab.layers.half_precision import accumulation_dtype
from adjointlab.layers.largest import Largest
from adjointlab.layers.torch_modules import dtype_name, result_of
from adjointlab.primitives.all_sum_reduce import AllSumReduce

__all__ = ["LogSoftmax", "Softmax"]


class _Exponentials(TorchLayer):
    """Base class of both functions, with their layout and their sum."""

    def lay_out(self, module: nn.Softmax | nn.LogSoftmax) -> None:
        comm, shape = self.comm, self.input_shape
        if not shape:
            raise ValueError("input_shape: () has no dimension")
        result_of(module, torch.empty((0,) * len(shape)))  # this only checks the number of dimensions
        self.check_order(shape)
        # Without a `dim`, torch's own choice.
        dim = int(len(shape) not in (1, 3)) if module.dim is None else module.dim
        self.dim = dim % len(shape)
        x, name = Layout(shape, self.partition), dtype_name(self.dtype)
        self.rounding = None
        self.domain, self.codomain = Space(x, dtype=name), Space(x, dtype=name, name="y")
        sums = without_dims(x, self.dim)
        self.slices_shape = sums.local_shape(self.rank)
        wide = accumulation_dtype(self.dtype)
        self.largest = Largest(comm, x, self.dim, wide)
        self.sum = AllSumReduce(comm, sums, (self.dim,), dtype=dtype_name(wide))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The local tensor of y, from that of x."""
        (x,) = self.check_inputs(x)
        x = x.to(accumulation_dtype(self.dtype))
        if not self.partition.is_active(self.rank):
            return connected(x, carried(self.sum, connected(x.new_zeros(self.slices_shape), x))).to(
                self.dtype
            )
        x = x - self.largest.of(x)
        exponentials = torch.exp(x)
        sums = carried(self.sum, exponentials.sum(self.dim)).unsqueeze(self.dim)
        return self.of(x, exponentials, sums).to(self.dtype)

    def of(self, x: torch.Tensor, exponentials: torch.Tensor, sums: torch.Tensor) -> torch.Tensor:
        """Return the function's values, from x minus its maximum, its exponentials, and their sums."""
        raise NotImplementedError


class Softmax(_Exponentials, torch_classes=(nn.Softmax,)):
    """`torch.nn.Softmax` over `partition`, of the order of the input, cut in any dimension, also in `dim`.

    Raises `ValueError`, with torch's message, for a dimension that the input does not have, and for a partition of another order.
    """

    def of(self, x: torch.Tensor, exponentials: torch.Tensor, sums: torch.Tensor) -> torch.Tensor:
        return exponentials / sums


class LogSoftmax(_Exponentials, torch_classes=(nn.LogSoftmax,)):
    """`torch.nn.LogSoftmax` over `partition`; see :class:`Softmax`."""

    def of(self, x: torch.Tensor, exponentials: torch.Tensor, sums: torch.Tensor) -> torch.Tensor:
        return x - torch.log(sums)
