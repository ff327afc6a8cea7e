"""Distributed max pooling: elements of a window beyond the tensor must not enter a maximum, and so count as -∞."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from adjointlab.core.space import Space, Tensor
from adjointlab.layers.differentiable import carried, of_nothing
from adjointlab.layers.pooling.windows import Pooling, global_positions
from adjointlab.layers.torch_modules import function_of_dims

__all__ = ["MaxPool1d", "MaxPool2d", "MaxPool3d", "MaxPooling"]


class MaxPooling(Pooling, torch_classes=(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)):
    """`torch.nn.MaxPool1d`, `2d` or `3d` over `partition`; see :class:`Pooling`.

    With `return_indices` the result is (y, indices), with indices in the global input, as in torch.
    The first of equal elements is chosen, and NaN is larger than everything, as in torch.
    """

    holds_padding = False

    def lay_out(self, module: Any) -> None:
        super().lay_out(module)
        self.return_indices: bool = module.return_indices
        if self.return_indices:
            (y,) = self.codomain.tensors
            self.codomain = Space(y, Tensor(y.layout, "int64", name="indices"))

    def forward(self, x: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Return the local tensor of y, from that of x; with `return_indices`, (y, indices)."""
        (x,) = self.check_inputs(x)
        x = carried(self.exchange, x)
        pool = function_of_dims("max_pool", self.dims)
        if not self._has_outputs(x):
            y = of_nothing(self.local_output_shape, lambda zero: pool(zero, 1), x)
            indices = y.new_zeros(self.local_output_shape, dtype=torch.int64)
            return (y, indices) if self.return_indices else y
        # On the left the padding is torch's own, which is never chosen: in a window of only -∞, torch chooses the first
        # element of the tensor. On the right there is as much of torch's padding, and -∞ for the rest, which never comes first.
        # A dilated window can miss a tensor that is smaller than its gaps; torch (2.13) then chooses an element beyond
        # the padded tensor, and its backward pass writes there. With -∞ as all of the padding on the right it is in bounds.
        left = tuple(before for before, _ in self.outside)
        right = [
            after if dilation > 1 else max(0, after - before)
            for (before, after), dilation in zip(self.outside, self.dilation, strict=True)
        ]
        if any(right):
            x = functional.pad(x, [side for after in reversed(right) for side in (0, after)], value=-math.inf)
        if not self.return_indices:
            return self._without_excess(pool(x, self.kernel_size, self.stride, left, self.dilation))
        y, indices = pool(x, self.kernel_size, self.stride, left, self.dilation, return_indices=True)
        return self._without_excess(y), self._globally(self._without_excess(indices), x.shape[-self.dims :])

    def _without_excess(self, y: torch.Tensor) -> torch.Tensor:
        """Drop the additional windows that torch's padding on the right makes."""
        for dim, side in enumerate(self.local_output_shape[-self.dims :], start=-self.dims):
            y = y.narrow(dim, 0, side)
        return y

    def _globally(self, indices: torch.Tensor, sides: Sequence[int]) -> torch.Tensor:
        """Convert row-major positions in a local tensor of the given sides to those in the global one."""
        elements = [
            torch.arange(start, start + side, device=indices.device)
            for (start, _), side in zip(self.window, sides, strict=True)
        ]
        return global_positions(indices, elements, self.domain.tensors[0].layout.shape[-self.dims :])


class MaxPool1d(MaxPooling, torch_classes=(nn.MaxPool1d,)):
    """`torch.nn.MaxPool1d` over P_n x P_c x P_0; see :class:`MaxPooling`."""


class MaxPool2d(MaxPooling, torch_classes=(nn.MaxPool2d,)):
    """`torch.nn.MaxPool2d` over P_n x P_c x P_1 x P_0; see :class:`MaxPooling`."""


class MaxPool3d(MaxPooling, torch_classes=(nn.MaxPool3d,)):
    """`torch.nn.MaxPool3d` over P_n x P_c x P_2 x P_1 x P_0; see :class:`MaxPooling`."""
