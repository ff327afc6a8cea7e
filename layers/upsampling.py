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

_OF_ONE_DIM = {"bilinear": "linear", "trilinear": "linear"}


class Upsample(Resampling, torch_classes=(nn.Upsample,)):
    """`torch.nn.Upsample` over `partition` = P_n x P_c x P_spatial, in all modes that are linear and separable.

    That is "nearest", "linear", "bilinear", "bicubic" and "trilinear", to a size or by a factor, which may be below 1, with aligned
    corners or without. It is the layer for what `torch.nn.functional.interpolate` does without antialiasing.

    Raises what :class:`Resampling` raises.
    """

    def lay_out(self, module: nn.Module) -> None:
        super().lay_out(module)
        if str(module.mode).startswith("nearest"):
            self.rounding = 0.0  # values move

    def output_shape(self, module: nn.Module) -> tuple[int, ...]:
        # An empty batch, not the device "meta", for which torch interpolates by Python code that takes milliseconds.
        lead = self.input_shape[:1]
        y = result_of(module, torch.empty([0] * len(lead) + list(self.input_shape[1:])))
        return (*lead, *y.shape[1:])

    def along_dims(self, module: nn.Module, order: int) -> Sequence[AlongDim]:
        module, dims = cast(nn.Upsample, module), order - 2
        sizes, factors = _each(module.size, dims), _each(module.scale_factor, dims)
        return [
            partial(_interpolated, module, size, factor) for size, factor in zip(sizes, factors, strict=True)
        ]


class UpsamplingNearest2d(Upsample, torch_classes=(nn.UpsamplingNearest2d,)):
    """`torch.nn.UpsamplingNearest2d`; see :class:`Upsample`."""


class UpsamplingBilinear2d(Upsample, torch_classes=(nn.UpsamplingBilinear2d,)):
    """`torch.nn.UpsamplingBilinear2d`; see :class:`Upsample`."""


def _each(value: Any, dims: int) -> tuple[Any, ...]:
    """An argument for each spatial dimension, of one for all or one for each."""
    return tuple(value) if isinstance(value, tuple | list) else (value,) * dims


def _interpolated(
    module: nn.Upsample, size: int | None, factor: float | None, x: torch.Tensor
) -> torch.Tensor:
    """Torch's interpolation along one dimension."""
    # Torch has the cubic one for two dimensions only: the second has a length of 1.
    is_cubic = module.mode == "bicubic"
    others = (1,) if is_cubic else ()
    y: torch.Tensor = functional.interpolate(
        x.unsqueeze(-1) if is_cubic else x,
        size=None if size is None else (size, *others),
        scale_factor=None if factor is None else (factor, *map(float, others)),
        mode=_OF_ONE_DIM.get(module.mode, module.mode),
        align_corners=module.align_corners,
        recompute_scale_factor=module.recompute_scale_factor,
    )
    return y.squeeze(-1) if is_cubic else y
