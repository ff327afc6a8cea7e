"""Distributed average pooling: a sum over each window, with zeros from the exchange beyond the tensor, and a quotient.

The divisor is the number of elements, which depends on the *global* position of the window.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from adjointlab.layers.differentiable import carried, of_nothing
from adjointlab.layers.half_precision import accumulation_dtype
from adjointlab.layers.pooling.windows import Pooling

__all__ = ["AveragePooling", "AvgPool1d", "AvgPool2d", "AvgPool3d"]


class AveragePooling(Pooling, torch_classes=(nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)):
    """`torch.nn.AvgPool1d`, `2d` or `3d` over `partition`; see :class:`Pooling`.

    The divisor of an output depends on the position of its window in the global tensor: it is the volume of the window clipped
    to the padded input, or without `count_include_pad` to the input, unless there is a `divisor_override`.
    """

    holds_padding = True
    count: torch.Tensor

    def lay_out(self, module: Any) -> None:
        super().lay_out(module)
        self.count_include_pad: bool = getattr(module, "count_include_pad", True)  # LPPool has none
        divisor: int | None = getattr(module, "divisor_override", None)  # AvgPool1d has none
        sides = self.input_shape[-self.dims :]
        outputs = self.codomain.tensors[0].layout.shape[-self.dims :]
        windows = zip(outputs, sides, self.kernel_size, self.stride, self.padding, strict=True)
        counts = [_counts(*along, self.count_include_pad) for along in windows]
        if divisor is not None:
            counts = [(1,) * len(along) for along in counts]
            counts[0] = (divisor,) * len(counts[0])
        element = accumulation_dtype(self.dtype)
        count = torch.ones((), dtype=element)
        for along, (first, last) in zip(counts, self.outputs, strict=True):
            count = count[..., None] * torch.tensor(along[first:last], dtype=element)
        self.register_buffer("count", count, persistent=False)
        if any(abs(number).bit_count() != 1 for along in counts for number in set(along)):
            # A quotient is rounded, and a gradient is the sum of one quotient for each window over an element, in
            # another order than torch's. The quotients are not larger than the lab's integers, up to 4, and may cancel.
            seen = math.prod(-(-k // s) for k, s in zip(self.kernel_size, self.stride, strict=True))
            self.rounding, self.reach = 8 * seen * torch.finfo(self.dtype).eps, 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The local tensor of y, from that of x."""
        (x,) = self.check_inputs(x)
        return self.averages(x)

    def averages(self, x: torch.Tensor) -> torch.Tensor:
        """Collective: return the means of the windows of x."""
        x = carried(self.exchange, x).to(self.count.dtype)
        if self._has_outputs(x):
            y = self._sums(x, self.kernel_size, self.stride)
        else:
            ones = (1,) * self.dims
            y = of_nothing(self.local_output_shape, lambda zero: self._sums(zero, ones, ones), x)
        return (y / self.count.to(y.device)).to(self.dtype)

    def _sums(self, x: torch.Tensor, kernel: tuple[int, ...], stride: tuple[int, ...]) -> torch.Tensor:
        """Return the sum of the elements in each window: torch's average with the divisor 1."""
        if self.dims == 3:
            return functional.avg_pool3d(x, kernel, stride, divisor_override=1)
        if self.dims == 2:
            return functional.avg_pool2d(x, kernel, stride, divisor_override=1)
        # In one dimension torch has no divisor.
        plane = x.unsqueeze(-2)
        return functional.avg_pool2d(plane, (1, *kernel), (1, *stride), divisor_override=1).squeeze(-2)


@lru_cache(maxsize=64)  # linear in the number of outputs, and called by every rank
def _counts(
    outputs: int, side: int, kernel: int, stride: int, padding: int, includes_padding: bool
) -> tuple[int, ...]:
    """Return the number of elements that are counted for each output of a spatial dimension of length `side`."""
    counts = []
    for output in range(outputs):
        start = output * stride - padding
        stop = min(start + kernel, side + padding)
        counts.append(stop - start if includes_padding else min(stop, side) - max(start, 0))
    return tuple(counts)


class AvgPool1d(AveragePooling, torch_classes=(nn.AvgPool1d,)):
    """`torch.nn.AvgPool1d` over P_n x P_c x P_0; see :class:`AveragePooling`. It has no `divisor_override`."""


class AvgPool2d(AveragePooling, torch_classes=(nn.AvgPool2d,)):
    """`torch.nn.AvgPool2d` over P_n x P_c x P_1 x P_0; see :class:`AveragePooling`."""


class AvgPool3d(AveragePooling, torch_classes=(nn.AvgPool3d,)):
    """`torch.nn.AvgPool3d` over P_n x P_c x P_2 x P_1 x P_0; see :class:`AveragePooling`."""
