"""The distributed convolution [Hewett21, figure 4]: y = w * x + b over a partition P = P_b x P_co x P_ci x P_spatial.

    forward    x ← H x                                                     halo exchange over P_spatial
               x̂ = B_{P_x→P} x    ŵ = B_{P_w→P} w    b̂ = B_{P_b→P_y} b
               ŷ = Conv(x̂, ŵ) + b̂                                       on each worker, without padding
               y = R_{P→P_y} ŷ
    adjoint    δŷ = R* δy    (δx̂, δŵ, δb̂) = Conv* δŷ    δx = H* B* δx̂    δw = B* δŵ    δb = B* δb̂

P_x is P with P_co = 1, P_y with P_ci = 1, P_w with batch and spatial sides 1, and P_b with P_ci = 1 too. A partition that cuts
features only, or channels only, needs no algorithm of its own: the operators that have nothing to move fall away. The
bias is added where the index along P_ci is 0, so that the sum holds it once.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar, Self, cast

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional

from adjointlab.core.layout import Layout, Window, balanced_cut
from adjointlab.core.partition import Partition
from adjointlab.core.space import Space
from adjointlab.layers.differentiable import carried
from adjointlab.layers.distributed import DistributedModule, connected, dtype_name, face, of_nothing
from adjointlab.layers.sizes import Sides, each, times
from adjointlab.primitives.broadcast import Broadcast
from adjointlab.primitives.halo_exchange import HaloExchange
from adjointlab.primitives.halo_geometry import HaloGeometry
from adjointlab.primitives.sum_reduce import SumReduce

__all__ = ["Conv1d", "Conv2d", "Conv3d", "Convolution", "Padded"]


class Convolution(DistributedModule):
    """`torch.nn.Conv1d`, `2d` or `3d` over `partition` = P_b x P_co x P_ci x P_spatial, for inputs of `input_shape`.

    The input (n, in_channels, *sides) is cut over P_b, P_ci and P_spatial, on the workers whose index along P_co is 0; the
    output (n, out_channels, *sides) over P_b, P_co and P_spatial, on those whose index along P_ci is 0. Everybody else
    takes and returns tensors of zero volume. The output is balanced. The other arguments are torch's; `padding` may also
    give (left, right) in each dimension, up to dilation * (kernel size - 1).

    With `groups` above 1 one of P_co and P_ci must be 1, and the other cuts between groups.

    Raises `ValueError`, with torch's words where torch has some, for arguments that are illegal there, a kernel larger
    than the padded input, a partition of another order, and groups over both P_co and P_ci.
    """

    dims: ClassVar[int]
    module: ClassVar[Any]
    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(
        self,
        comm: Any,
        partition: Partition,
        input_shape: Sequence[int],
        in_channels: int,
        out_channels: int,
        kernel_size: Sides,
        stride: Sides = 1,
        padding: str | Sides | Sequence[Sides] = 0,
        dilation: Sides = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(comm, partition)
        dims = self.dims
        shape = tuple(input_shape)
        if len(shape) != dims + 2 or shape[1] != in_channels:
            raise ValueError(
                f"input_shape: {shape} is not (batch, in_channels = {in_channels}, {dims} spatial sides)"
            )
        if partition.order != dims + 3:
            raise ValueError(
                f"partition: of order {partition.order} ({partition}), but a {dims}-d convolution needs {dims + 3}: batch, "
                f"output channels, input channels, and {dims} spatial dimensions"
            )
        if padding_mode not in ("zeros", "circular"):
            raise ValueError(f"padding_mode: {padding_mode!r} is neither 'zeros' nor 'circular'")
        self.arguments: dict[str, Any] = {
            "in_channels": in_channels,
            "out_channels": out_channels,
            "kernel_size": each("kernel_size", kernel_size, dims),
            "stride": each("stride", stride, dims),
            "dilation": each("dilation", dilation, dims),
            "groups": groups,
            "bias": bias,
        }
        kernel, self.stride, self.dilation = (
            self.arguments[name] for name in ("kernel_size", "stride", "dilation")
        )
        if min(kernel) < 1:
            raise ValueError(f"kernel size should be greater than zero, but got {times(kernel)}")
        for argument in ("stride", "dilation"):
            if min(self.arguments[argument]) < 1:
                raise ValueError(f"non-positive {argument} is not supported")
        self.padding_mode, self.groups = padding_mode, groups
        self.padding = _paddings(padding, kernel, self.stride, self.dilation)
        if padding_mode == "circular" and any(
            max(pad) > side for side, pad in zip(shape[2:], self.padding, strict=True)
        ):
            raise ValueError("Padding value causes wrapping around more than once.")
        padded = [side + sum(pad) for side, pad in zip(shape[2:], self.padding, strict=True)]
        if any(side < d * (k - 1) + 1 for side, d, k in zip(padded, self.dilation, kernel, strict=True)):
            raise ValueError(
                f"Calculated padded input size per channel: ({times(padded, ' x ')}). Kernel size: "
                f"({times(kernel, ' x ')}). Kernel size can't be greater than actual input size"
            )
        whole = self.module(**self.arguments, dtype=dtype)
        name = dtype_name(whole.weight.dtype)
        self.rounding = (
            0.0 if name == "float64" else 2.0**-18
        )  # libraries choose other algorithms for float32
        spatial = tuple(range(3, dims + 3))

        inputs, outputs, self.local_groups = self._channels(partition)
        batch = tuple(_windows(balanced_cut(shape[0], partition.shape[0])))
        cuts = [
            tuple(_windows(balanced_cut(shape[dim + 2], partition.shape[dim + 3]))) for dim in range(dims)
        ]
        x = Layout(shape, face(partition, 1), [batch, inputs, *cuts], (0, 2, *spatial))
        geometry = HaloGeometry.from_kernel(
            x,
            (1, 1, *kernel),
            stride=(1, 1, *self.stride),
            dilation=(1, 1, *self.dilation),
            padding=((0, 0), (0, 0), *self.padding),
            periodic=tuple(range(2, dims + 2)) if padding_mode == "circular" else (),
            output_cuts=(x.ends(0), x.ends(1), *(None,) * dims),
        )
        assert geometry.output is not None
        made = geometry.output
        y_shape = (shape[0], out_channels, *made.shape[2:])
        y_windows = [batch, outputs, *made.windows[2:]]
        y = Layout(y_shape, face(partition, 2), y_windows, (0, 1, *spatial))
        along = 2 if groups > 1 and partition.shape[2] > 1 else 1
        rows = tuple((start * self._per_group, stop * self._per_group) for start, stop in self.local_groups)
        taken = in_channels // groups
        weight = Layout(
            (out_channels, taken, *kernel),
            face(partition, 0, *spatial),
            [rows if groups > 1 else outputs, ((0, taken),) if groups > 1 else inputs]
            + [((0, side),) for side in kernel],
            (along, None if groups > 1 else 2, *(None,) * dims),
        )

        self.exchange = HaloExchange(comm, x, geometry.window, periodic=geometry.periodic, dtype=name)
        self.spread_x = Broadcast(comm, geometry.window, partition, dtype=name, preserve_batch=False)
        self.spread_weight = Broadcast(comm, weight, partition, dtype=name, preserve_batch=False)
        summed = Layout(y_shape, partition, y_windows, y.axes)
        self.sum_y = SumReduce(comm, summed, y.partition, dtype=name, preserve_batch=False)
        self.made = summed.local_shape(self.rank)
        self.spread_bias: Broadcast | None = None
        layouts = {"weight": weight}
        if bias:
            layouts["bias"] = Layout((out_channels,), face(partition, 0, 2, *spatial), [outputs], (1,))
            self.spread_bias = Broadcast(comm, layouts["bias"], y.partition, dtype=name, preserve_batch=False)
        self.domain, self.codomain = Space(x, dtype=name), Space(y, dtype=name, name="y")
        self.own(whole, layouts)

    @classmethod
    def from_sequential(
        cls,
        module: nn.Conv1d | nn.Conv2d | nn.Conv3d,
        comm: Any,
        partition: Partition,
        input_shape: Sequence[int],
    ) -> Self:
        """The distributed layer with the arguments and values of `module`, which every rank has, and in its mode.

        Raises `ValueError` for a module of another class.
        """
        cls.check_sequential(module, cls.module)
        layer = cls(
            comm,
            partition,
            input_shape,
            module.in_channels,
            module.out_channels,
            module.kernel_size,
            module.stride,
            module.padding,
            module.dilation,
            module.groups,
            module.bias is not None,
            module.padding_mode,
            module.weight.dtype,
        )
        layer.load_sequential(module)
        return layer

    def sequential(self) -> nn.Module:
        """The sequential module with the same arguments. Where padding differs left and right, it pads first."""
        even = all(left == right for left, right in self.padding)
        convolution = self.module(
            **self.arguments,
            padding=tuple(left for left, _ in self.padding) if even else 0,
            padding_mode=self.padding_mode,
            dtype=self.weight.dtype,
        )
        if even:
            return cast(nn.Module, convolution)
        return Padded(convolution, self.padding, self.padding_mode)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The local tensor of y, from that of x. Under autocast the local products alone are of the lower precision.

        Raises `ValueError` on every rank where one of them has a tensor of another shape or element type.
        """
        (x,) = self.check_inputs(x)
        x = carried(self.spread_x, carried(self.exchange, x))
        weight = carried(self.spread_weight, self.weight)
        bias = None if self.spread_bias is None or self.bias is None else carried(self.spread_bias, self.bias)
        return carried(self.sum_y, self._convolved(x, weight, bias).to(x.dtype))

    def _convolved(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """This worker's summand of y. The bias has no elements where another worker's summand holds it.

        Every worker gives the function a bias, if only zeros: its gradient is part of one backward step with the others.
        """
        convolve: Any = (functional.conv1d, functional.conv2d, functional.conv3d)[self.dims - 1]
        added: torch.Tensor | None = None
        if not self.partition.is_active(self.rank) or 0 in (x.numel(), weight.numel(), *self.made):
            y = of_nothing(self.made, convolve, *((x, weight) if bias is None else (x, weight, bias)))
        else:
            x, groups, others = self._own_groups(x)
            if (
                bias is not None
            ):  # at once, which costs no pass over y, where it has as many elements as these are channels
                channels = weight.shape[0]
                added = bias if bias.numel() == channels else connected(x.new_zeros(channels), bias)
            y = convolve(x, weight, added, self.stride, 0, self.dilation, groups)
            if any(others):  # the outputs of other groups are other workers' summands
                y = functional.pad(y, (0, 0) * self.dims + others)
        if bias is None or added is bias or bias.numel() == 0:
            return y
        return y + bias.reshape(-1, *(1,) * self.dims)

    def _own_groups(self, x: torch.Tensor) -> tuple[torch.Tensor, int, tuple[int, int]]:
        """The channels of x in this worker's groups, how many groups these are, and the outputs before and after theirs."""
        if self.groups == 1:
            return x, 1, (0, 0)
        index = self.partition.index(self.rank)
        if self.partition.shape[2] > 1:
            first, last = self.local_groups[index[2]]
            return x, last - first, (first * self._per_group, (self.groups - last) * self._per_group)
        first, last = self.local_groups[index[1]]
        taken = self.arguments["in_channels"] // self.groups
        return x[:, first * taken : last * taken], last - first, (0, 0)

    @property
    def _per_group(self) -> int:
        return int(self.arguments["out_channels"]) // self.groups

    def _channels(
        self, partition: Partition
    ) -> tuple[tuple[Window, ...], tuple[Window, ...], tuple[Window, ...]]:
        """How input channels, output channels and groups are cut, over P_ci, P_co, and the one of them that is cut."""
        inputs, outputs = self.arguments["in_channels"], self.arguments["out_channels"]
        co, ci = partition.shape[1:3]
        if self.groups == 1:
            return _windows(balanced_cut(inputs, ci)), _windows(balanced_cut(outputs, co)), ((0, 1),)
        if co > 1 and ci > 1:
            raise ValueError(
                f"groups: {self.groups} groups over {co} workers for output channels and {ci} for input channels; one of "
                "both must be 1"
            )
        if inputs % self.groups:
            raise ValueError("in_channels must be divisible by groups")
        if outputs % self.groups:
            raise ValueError("out_channels must be divisible by groups")
        groups = _windows(balanced_cut(self.groups, max(co, ci)))
        scaled = [
            tuple((start * each, stop * each) for start, stop in groups)
            for each in (inputs // self.groups, outputs // self.groups)
        ]
        return (scaled[0], ((0, outputs),), groups) if ci > 1 else (((0, inputs),), scaled[1], groups)


class Conv1d(Convolution):
    """`torch.nn.Conv1d` over P_b x P_co x P_ci x P_0; see :class:`Convolution`."""

    dims, module = 1, nn.Conv1d


class Conv2d(Convolution):
    """`torch.nn.Conv2d` over P_b x P_co x P_ci x P_1 x P_0; see :class:`Convolution`."""

    dims, module = 2, nn.Conv2d


class Conv3d(Convolution):
    """`torch.nn.Conv3d` over P_b x P_co x P_ci x P_2 x P_1 x P_0; see :class:`Convolution`."""

    dims, module = 3, nn.Conv3d


class Padded(nn.Sequential):
    """A convolution of an input that is padded first, with the convolution's names of parameters."""

    def __init__(self, convolution: nn.Module, padding: Sequence[Sequence[int]], mode: str) -> None:
        super().__init__()
        self.weight: nn.Parameter = convolution.get_parameter("weight")
        self.bias = cast(nn.Parameter | None, convolution.bias)
        self._convolution = [convolution]  # in a list, so that its parameters are not listed twice
        self._sides = [side for pair in reversed(padding) for side in pair]
        self._mode = "constant" if mode == "zeros" else mode

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        convolution = self._convolution[0]
        padded = functional.pad(x, self._sides, mode=self._mode)
        parameters: dict[str, torch.Tensor] = {"weight": self.weight}
        if self.bias is not None:
            parameters["bias"] = self.bias
        return cast(torch.Tensor, functional_call(convolution, parameters, padded))


def _windows(ends: Sequence[int]) -> tuple[Window, ...]:
    return tuple(pairwise(ends))


def _paddings(
    padding: str | Sides | Sequence[Sides],
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
) -> tuple[tuple[int, int], ...]:
    """(left, right) in each dimension."""
    if isinstance(padding, str):
        if padding == "valid":
            return ((0, 0),) * len(kernel)
        if padding != "same":
            raise ValueError(
                f"Invalid padding string '{padding}', should be one of 'valid', 'same', or (left, right) numbers"
            )
        if any(step != 1 for step in stride):
            raise ValueError("padding='same' is not supported for strided convolutions")
        totals = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        return tuple((total // 2, total - total // 2) for total in totals)
    given: Any = padding
    try:
        entries = tuple(given)
    except TypeError:
        entries = (given,)
    if len(entries) not in (1, len(kernel)):
        raise ValueError(
            f"padding must either be a single int, or one int or (left, right) for each of {len(kernel)} dimensions, not "
            f"{padding!r}"
        )
    pairs = [each("padding", entry, 2) for entry in entries] * (len(kernel) if len(entries) == 1 else 1)
    if any(side < 0 for pair in pairs for side in pair):
        raise ValueError("negative padding is not supported")
    return tuple((left, right) for left, right in pairs)
