"""The distributed convolution [Hewett21, figure 4]: y = w * x + b over a partition P = P_n x P_co x P_ci x P_spatial.

    forward    x ← H x                                                     halo exchange over P_spatial
               x̂ = B_{P_x→P} x    ŵ = B_{P_w→P} w    b̂ = B_{P_b→P_y} b
               ŷ = Conv(x̂, ŵ) + b̂                                       on each worker, without padding
               y = R_{P→P_y} ŷ
    adjoint    δŷ = R* δy    (δx̂, δŵ, δb̂) = Conv* δŷ    δx = H* B* δx̂    δw = B* δŵ    δb = B* δb̂

P_n cuts the batch, P_co and P_ci the output and input channels. The workers that hold a tensor are those of P with index 0 along
    P_x    P_co
    P_y    P_ci
    P_w    P_n and P_spatial
    P_b    P_n, P_spatial and P_ci
A partition that cuts spatial dimensions only, or channels only, needs no algorithm of its own: the operators that have nothing
to move fall away.

The output is cut evenly, and the windows of the input follow from it. With kernel 3, stride 1 and padding 1, over three
workers (| bulk, [ ] window):

        pad  0  1  2 | 3  4  5 | 6  7 pad
        [------------------]                  outputs 0 to 2 of worker 0: one padding, bulk, right halo
                  [------------------]        outputs 3 to 5 of worker 1: left halo, bulk, right halo
                            [------------]    outputs 6 and 7 of worker 2: left halo, bulk, one padding
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, cast

import torch
from torch import nn
from torch.nn import functional

from adjointlab.core.layout import Layout, balanced_cut
from adjointlab.layers.channels import ChannelModule, windows_of
from adjointlab.layers.differentiable import carried, connected, of_nothing
from adjointlab.layers.distributed import dtype_name, with_index_zero
from adjointlab.layers.overlap import OverlappedConvolution
from adjointlab.layers.padded import Padded, Paddings, convolution_of, paddings
from adjointlab.layers.torch_modules import per_dim, result_of, spatial_dims
from adjointlab.primitives.halo_exchange import OverlappedHaloExchange
from adjointlab.primitives.halo_geometry import HaloGeometry

__all__ = ["Conv1d", "Conv2d", "Conv3d", "Convolution", "Padded"]

TorchConvolution: TypeAlias = nn.Conv1d | nn.Conv2d | nn.Conv3d


class Convolution(ChannelModule, torch_classes=(nn.Conv1d, nn.Conv2d, nn.Conv3d)):
    """`torch.nn.Conv1d`, `2d` or `3d` over `partition` = P_n x P_co x P_ci x P_spatial, for inputs of `input_shape`.

    Made from a module of torch's, or a :class:`Padded` one; :class:`Conv1d`, :class:`Conv2d` and :class:`Conv3d` also
    from torch's arguments, where `padding` may be (left, right) in each dimension, up to dilation * (kernel size - 1).

    The input (n, in_channels, *sides) is cut over P_n, P_ci and P_spatial, on the workers whose index along P_co is 0; the
    output (n, out_channels, *sides) over P_n, P_co and P_spatial, on those whose index along P_ci is 0. Everybody else
    takes and returns tensors of zero volume. The output is balanced.

    With `overlap` the interior is convolved while the halo is exchanged, and in backward the weight's gradient computed while that of the
    halo is sent: equal results, and equal messages (:mod:`adjointlab.layers.overlap`). Where P_co is cut, it changes nothing: the
    broadcast over P_co waits for the halo.

    With `groups` above 1 one of P_co and P_ci must be 1, and the other cuts between groups.

    Raises `ValueError`, in torch's words, for what torch refuses, and for a padding mode other than "zeros" and
    "circular", a partition of another order, and groups over both P_co and P_ci.
    """

    options = ("overlap",)
    overlapped: OverlappedConvolution | None = None

    def lay_out(self, module: nn.Module, *, overlap: bool = False) -> None:
        partition, shape = self.partition, self.input_shape
        kernel, pads, mode = self._read(module)
        dims = len(kernel)
        if len(shape) != dims + 2 or shape[1] != self.in_channels:
            raise ValueError(
                f"input_shape: {shape} is not (batch, in_channels = {self.in_channels}, {dims} spatial sides)"
            )
        if partition.order != dims + 3:
            raise ValueError(
                f"partition: of order {partition.order} ({partition}), but a {dims}-d convolution needs {dims + 3}: batch, "
                f"output channels, input channels, and {dims} spatial dimensions"
            )
        if mode not in ("zeros", "circular"):
            raise ValueError(f"padding_mode: {mode!r} is neither 'zeros' nor 'circular'")
        if min(self.dilation) < 1:
            # Torch refuses this in these words, but not for the empty batch below.
            raise ValueError("non-positive dilation is not supported")
        result_of(module, torch.empty(0, *shape[1:], dtype=self.dtype))
        # In single precision libraries choose other algorithms (Winograd's, FFT) by the shape, which a cut changes. They may
        # differ by 64 of its units of rounding, 2**-24.
        self.rounding = 0.0 if self.dtype == torch.float64 else 2.0**-18

        channels = self.cut_channels(partition)
        # Dimensions of the partition: 0 the batch, 1 output channels, 2 input channels, from 3 on spatial ones.
        spatial = tuple(range(3, dims + 3))
        batch = windows_of(balanced_cut(shape[0], partition.shape[0]))
        bulk = [windows_of(balanced_cut(shape[dim + 2], partition.shape[dim + 3])) for dim in range(dims)]
        x = Layout(shape, with_index_zero(partition, 1), [batch, channels.inputs, *bulk], (0, 2, *spatial))
        geometry = HaloGeometry.from_kernel(
            x,
            (1, 1, *kernel),
            stride=(1, 1, *self.stride),
            dilation=(1, 1, *self.dilation),
            padding=((0, 0), (0, 0), *pads),
            periodic=tuple(range(2, dims + 2)) if mode == "circular" else (),
            output_cuts=(x.ends(0), x.ends(1), *(None,) * dims),
        )
        assert geometry.output is not None
        y = Layout(
            (shape[0], self.out_channels, *geometry.output.shape[2:]),
            with_index_zero(partition, 2),
            [batch, channels.outputs, *geometry.output.windows[2:]],
            (0, 1, *spatial),
        )
        weight, bias = self.learnt_layouts(
            channels, (self.out_channels, self.in_channels // self.groups, *kernel)
        )
        exchange = OverlappedHaloExchange(
            self.comm, x, geometry.window, periodic=geometry.periodic, dtype=dtype_name(self.dtype)
        )
        if overlap and partition.shape[1] == 1 and not exchange.is_identity:
            self.overlapped = OverlappedConvolution(exchange, kernel, self.stride, self.dilation)
            self.compose(module, x, y, weight, bias)
        else:
            self.exchange = exchange
            self.compose(module, x, y, weight, bias, window=geometry.window)

    def _read(self, module: nn.Module) -> tuple[tuple[int, ...], Paddings, str]:
        """Take over the module's arguments; return its kernel, its padding (left, right) by dimension, and the padding mode."""
        convolution = cast(TorchConvolution, module.convolution if isinstance(module, Padded) else module)
        dims = spatial_dims(convolution)
        kernel = per_dim("kernel_size", convolution.kernel_size, dims)
        self.in_channels, self.out_channels = convolution.in_channels, convolution.out_channels
        self.groups = convolution.groups
        self.stride = per_dim("stride", convolution.stride, dims)
        self.dilation = per_dim("dilation", convolution.dilation, dims)
        if isinstance(module, Padded):
            self.padding, mode = module.padding, module.mode
        else:
            self.padding, mode = (
                paddings(convolution.padding, kernel, self.dilation),
                convolution.padding_mode,
            )
        return kernel, self.padding, mode

    @classmethod
    def torch_module(cls, dtype: torch.dtype | None, *arguments: object, **named: object) -> nn.Module:
        is_module = bool(arguments) and isinstance(arguments[0], nn.Module)
        if is_module or len(cls.torch_classes) > 1:
            return super().torch_module(dtype, *arguments, **named)
        return convolution_of(cls.torch_classes[0], *arguments, dtype=dtype, **named)

    @classmethod
    def check_sequential(cls, module: nn.Module) -> None:
        super().check_sequential(module.convolution if isinstance(module, Padded) else module)

    def summand(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        convolve: Callable[..., torch.Tensor] = (functional.conv1d, functional.conv2d, functional.conv3d)[
            len(self.stride) - 1
        ]
        bias_inside: torch.Tensor | None = None
        overlapped = self.overlapped
        if overlapped is not None and (
            self._has_nothing(overlapped.window_size, weight) or torch.is_autocast_enabled(x.device.type)
        ):
            # The same messages, one after the other: here only, whatever other workers do.
            x, overlapped = carried(overlapped.exchange, x), None
        if overlapped is None and self._has_nothing(x.numel(), weight):
            tensors = (x, weight) if bias is None else (x, weight, bias)
            y = of_nothing(self.local_output_shape, convolve, *tensors)
        else:
            x, groups, other_outputs = self.own_groups(x)
            if bias is not None:
                # Added by torch's convolution, the bias costs no pass over y of its own. Every worker gives one, if
                # only zeros: its gradient is then a result of the same backward step on all of them.
                channels = weight.shape[0]
                bias_inside = bias if bias.numel() == channels else connected(x.new_zeros(channels), bias)
            if overlapped is None:
                y = convolve(x, weight, bias_inside, self.stride, 0, self.dilation, groups)
            else:
                y = overlapped(x, weight, bias_inside, groups)
            if any(other_outputs):  # the outputs of other groups are other workers' summands
                y = functional.pad(y, (0, 0) * len(self.stride) + other_outputs)
        if bias is None or bias_inside is bias or bias.numel() == 0:
            return y
        return y + bias.reshape(-1, *(1,) * len(self.stride))

    def _has_nothing(self, window_size: int, weight: torch.Tensor) -> bool:
        """Return True on a worker that has no element of the window, of the weight, or of y."""
        is_active = self.partition.is_active(self.rank)
        return not is_active or 0 in (window_size, weight.numel(), *self.local_output_shape)


class Conv1d(Convolution, torch_classes=(nn.Conv1d,)):
    """`torch.nn.Conv1d` over P_n x P_co x P_ci x P_0; see :class:`Convolution`."""


class Conv2d(Convolution, torch_classes=(nn.Conv2d,)):
    """`torch.nn.Conv2d` over P_n x P_co x P_ci x P_1 x P_0; see :class:`Convolution`."""


class Conv3d(Convolution, torch_classes=(nn.Conv3d,)):
    """`torch.nn.Conv3d` over P_n x P_co x P_ci x P_2 x P_1 x P_0; see :class:`Convolution`."""
