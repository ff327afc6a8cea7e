"""Distributed pooling [Hewett21, figure 3 and appendix B]: y = POOL(x) over a partition P = P_b x P_c x P_spatial.

    forward    x ← H x                          halo exchange over P_spatial
               y = POOL(x)                       on each worker
    adjoint    δx = [δPOOL]*(δy)
               δx ← H* δx

The output is balanced, and the halos follow: where the stride is above the kernel size, or the output's cut lies elsewhere
than the input's, some halos are negative and the input is trimmed. Whatever of a window lies beyond the tensor can never
be the largest element, so max pooling takes -∞ there; average pooling takes the zeros that the exchange leaves there, and
divides each sum by the number of elements that the *global* position of its window says.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import torch
from torch import nn
from torch.nn import functional

from adjointlab.core.layout import Layout, Window
from adjointlab.core.partition import Partition
from adjointlab.core.space import Space, Tensor
from adjointlab.layers.differentiable import carried
from adjointlab.layers.distributed import DistributedModule, dtype_name, of_nothing
from adjointlab.layers.sizes import Sides, each, times
from adjointlab.primitives.halo_exchange import HaloExchange
from adjointlab.primitives.halo_geometry import HaloGeometry

__all__ = [
    "AveragePooling",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
    "MaxPooling",
    "Pooling",
]


class Pooling(DistributedModule):
    """What max and average pooling share: the geometry of their windows, and the exchange.

    Input (n, channels, *sides), or (channels, *sides), and output lie over `partition`, whose order is that of the
    input; the input is balanced, and so is the output. A worker without outputs returns a tensor of zero volume.

    Raises `ValueError`, with torch's words, for what torch rejects: a kernel, stride or dilation below 1, negative
    padding or more than half of the kernel, windows that do not fit into the padded input, an input without channels
    or elements; and for a partition of another order.
    """

    dims: ClassVar[int]
    module: ClassVar[Any]
    names: ClassVar[tuple[str, ...]]
    """Of the sequential module's arguments, which are attributes of both."""
    holds_padding: ClassVar[bool]
    """Whether what lies beyond the tensor comes with the exchange, as zeros."""

    def __init__(
        self,
        comm: Any,
        partition: Partition,
        input_shape: Sequence[int],
        *,
        kernel_size: Sides,
        stride: Sides | None,
        padding: Sides,
        dilation: Sides,
        ceil_mode: bool,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__(comm, partition)
        shape, dims = tuple(input_shape), self.dims
        self.kernel_size = each("kernel_size", kernel_size, dims)
        if stride is None or (isinstance(stride, Sequence) and not stride):
            stride = self.kernel_size
        self.stride = each("stride", stride, dims)
        self.padding = each("padding", padding, dims)
        self.dilation = each("dilation", dilation, dims)
        self.ceil_mode = ceil_mode
        self._check_input(shape)
        self._check_window()
        lead, sides = shape[:-dims], shape[-dims:]
        self.spans = tuple(d * (k - 1) + 1 for k, d in zip(self.kernel_size, self.dilation, strict=True))
        lengths = tuple(map(self._length, range(dims), sides))
        if min(lengths) < 1:
            raise ValueError(
                f"Given input size: ({times(shape[-dims - 1 :])}). Calculated output size: "
                f"({times((shape[-dims - 1], *lengths))}). Output size is too small"
            )
        name = dtype_name(dtype or torch.get_default_dtype())
        x = Layout(shape, partition)
        reach = [  # how far the last window leads out of the tensor, which with ceil_mode may be beyond the padding
            max(0, (m - 1) * s - p + span - n)
            for m, s, p, span, n in zip(lengths, self.stride, self.padding, self.spans, sides, strict=True)
        ]
        kept = (1,) * len(lead)
        geometry = HaloGeometry.from_kernel(
            x,
            (*kept, *self.kernel_size),
            stride=(*kept, *self.stride),
            dilation=(*kept, *self.dilation),
            padding=((0, 0),) * len(lead) + tuple(zip(self.padding, reach, strict=True)),
            output_cuts=(*(x.ends(dim) for dim in range(len(lead))), *(None,) * dims),
        )
        assert geometry.output is not None
        y = geometry.output
        assert y.shape[-dims:] == lengths
        window = geometry.window if self.holds_padding else _filled(geometry)
        self.exchange = HaloExchange(comm, x, window, dtype=name)
        self.made = y.local_shape(self.rank)
        self.window: tuple[Window, ...] = ()
        """Of the tensor, in the spatial dimensions, what this worker pools."""
        self.outside = ((0, 0),) * dims
        """How far its windows lead out of the tensor, left and right."""
        self.outputs: tuple[Window, ...] = ((0, 0),) * dims
        if partition.is_active(self.rank):
            index = partition.index(self.rank)
            spatial = [(dim, index[dim]) for dim in range(len(lead), len(shape))]
            self.window = tuple(window.windows[dim][i] for dim, i in spatial)
            self.outside = tuple(geometry.padding(dim, i) for dim, i in spatial)
            self.outputs = tuple(y.windows[dim][i] for dim, i in spatial)
        self.domain, self.codomain = Space(x, dtype=name), Space(y, dtype=name, name="y")

    def sequential(self) -> nn.Module:
        """The sequential module with the same arguments."""
        module: nn.Module = self.module(**{name: getattr(self, name) for name in self.names})
        return module

    @classmethod
    def from_sequential(
        cls,
        module: nn.Module,
        comm: Any,
        partition: Partition,
        input_shape: Sequence[int],
        dtype: torch.dtype | None = None,
    ) -> Self:
        """The distributed layer with the arguments of `module`, in its mode, for inputs of element type `dtype`.

        Raises `ValueError` for a module of another class.
        """
        cls.check_sequential(module, cls.module)
        given = {name: getattr(module, name) for name in cls.names}
        return cls(comm, partition, input_shape, **given, dtype=dtype).train(module.training)

    def _has_outputs(self, x: torch.Tensor) -> bool:
        return 0 not in (*self.made, x.numel())

    def _length(self, dim: int, side: int) -> int:
        """How many windows there are. With ceil_mode the last may be in part beyond the padding, but starts before it."""
        span, stride, padding = self.spans[dim], self.stride[dim], self.padding[dim]
        free = side + 2 * padding - span
        if not self.ceil_mode:
            return free // stride + 1
        length = -(-free // stride) + 1
        return length - 1 if (length - 1) * stride >= side + padding else length

    def _check_input(self, shape: tuple[int, ...]) -> None:
        if len(shape) not in (self.dims + 1, self.dims + 2):
            raise ValueError(
                f"Expected {self.dims + 1}D or {self.dims + 2}D (batch mode) tensor with optional 0 dim batch size for "
                f"input, but got:{list(shape)}"
            )
        if 0 in shape[-self.dims - 1 :]:
            raise ValueError(
                "Expected input's non-batch dimensions to have positive length, but input has a shape of "
                f"{list(shape)}"
            )
        self.check_order(shape)

    def _check_window(self) -> None:
        for what, values in (
            ("kernel size", self.kernel_size),
            ("stride", self.stride),
            ("dilation", self.dilation),
        ):
            if min(values) < 1:
                raise ValueError(f"{what} should be greater than zero, but got {times(values)}")
        for padding, kernel in zip(self.padding, self.kernel_size, strict=True):
            if padding < 0:
                raise ValueError(f"pad must be non-negative, but got pad: {padding}")
            if padding > kernel // 2:
                raise ValueError(
                    f"padding should be at most half of kernel size, but got padding={padding} and kernel_size={kernel}"
                )


class MaxPooling(Pooling):
    """`torch.nn.MaxPool1d`, `2d` or `3d` over `partition`; see :class:`Pooling`. The other arguments are torch's.

    With `return_indices` the result is (y, indices), indices being those in the global input, as torch gives them.
    Of equal elements the first counts, and NaN is larger than everything, as in torch.
    """

    holds_padding = False
    names = ("kernel_size", "stride", "padding", "dilation", "return_indices", "ceil_mode")

    def __init__(
        self,
        comm: Any,
        partition: Partition,
        input_shape: Sequence[int],
        kernel_size: Sides,
        stride: Sides | None = None,
        padding: Sides = 0,
        dilation: Sides = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            comm,
            partition,
            input_shape,
            kernel_size=kernel_size,
            stride=stride,
            padding=padding,
            dilation=dilation,
            ceil_mode=ceil_mode,
            dtype=dtype,
        )
        self.return_indices = return_indices
        if return_indices:
            (y,) = self.codomain.tensors
            self.codomain = Space(y, Tensor(y.layout, "int64", name="indices"))

    def forward(self, x: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """The local tensor of y, from that of x; with `return_indices` (y, indices).

        Raises `ValueError` on every rank where one of them has a tensor of another shape or element type.
        """
        (x,) = self.check_inputs(x)
        x = carried(self.exchange, x)
        pool: Any = (functional.max_pool1d, functional.max_pool2d, functional.max_pool3d)[self.dims - 1]
        if not self._has_outputs(x):
            y = of_nothing(self.made, lambda zero: pool(zero, 1), x)
            return (y, y.new_zeros(self.made, dtype=torch.int64)) if self.return_indices else y
        # On the left the padding is torch's own, which is never chosen: of a window that holds nothing but -∞, the first
        # element of the tensor is. On the right there is as much of it, and -∞ for the rest, which never comes first.
        # A dilated window can miss a tensor that is smaller than its gaps; torch then chooses an element beyond the
        # padded tensor, and its backward pass writes there. With -∞ for all the padding on the right it is in bounds.
        left = tuple(before for before, _ in self.outside)
        right = [
            after if dilation > 1 else max(0, after - before)
            for (before, after), dilation in zip(self.outside, self.dilation, strict=True)
        ]
        if any(right):
            x = functional.pad(x, [side for after in reversed(right) for side in (0, after)], value=-math.inf)
        if not self.return_indices:
            return self._without_excess(pool(x, self.kernel_size, self.stride, left, self.dilation))
        y, indices = pool(x, self.kernel_size, self.stride, left, self.dilation, return_indices=True)
        return self._without_excess(y), self._globally(self._without_excess(indices), x.shape[-self.dims :])

    def _without_excess(self, y: torch.Tensor) -> torch.Tensor:
        """Without the windows that torch's padding on the right lets in."""
        for dim, side in enumerate(self.made[-self.dims :], start=-self.dims):
            y = y.narrow(dim, 0, side)
        return y

    def _globally(self, indices: torch.Tensor, sides: Sequence[int]) -> torch.Tensor:
        """Of positions in the local tensor, those in the global one."""
        result = torch.zeros_like(indices)
        whole = self.domain.tensors[0].layout.shape[-self.dims :]
        for dim, (start, _) in enumerate(self.window):
            local = indices // math.prod(sides[dim + 1 :]) % sides[dim]
            result += (local + start) * math.prod(whole[dim + 1 :])
        return result


class AveragePooling(Pooling):
    """`torch.nn.AvgPool1d`, `2d` or `3d` over `partition`; see :class:`Pooling`. The other arguments are torch's.

    The divisor of an output follows from where its window lies in the global tensor: the volume of the window clipped
    to the padded input, or without `count_include_pad` to the input, or else `divisor_override`.
    """

    holds_padding = True
    names: ClassVar[tuple[str, ...]] = (
        "kernel_size",
        "stride",
        "padding",
        "ceil_mode",
        "count_include_pad",
        "divisor_override",
    )
    count: torch.Tensor

    def __init__(
        self,
        comm: Any,
        partition: Partition,
        input_shape: Sequence[int],
        kernel_size: Sides,
        stride: Sides | None = None,
        padding: Sides = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            comm,
            partition,
            input_shape,
            kernel_size=kernel_size,
            stride=stride,
            padding=padding,
            dilation=1,
            ceil_mode=ceil_mode,
            dtype=dtype,
        )
        if divisor_override == 0:
            raise ValueError("divisor must be not zero")
        sides = tuple(input_shape)[-self.dims :]
        if self.dims == 3 and any(n < k for n, k in zip(sides, self.kernel_size, strict=True)):
            # Padding does not help: torch says so of this layer alone.
            raise ValueError(
                f"input image (T: {sides[0]} H: {sides[1]} W: {sides[2]}) smaller than kernel size "
                f"(kT: {self.kernel_size[0]} kH: {self.kernel_size[1]} kW: {self.kernel_size[2]})"
            )
        self.count_include_pad, self.divisor_override = count_include_pad, divisor_override
        counts = [self._counts(dim, sides[dim]) for dim in range(self.dims)]
        if divisor_override is not None:
            counts = [[1] * len(each) for each in counts]
            counts[0] = [divisor_override] * len(counts[0])
        element = getattr(torch, self.domain.tensors[0].dtype)
        count = torch.ones((), dtype=element)
        for along, (first, last) in zip(counts, self.outputs, strict=True):
            count = count[..., None] * torch.tensor(along[first:last], dtype=element)
        self.register_buffer("count", count, persistent=False)
        if any(abs(c).bit_count() != 1 for each in counts for c in each):
            # A quotient is rounded, and a gradient is the sum of as many as there are windows over an element, in
            # another order than torch's. The quotients are not larger than the lab's integers, up to 4, and may cancel.
            seen = math.prod(-(-k // s) for k, s in zip(self.kernel_size, self.stride, strict=True))
            self.rounding, self.reach = 8 * seen * torch.finfo(element).eps, 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The local tensor of y, from that of x.

        Raises `ValueError` on every rank where one of them has a tensor of another shape or element type.
        """
        (x,) = self.check_inputs(x)
        x = carried(self.exchange, x)
        if self._has_outputs(x):
            y = self._sums(x, self.kernel_size, self.stride)
        else:
            y = of_nothing(self.made, lambda zero: self._sums(zero, *((1,) * self.dims,) * 2), x)
        return y / self.count

    def _sums(self, x: torch.Tensor, kernel: tuple[int, ...], stride: tuple[int, ...]) -> torch.Tensor:
        """Of the elements in each window."""
        if self.dims == 3:
            return functional.avg_pool3d(x, kernel, stride, divisor_override=1)
        if self.dims == 2:
            return functional.avg_pool2d(x, kernel, stride, divisor_override=1)
        # In one dimension torch takes no divisor.
        plane = x.unsqueeze(-2)
        return functional.avg_pool2d(plane, (1, *kernel), (1, *stride), divisor_override=1).squeeze(-2)

    def _counts(self, dim: int, side: int) -> list[int]:
        """The number of elements that each output of a dimension counts."""
        kernel, stride, padding = self.kernel_size[dim], self.stride[dim], self.padding[dim]
        counts = []
        for output in range(self.codomain.tensors[0].layout.shape[dim - self.dims]):
            start = output * stride - padding
            stop = min(start + kernel, side + padding)
            counts.append(stop - start if self.count_include_pad else min(stop, side) - max(start, 0))
        return counts


class MaxPool1d(MaxPooling):
    """`torch.nn.MaxPool1d` over P_b x P_c x P_0; see :class:`MaxPooling`."""

    dims, module = 1, nn.MaxPool1d


class MaxPool2d(MaxPooling):
    """`torch.nn.MaxPool2d` over P_b x P_c x P_1 x P_0; see :class:`MaxPooling`."""

    dims, module = 2, nn.MaxPool2d


class MaxPool3d(MaxPooling):
    """`torch.nn.MaxPool3d` over P_b x P_c x P_2 x P_1 x P_0; see :class:`MaxPooling`."""

    dims, module = 3, nn.MaxPool3d


class AvgPool1d(AveragePooling):
    """`torch.nn.AvgPool1d` over P_b x P_c x P_0; see :class:`AveragePooling`. It has no `divisor_override`."""

    dims, module = 1, nn.AvgPool1d
    names = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad")

    def __init__(
        self,
        comm: Any,
        partition: Partition,
        input_shape: Sequence[int],
        kernel_size: Sides,
        stride: Sides | None = None,
        padding: Sides = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            comm,
            partition,
            input_shape,
            kernel_size,
            stride,
            padding,
            ceil_mode,
            count_include_pad,
            dtype=dtype,
        )


class AvgPool2d(AveragePooling):
    """`torch.nn.AvgPool2d` over P_b x P_c x P_1 x P_0; see :class:`AveragePooling`."""

    dims, module = 2, nn.AvgPool2d


class AvgPool3d(AveragePooling):
    """`torch.nn.AvgPool3d` over P_b x P_c x P_2 x P_1 x P_0; see :class:`AveragePooling`."""

    dims, module = 3, nn.AvgPool3d


def _filled(geometry: HaloGeometry) -> Layout:
    """The windows of a geometry, clipped to the tensor."""
    bulk = geometry.bulk
    windows = [
        [geometry.filled(dim, worker) for worker in range(len(each))]
        for dim, each in enumerate(geometry.window.windows)
    ]
    return Layout(bulk.shape, bulk.partition, windows, bulk.axes)
