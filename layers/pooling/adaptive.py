"""Distributed adaptive pooling, average and max, over windows that overlap and differ in length (resampling.py for the exchange).

The windows are those of the global tensor: output i of m has the elements from ⌊i n / m⌋ to ⌈(i + 1) n / m⌉ of n, wherever
they lie. For a maximum each worker copies its windows one after another, all padded to the length of the longest, and pools them
with a stride of that length. The padding repeats the last element, whose repetitions are never chosen before the first one:

    n = 5, m = 3      0  1 | 1  2  3 | 3  4       →       0  1  1 | 1  2  3 | 3  4  4
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional

from adjointlab.core.space import Space, Tensor
from adjointlab.layers.differentiable import carried, of_nothing
from adjointlab.layers.pooling.windows import global_positions
from adjointlab.layers.resampling import AlongDim, Resampling, Taps, first_elements
from adjointlab.layers.torch_modules import function_of_dims, spatial_dims

__all__ = [
    "AdaptiveAveragePooling",
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveAvgPool3d",
    "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d",
    "AdaptiveMaxPool3d",
    "AdaptiveMaxPooling",
    "AdaptivePooling",
]


class AdaptivePooling(Resampling):
    """Base class of both poolings, with the windows of the average, whose matrix has a weight for each of their elements."""

    def along_dims(self, module: nn.Module, order: int) -> Sequence[AlongDim]:
        dims = spatial_dims(module)
        given = cast(nn.AdaptiveAvgPool2d, module).output_size
        lengths: Sequence[int | None] = given if isinstance(given, Sequence) else (given,) * dims
        sides = self.input_shape[len(self.input_shape) - dims :]
        # None is the length of the input.
        return [
            partial(functional.adaptive_avg_pool1d, output_size=side if length is None else length)
            for length, side in zip(lengths, sides, strict=True)
        ]


class AdaptiveAveragePooling(
    AdaptivePooling, torch_classes=(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)
):
    """`torch.nn.AdaptiveAvgPool1d`, `2d` or `3d` over `partition`, of the order of the input.

    Raises what :class:`Resampling` raises.
    """


class AdaptiveMaxPooling(
    AdaptivePooling, torch_classes=(nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d)
):
    """`torch.nn.AdaptiveMaxPool1d`, `2d` or `3d` over `partition`, of the order of the input.

    With `return_indices` the result is (y, indices), with indices in the global input, as in torch.
    The first of equal elements is chosen, and NaN is larger than everything, as in torch.

    Raises what :class:`Resampling` raises.
    """

    def lay_out(self, module: nn.Module) -> None:
        super().lay_out(module)
        self.dims = spatial_dims(module)
        self.return_indices = cast(nn.AdaptiveMaxPool2d, module).return_indices
        self.rounding = 0.0
        (y,) = self.codomain.tensors
        if self.return_indices:
            self.codomain = Space(y, Tensor(y.layout, "int64", name="indices"))

    def forward(self, x: torch.Tensor) -> Any:
        """Return the local tensor of y, from that of x; with `return_indices`, (y, indices)."""
        (x,) = self.check_inputs(x)
        x = carried(self.exchange, x)
        pool = function_of_dims("max_pool", self.dims)
        if 0 in (*self.local_output_shape, *x.shape):
            y = of_nothing(self.local_output_shape, lambda zero: pool(first_elements(zero), 1), x)
            indices = y.new_zeros(self.local_output_shape, dtype=torch.int64)
            return (y, indices) if self.return_indices else y
        elements = [_elements(taps).to(x.device) for _, taps in self.taps]
        for (dim, _), each in zip(self.taps, elements, strict=True):
            x = x.index_select(dim, each.flatten())
        y, indices = pool(x, [each.shape[1] for each in elements], return_indices=True)
        return (y, self._globally(indices, elements)) if self.return_indices else y

    def _globally(self, indices: torch.Tensor, elements: Sequence[torch.Tensor]) -> torch.Tensor:
        """Convert row-major positions among the elements of this worker's windows to those in the global tensor."""
        (window,) = self.exchange.codomain.tensors
        starts = [start for start, _ in (window.layout.window(self.rank) or ())[-self.dims :]]
        in_global = [each.flatten() + start for each, start in zip(elements, starts, strict=True)]
        return global_positions(indices, in_global, self.input_shape[-self.dims :])


def _elements(taps: Taps) -> torch.Tensor:
    """Return the elements of each window in order, with the last one repeated to make all windows equally long."""
    last = torch.where(taps.used, taps.element, -1).amax(1, keepdim=True)
    return torch.where(taps.used, taps.element, last)


class AdaptiveAvgPool1d(AdaptiveAveragePooling, torch_classes=(nn.AdaptiveAvgPool1d,)):
    """`torch.nn.AdaptiveAvgPool1d`; see :class:`AdaptiveAveragePooling`."""


class AdaptiveAvgPool2d(AdaptiveAveragePooling, torch_classes=(nn.AdaptiveAvgPool2d,)):
    """`torch.nn.AdaptiveAvgPool2d`; see :class:`AdaptiveAveragePooling`."""


class AdaptiveAvgPool3d(AdaptiveAveragePooling, torch_classes=(nn.AdaptiveAvgPool3d,)):
    """`torch.nn.AdaptiveAvgPool3d`; see :class:`AdaptiveAveragePooling`."""


class AdaptiveMaxPool1d(AdaptiveMaxPooling, torch_classes=(nn.AdaptiveMaxPool1d,)):
    """`torch.nn.AdaptiveMaxPool1d`; see :class:`AdaptiveMaxPooling`."""


class AdaptiveMaxPool2d(AdaptiveMaxPooling, torch_classes=(nn.AdaptiveMaxPool2d,)):
    """`torch.nn.AdaptiveMaxPool2d`; see :class:`AdaptiveMaxPooling`."""


class AdaptiveMaxPool3d(AdaptiveMaxPooling, torch_classes=(nn.AdaptiveMaxPool3d,)):
    """`torch.nn.AdaptiveMaxPool3d`; see :class:`AdaptiveMaxPooling`."""
