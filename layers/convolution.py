"""The distributed convolution [Hewett21, figure 4]: y = w * x + b over a partition P = P_n x P_co x P_ci x P_spatial.

    forward    x ← H x                                                     halo exchange over P_spatial
               x̂ = B_{P_x→P} x    ŵ = B_{P_w→P} w    b̂ = B_{P_b→P_y} b
               ŷ = Conv(x̂, ŵ) + b̂                                       on each worker
               y = R_{P→P_y} ŷ
    adjoint    δŷ = R* δy    (δx̂, δŵ, δb̂) = Conv* δŷ    δx = H* B* δx̂    δw = B* δŵ    δb = B* δb̂

P_n cuts the batch, P_co and P_ci the output and input channels. The workers that hold a tensor are those of P with index 0 along
    P_x    P_co
    P_y    P_ci
    P_w    P_n and P_spatial
    P_b    P_n, P_spatial and P_ci
Small ŵ and b̂ for the same workers are sent in one message (:mod:`adjointlab.layers.coalesced_broadcast`).
A partition that cuts only spatial dimensions, or only channels, needs no separate algorithm: the operators that have nothing
to move are skipped.

The output is cut evenly, which determines the windows of the input. Along a dimension that is not cut the window is the bulk,
and torch's convolution pads it, without a copy, if both sides have the same padding. With kernel 3, stride 1 and padding 1, over three
workers (| bulk, [ ] window):

        pad  0  1  2 | 3  4  5 | 6  7 pad
        [------------------]                  outputs 0 to 2 of worker 0: one padding, bulk, right halo
                  [------------------]        outputs 3 to 5 of worker 1: left halo, bulk, right halo
                            [------------]    outputs 6 and 7 of worker 2: left halo, bulk, one padding
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from adjointlab.core.layout import Layout, balanced_windows
from adjointlab.layers.channels import ChannelModule
from adjointlab.layers.convolution_module import ConvolutionModule
from adjointlab.layers.differentiable import carried, connected, of_nothing
from adjointlab.layers.grids import with_index_zero
from adjointlab.layers.overlap import OverlappedConvolution
from adjointlab.primitives.halo_exchange import HaloExchange

__all__ = ["Conv1d", "Conv2d", "Conv3d", "Convolution"]


class Convolution(ConvolutionModule, ChannelModule, torch_classes=(nn.Conv1d, nn.Conv2d, nn.Conv3d)):
    """`torch.nn.Conv1d`, `2d` or `3d` over `partition` = P_n x P_co x P_ci x P_spatial, for inputs of `input_shape`.

    Made from a torch module, or a :class:`~adjointlab.layers.padded.Padded` one; :class:`Conv1d`, :class:`Conv2d` and :class:`Conv3d` also
    from torch's arguments, with a `padding` that may be (left, right) in each dimension, up to dilation * (kernel size - 1).

    The input (n, in_channels, *sides) is cut over P_n, P_ci and P_spatial, on the workers whose index along P_co is 0; the
    output (n, out_channels, *sides) over P_n, P_co and P_spatial, on those whose index along P_ci is 0. All other workers
    take and return tensors of zero volume. The output is balanced.

    With `overlap` the interior is convolved while the halo is exchanged, and in backward the weight's gradient is computed while that of
    the halo is sent: results and messages are the same (:mod:`adjointlab.layers.overlap`). If P_co is cut, it has no effect: the
    broadcast over P_co waits for the halo.

    With `groups` above 1 one of P_co and P_ci must be 1, and the other cuts between groups.

    Raises `ValueError`, with torch's message, for arguments that torch rejects, and for a padding mode other than "zeros" and
    "circular", a partition of another order, and groups over both P_co and P_ci.
    """

    options = ("overlap",)
    overlapped: OverlappedConvolution | None = None

    def lay_out(self, module: nn.Module, *, overlap: bool = False) -> None:
        self.read(module)
        partition, shape, dims = self.partition, self.input_shape, len(self.kernel)
        self.check_grid("convolution", dims)
        channels = self.cut_channels(partition)
        # Dimensions of the partition: 0 the batch, 1 output channels, 2 input channels, from 3 on spatial ones.
        spatial = tuple(range(3, dims + 3))
        batch = balanced_windows(shape[0], partition.shape[0])
        bulk = [balanced_windows(shape[dim + 2], partition.shape[dim + 3]) for dim in range(dims)]
        x = Layout(shape, with_index_zero(partition, 1), [batch, channels.inputs, *bulk], (0, 2, *spatial))
        overlaps = overlap and partition.shape[1] == 1
        geometry = self.windows(x, padded=overlaps)
        assert geometry.output is not None
        y = Layout(
            (shape[0], self.out_channels, *geometry.output.shape[2:]),
            with_index_zero(partition, 2),
            [batch, channels.outputs, *geometry.output.windows[2:]],
            (0, 1, *spatial),
        )
        weight, bias = self.learnt_layouts(
            channels, (self.out_channels, self.in_channels // self.groups, *self.kernel)
        )
        exchange = self.exchange_of(geometry)
        if overlaps and not exchange.is_identity:
            self.overlapped = OverlappedConvolution(exchange, self.kernel, self.stride, self.dilation)
            self.compose(module, x, y, weight, bias)
        else:
            self.exchange: HaloExchange = exchange
            self.compose(module, x, y, weight, bias, window=geometry.window)

    def summand(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        bias_inside: torch.Tensor | None = None
        overlapped = self.overlapped
        if overlapped is not None and (
            self._has_nothing(overlapped.window_size, weight) or torch.is_autocast_enabled(x.device.type)
        ):
            # The same messages without overlap, on this worker only. Workers that overlap exchange in one backward step for x, weight
            # and bias, so here all three must lead back through the exchange, too, whichever gradient is needed.
            learnt = (weight,) if bias is None else (weight, bias)
            x, overlapped = carried(overlapped.exchange, connected(x, *learnt)), None
        if overlapped is None and self._has_nothing(x.numel(), weight):
            tensors = (x, weight) if bias is None else (x, weight, bias)
            y = of_nothing(self.local_output_shape, self.convolve, *tensors)
        else:
            x, groups, other_outputs = self.own_groups(x)
            if bias is not None:
                # If torch's convolution adds the bias, this needs no further pass over y. Every worker passes a bias, if
                # only zeros, so that its gradient is a result of the same backward step on all of them.
                channels = weight.shape[0]
                bias_inside = bias if bias.numel() == channels else connected(x.new_zeros(channels), bias)
            if overlapped is None:
                y = self.convolve(x, weight, bias_inside, groups)
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
