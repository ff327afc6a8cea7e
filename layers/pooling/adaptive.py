"""Distributed adaptive average pooling: means over windows that overlap and differ in length (resampling.py)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import cast

from torch import nn
from torch.nn import functional

from adjointlab.layers.resampling import AlongDim, Resampling

__all__ = ["AdaptiveAveragePooling", "AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveAvgPool3d"]

_CLASSES = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)


class AdaptiveAveragePooling(Resampling, torch_classes=_CLASSES):
    """`torch.nn.AdaptiveAvgPool1d`, `2d` or `3d` over `partition`, of the order of the input.

    Raises what :class:`Resampling` raises.
    """

    def along_dims(self, module: nn.Module, order: int) -> Sequence[AlongDim]:
        dims = next(dims for dims, each in enumerate(_CLASSES, start=1) if isinstance(module, each))
        given = cast(nn.AdaptiveAvgPool2d, module).output_size
        lengths: Sequence[int | None] = given if isinstance(given, Sequence) else (given,) * dims
        sides = self.input_shape[len(self.input_shape) - dims :]
        # None is the length of the input.
        return [
            partial(functional.adaptive_avg_pool1d, output_size=side if length is None else length)
            for length, side in zip(lengths, sides, strict=True)
        ]


class AdaptiveAvgPool1d(AdaptiveAveragePooling, torch_classes=(nn.AdaptiveAvgPool1d,)):
    """`torch.nn.AdaptiveAvgPool1d`; see :class:`AdaptiveAveragePooling`."""


class AdaptiveAvgPool2d(AdaptiveAveragePooling, torch_classes=(nn.AdaptiveAvgPool2d,)):
    """`torch.nn.AdaptiveAvgPool2d`; see :class:`AdaptiveAveragePooling`."""


class AdaptiveAvgPool3d(AdaptiveAveragePooling, torch_classes=(nn.AdaptiveAvgPool3d,)):
    """`torch.nn.AdaptiveAvgPool3d`; see :class:`AdaptiveAveragePooling`."""
