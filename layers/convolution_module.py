"""The arguments of torch's convolutions, and the input windows that follow from them, for all algorithms that move data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias, cast

import torch
from torch import nn

from adjointlab.core.layout import Layout
from adjointlab.layers.arguments import check_channels
from adjointlab.layers.distributed import TorchLayer
from adjointlab.layers.padded import Padded, convolution_of, paddings
from adjointlab.layers.torch_modules import (
    device_of,
    dtype_name,
    function_of_dims,
    per_dim,
    result_of,
    spatial_dims,
)
from adjointlab.primitives.halo_exchange import OverlappedHaloExchange
from adjointlab.primitives.halo_geometry import HaloGeometry

__all__ = ["ConvolutionModule"]

_TorchConvolution: TypeAlias = nn.Conv1d | nn.Conv2d | nn.Conv3d


class ConvolutionModule(TorchLayer):
    """A layer made from a torch convolution, from a :class:`Padded` one, or from the arguments of either."""

    torch_padding: tuple[int, ...]
    """The padding in each spatial dimension that the windows do not contain, and torch's convolution adds."""

    def read(self, module: nn.Module) -> None:
        """Copy the module's arguments.

        Raises `ValueError`, with torch's message, for an input that torch rejects, and for a padding mode other than "zeros" and
        "circular".
        """
        convolution = cast(_TorchConvolution, module.convolution if isinstance(module, Padded) else module)
        dims, shape = spatial_dims(convolution), self.input_shape
        self.kernel = per_dim("kernel_size", convolution.kernel_size, dims)
        self.in_channels, self.out_channels = convolution.in_channels, convolution.out_channels
        self.groups = convolution.groups
        self.stride = per_dim("stride", convolution.stride, dims)
        self.dilation = per_dim("dilation", convolution.dilation, dims)
        if isinstance(module, Padded):
            self.padding, self.padding_mode = module.padding, module.mode
        else:
            self.padding = paddings(convolution.padding, self.kernel, self.dilation)
            self.padding_mode = convolution.padding_mode
        check_channels(shape, self.in_channels, dims)
        if self.padding_mode not in ("zeros", "circular"):
            raise ValueError(
                f"padding_mode: {self.padding_mode!r} is neither 'zeros' nor 'circular'; for others, put a layer such as ReflectionPad2d "
                "or ReplicationPad2d before a convolution without padding"
            )
        if min(self.dilation) < 1:
            # Torch raises this error, but not for the empty batch below.
            raise ValueError("non-positive dilation is not supported")
        y = result_of(module, torch.empty(0, *shape[1:], dtype=self.dtype, device=device_of(module)))
        self.output_sides = tuple(y.shape[2:])
        # In single precision libraries choose the algorithm (such as Winograd's or FFT) by the shape, which a cut changes. Results may
        # differ by 64 units of rounding, 2**-24.
        self.rounding = 0.0 if self.dtype == torch.float64 else 2.0**-18

    def windows(self, x: Layout, *, padded: bool = False) -> HaloGeometry:
        """Return the windows that workers need of an input of this layout, for outputs that are balanced in the spatial dimensions.

        They include the padding in the dimensions that are cut, or with `padded` in all; in the others torch's convolution pads,
        which needs no copy of x.
        """
        dims = len(self.kernel)
        geometry = HaloGeometry.from_kernel(
            x,
            (1, 1, *self.kernel),
            stride=(1, 1, *self.stride),
            dilation=(1, 1, *self.dilation),
            padding=((0, 0), (0, 0), *self.padding),
            periodic=tuple(range(2, dims + 2)) if self.padding_mode == "circular" else (),
            output_cuts=(x.ends(0), x.ends(1), *(None,) * dims),
        )
        self.torch_padding = tuple(
            0 if padded else self._padding_for_torch(dim, geometry) for dim in range(dims)
        )
        if not any(self.torch_padding):
            return geometry
        windows = [
            bulk if dim >= 2 and self.torch_padding[dim - 2] else window
            for dim, (bulk, window) in enumerate(zip(x.windows, geometry.window.windows, strict=True))
        ]
        return replace(geometry, window=Layout(x.shape, x.partition, windows, x.axes))

    def _padding_for_torch(self, dim: int, geometry: HaloGeometry) -> int:
        """Return the padding of a spatial dimension that torch can add: zeros, equal on both sides, if the dimension is not cut."""
        left, right = self.padding[dim]
        bulks = geometry.bulk.windows[dim + 2]
        is_whole = len(bulks) == 1 and bulks[0][0] < bulks[0][1]
        return left if left == right and is_whole and not geometry.periodic else 0

    def exchange_of(self, geometry: HaloGeometry) -> OverlappedHaloExchange:
        """Return the exchange from the bulks to the windows."""
        return OverlappedHaloExchange(
            self.comm,
            geometry.bulk,
            geometry.window,
            periodic=geometry.periodic,
            dtype=dtype_name(self.dtype),
        )

    def convolve(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, groups: int = 1
    ) -> torch.Tensor:
        """Return torch's convolution of a local window, with the padding that the window does not contain."""
        convolution: Callable[..., torch.Tensor] = function_of_dims("conv", len(self.stride))
        return convolution(x, weight, bias, self.stride, self.torch_padding, self.dilation, groups)

    @classmethod
    def torch_module(cls, dtype: torch.dtype | None, *arguments: object, **named: object) -> nn.Module:
        is_module = bool(arguments) and isinstance(arguments[0], nn.Module)
        if is_module or len(cls.torch_classes) > 1:
            return super().torch_module(dtype, *arguments, **named)
        return convolution_of(cls.torch_classes[0], *arguments, dtype=dtype, **named)

    @classmethod
    def check_sequential(cls, module: nn.Module) -> None:
        super().check_sequential(module.convolution if isinstance(module, Padded) else module)
