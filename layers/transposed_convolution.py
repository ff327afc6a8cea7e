"""The distributed transposed convolution: y = w *ᵀ x + b over P = P_n x P_co x P_ci x P_spatial, as the convolution [Hewett21, figure 4].

    forward    x ← H x                                                     halo exchange over P_spatial
               x̂ = B_{P_x→P} x    ŵ = B_{P_w→P} w    b̂ = B_{P_b→P_y} b
               ŷ = ConvTranspose(x̂, ŵ) cut to the worker's outputs, + b̂
               y = R_{P→P_y} ŷ
    adjoint    δŷ = R* δy    (δx̂, δŵ, δb̂) = ConvTranspose* δŷ    δx = H* B* δx̂    δw = B* δŵ    δb = B* δb̂

Every worker computes its outputs completely, from all inputs that contribute to them: so inputs at a border go to both sides, and no
partial outputs are summed. Output o takes input i with the weight k if o + padding = i * stride + k * dilation:

        inputs   | 0  1 | 2  3 |        stride 2, kernel 3, padding 1, over two workers
        outputs  | 0  1  2  3 | 4  5  6 |
                  outputs 0 to 3 need inputs 0 to 2: o = 3 is 1 * 2 + 2 - 1 and 2 * 2 + 0 - 1
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TypeAlias, cast

import torch
from torch import nn
from torch.nn import functional

from adjointlab.core.layout import Layout, Window, balanced_windows
from adjointlab.layers.arguments import check_channels
from adjointlab.layers.channels import ChannelModule
from adjointlab.layers.differentiable import connected, of_nothing
from adjointlab.layers.grids import with_index_zero
from adjointlab.layers.torch_modules import (
    device_of,
    dtype_name,
    function_of_dims,
    per_dim,
    result_of,
    spatial_dims,
)
from adjointlab.primitives.halo_exchange import HaloExchange

__all__ = ["ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d", "TransposedConvolution"]

_TorchTransposed: TypeAlias = nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d


class TransposedConvolution(
    ChannelModule, torch_classes=(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
):
    """`torch.nn.ConvTranspose1d`, `2d` or `3d` over `partition` = P_n x P_co x P_ci x P_spatial, for inputs of `input_shape`.

    Input, output and groups are laid out as in :class:`~adjointlab.layers.convolution.Convolution`. A call takes no `output_size`;
    `output_padding` selects one of the possible sizes.

    Raises `ValueError`, with torch's message for arguments that torch rejects, and for a partition of another order and groups over
    both P_co and P_ci.
    """

    def lay_out(self, module: _TorchTransposed) -> None:
        partition, shape, dims = self.partition, self.input_shape, spatial_dims(module)
        y_sides = self._read(module, dims)
        channels = self.cut_channels(partition, transposed=True)
        spatial = tuple(range(3, dims + 3))
        batch = balanced_windows(shape[0], partition.shape[0])
        bulk, outputs = (
            [balanced_windows(side, partition.shape[dim + 3]) for dim, side in enumerate(sides)]
            for sides in (shape[2:], y_sides)
        )
        on_x, on_y = with_index_zero(partition, 1), with_index_zero(partition, 2)
        x = Layout(shape, on_x, [batch, channels.inputs, *bulk], (0, 2, *spatial))
        windows = self.inputs_of(outputs, x)
        y_shape = (shape[0], self.out_channels, *y_sides)
        y = Layout(y_shape, on_y, [batch, channels.outputs, *outputs], (0, 1, *spatial))
        weight, bias = self.learnt_layouts(
            channels, (self.in_channels, self.out_channels // self.groups, *self.kernel)
        )
        self.trims: tuple[int, ...] = ()
        """The lengths by which the full result falls short of this worker's outputs, in torch's order for `pad`: last dimension first."""
        if partition.is_active(self.rank):
            index = partition.index(self.rank)[3:]
            self.trims = tuple(
                trim
                for dim in reversed(range(dims))
                for trim in self._trims(dim, windows.windows[dim + 2][index[dim]], outputs[dim][index[dim]])
            )
        self.exchange: HaloExchange = HaloExchange(self.comm, x, windows, dtype=dtype_name(self.dtype))
        self.compose(module, x, y, weight, bias, window=windows)

    def _read(self, module: _TorchTransposed, dims: int) -> tuple[int, ...]:
        """Read the module's arguments; return the spatial sides of the output."""
        shape = self.input_shape
        self.in_channels, self.out_channels = module.in_channels, module.out_channels
        self.groups = module.groups
        check_channels(shape, self.in_channels, dims)
        self.check_grid("transposed convolution", dims)
        empty_batch = torch.empty(0, *shape[1:], dtype=self.dtype, device=device_of(module))
        sides = tuple(result_of(module, empty_batch).shape[2:])
        self.kernel = per_dim("kernel_size", module.kernel_size, dims)
        self.stride = per_dim("stride", module.stride, dims)
        self.padding = per_dim("padding", cast(Sequence[int], module.padding), dims)
        self.dilation = per_dim("dilation", module.dilation, dims)
        more = per_dim("output_padding", module.output_padding, dims)
        if any(extra >= max(s, d) for extra, s, d in zip(more, self.stride, self.dilation, strict=True)):
            # Torch raises this error, but not for the empty batch.
            raise ValueError(
                f"output padding must be smaller than either stride or dilation, but got output_padding: {more} stride: "
                f"{self.stride} dilation: {self.dilation}"
            )
        self.kernel_reach = tuple(d * (k - 1) for d, k in zip(self.dilation, self.kernel, strict=True))
        # As for the convolution: in single precision libraries choose the algorithm by the shape, which a cut changes.
        self.rounding = 0.0 if self.dtype == torch.float64 else 2.0**-18
        return sides

    def inputs_of(self, outputs: Sequence[tuple[Window, ...]], x: Layout) -> Layout:
        """Return the windows of x that contribute to the windows of outputs in the spatial dimensions."""
        return _needed(x, tuple(outputs), self.stride, self.padding, self.kernel_reach)

    def _trims(self, dim: int, inputs: Window, outputs: Window) -> tuple[int, int]:
        """Return the lengths by which the full result of these inputs must be extended, left and right, to be these outputs."""
        first, last = inputs[0] * self.stride[dim], (inputs[1] - 1) * self.stride[dim]
        start, stop = (position + self.padding[dim] for position in outputs)
        return first - start, stop - (last + self.kernel_reach[dim] + 1)

    def summand(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        transposed = function_of_dims("conv_transpose", len(self.stride))
        if 0 in (x.numel(), weight.numel(), *self.local_output_shape) or not self.trims:
            y = of_nothing(self.local_output_shape, transposed, x, weight)
        else:
            x, groups, other_outputs = self.own_groups(x)
            y = transposed(x, weight, None, self.stride, 0, 0, groups, self.dilation)
            y = functional.pad(y, (*self.trims, *other_outputs))
        if bias is None or bias.numel() == 0:
            return y if bias is None else connected(y, bias)
        return y + bias.reshape(-1, *(1,) * len(self.stride))


@lru_cache(maxsize=64)  # linear in the number of workers, and called by every rank
def _needed(
    x: Layout,
    outputs: tuple[tuple[Window, ...], ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    kernel_reach: tuple[int, ...],
) -> Layout:
    """The windows of x that contribute to the windows of outputs in the spatial dimensions."""
    lead = x.order - len(outputs)
    needed = [
        [_contributing(window, side, s, p, reach) for window in along]
        for along, side, s, p, reach in zip(
            outputs, x.shape[lead:], stride, padding, kernel_reach, strict=True
        )
    ]
    return Layout(x.shape, x.partition, [*x.windows[:lead], *needed], x.axes)


def _contributing(outputs: Window, side: int, stride: int, padding: int, kernel_reach: int) -> Window:
    """The inputs that contribute to a range of outputs in a spatial dimension."""
    first, last = (position + padding for position in (outputs[0], outputs[1] - 1))
    start = max(0, -(-(first - kernel_reach) // stride))
    stop = min(side, last // stride + 1)
    return (start, stop) if start < stop and outputs[0] < outputs[1] else (0, 0)


class ConvTranspose1d(TransposedConvolution, torch_classes=(nn.ConvTranspose1d,)):
    """`torch.nn.ConvTranspose1d` over P_n x P_co x P_ci x P_0; see :class:`TransposedConvolution`."""


class ConvTranspose2d(TransposedConvolution, torch_classes=(nn.ConvTranspose2d,)):
    """`torch.nn.ConvTranspose2d` over P_n x P_co x P_ci x P_1 x P_0; see :class:`TransposedConvolution`."""


class ConvTranspose3d(TransposedConvolution, torch_classes=(nn.ConvTranspose3d,)):
    """`torch.nn.ConvTranspose3d` over P_n x P_co x P_ci x P_2 x P_1 x P_0; see :class:`TransposedConvolution`."""
