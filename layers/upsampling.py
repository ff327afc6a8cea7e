"""Distributed interpolation to another size: nearest, linear and cubic, with torch's coordinates (resampling.py)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional

from adjointlab.layers.resampling import AlongDim, Resampling
from adjointlab.layers.torch_modules import result_of

__all__ = ["Upsample", "UpsamplingBilinear2d", "UpsamplingNearest2d"]


class Upsample(Resampling, torch_classes=(nn.Upsample,)):
    """`torch.nn.Upsample` over `partition` = P_n x P_c x P_spatial, in all modes that are linear and separable.

    That is "nearest", "linear", "bilinear", "bicubic" and "trilinear", to a size or by a factor, which may be below 1, with aligned
    corners or without. It is the layer for `torch.nn.functional.interpolate` without antialiasing.

    If a factor such as 1.2 does not change a side's length, or one such as 2.1 doubles it, torch's backward pass of "nearest" in one and
    three dimensions is not the adjoint of its forward pass (2.13); the layer's is.

    Raises the errors of :class:`Resampling`.
    """

    def lay_out(self, module: nn.Module) -> None:
        super().lay_out(module)
        if str(module.mode).startswith("nearest"):
            self.rounding = 0.0  # values are only moved

    def output_shape(self, module: nn.Module) -> tuple[int, ...]:
        # An empty batch, not the device "meta", for which torch interpolates in Python code that takes milliseconds.
        lead = self.input_shape[:1]
        y = result_of(module, torch.empty([0] * len(lead) + list(self.input_shape[1:])))
        return (*lead, *y.shape[1:])

    def along_dims(self, module: nn.Module, order: int) -> Sequence[AlongDim]:
        module, dims = cast(nn.Upsample, module), order - 2
        sizes, factors = _each(module.size, dims), _each(module.scale_factor, dims)
        return [
            partial(_interpolated, module, dims, size, factor)
            for size, factor in zip(sizes, factors, strict=True)
        ]


class UpsamplingNearest2d(Upsample, torch_classes=(nn.UpsamplingNearest2d,)):
    """`torch.nn.UpsamplingNearest2d`; see :class:`Upsample`."""


class UpsamplingBilinear2d(Upsample, torch_classes=(nn.UpsamplingBilinear2d,)):
    """`torch.nn.UpsamplingBilinear2d`; see :class:`Upsample`."""


def _each(value: Any, dims: int) -> tuple[Any, ...]:
    """Return an argument for each spatial dimension, from one for all or one for each."""
    return tuple(value) if isinstance(value, tuple | list) else (value,) * dims


def _interpolated(
    module: nn.Upsample, dims: int, size: int | None, factor: float | None, x: torch.Tensor
) -> torch.Tensor:
    """Return torch's interpolation along the first of `dims` spatial dimensions, the others of which have length 1.

    Not torch's one-dimensional interpolation: the cubic one exists for two dimensions only, and for a factor of 1.3 the nearest element
    differs between one dimension and two (torch 2.13).
    """
    others = (1,) * (dims - 1)
    y: torch.Tensor = functional.interpolate(
        x.reshape(*x.shape, *others),
        size=None if size is None else (size, *others),
        scale_factor=None if factor is None else (factor, *map(float, others)),
        mode=module.mode,
        align_corners=module.align_corners,
        recompute_scale_factor=module.recompute_scale_factor,
    )
    return y.reshape(*x.shape[:2], -1)
