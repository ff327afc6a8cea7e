"""Cases of max, average and power-average pooling, and of unpooling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from torch import nn

from adjointlab.core import strategies
from adjointlab.core.layout import Window
from adjointlab.layers.pooling import (
    AvgPool1d,
    AvgPool2d,
    AvgPool3d,
    LPPool1d,
    LPPool2d,
    LPPool3d,
    MaxPool1d,
    MaxPool2d,
    MaxPool3d,
    MaxUnpool1d,
    MaxUnpool2d,
    MaxUnpool3d,
    MaxUnpooling,
)
from adjointlab.layers.subjects.common import (
    Arguments,
    batches,
    dtypes,
    layer_of,
    layer_subject,
    twin_of,
    with_legal_input,
)
from adjointlab.typing import Communicator

__all__ = ["average_pools", "max_pools", "max_unpools", "power_average_pools", "unpool", "with_legal_indices"]


def _pooling_arguments(draw: DrawFn, ranks: int, dims: int, *, dilated: bool) -> Arguments:
    """Windows apart, side by side and overlapping; padding up to half of the kernel; with ceil_mode, beyond it."""
    largest = 5 if dims == 1 else 3
    kernel = tuple(draw(st.integers(1, largest)) for _ in range(dims))
    stride = tuple(draw(st.integers(1, largest)) for _ in range(dims)) if draw(st.booleans()) else None
    padding = tuple(draw(st.integers(0, k // 2)) for k in kernel)
    dilation = tuple(draw(st.integers(1, 3 if dilated else 1)) for _ in range(dims))
    ceil_mode = draw(st.booleans())
    sides = []
    for k, s, p, d in zip(kernel, stride or kernel, padding, dilation, strict=True):
        least = max(1, d * (k - 1) + 1 - 2 * p - (s - 1 if ceil_mode else 0))
        if d > 1 and p:  # torch's own gradient writes beyond the tensor where a window misses it
            least = max(least, d)
        if dims == 3 and not dilated:  # torch's average in three dimensions asks for more than the others
            least = max(least, k)
        sides.append(draw(st.integers(least, least + (10 if dims == 1 else 4))))
    batch = (draw(batches),) if draw(st.integers(0, 4)) else ()
    arguments = {
        "dims": dims,
        "partition": draw(strategies.partitions(ranks, dims + 1 + len(batch), whole=False)),
        "input_shape": (*batch, draw(st.integers(1, 3)), *sides),
        "kernel_size": kernel,
        "stride": stride,
        "padding": padding,
        "ceil_mode": ceil_mode,
        "dtype": draw(dtypes),
    }
    return {**arguments, "dilation": dilation} if dilated else arguments


def _negative(x: torch.Tensor) -> tuple[torch.Tensor]:
    """Shift the lab's integers, from -4 to 4, below zero: then a zero in the padding would be the largest."""
    return (x - 5,)


@layer_subject(
    layer=layer_of(MaxPool1d, MaxPool2d, MaxPool3d),
    sequential=twin_of(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d),
    prepare=_negative,
    name="MaxPooling",
)
def max_pools(draw: DrawFn, ranks: int) -> Arguments:
    """One to three dimensions, with dilation, or with the indices; negative data, with many equal ones."""
    arguments = _pooling_arguments(draw, ranks, draw(st.integers(1, 3)), dilated=True)
    return {**arguments, "return_indices": draw(st.booleans())}


@layer_subject(
    layer=layer_of(AvgPool1d, AvgPool2d, AvgPool3d),
    sequential=twin_of(nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
    name="AveragePooling",
)
def average_pools(draw: DrawFn, ranks: int) -> Arguments:
    """One to three dimensions, and every way to count; often with divisors that keep the arithmetic exact."""
    dims = draw(st.integers(1, 3))
    arguments = _pooling_arguments(draw, ranks, dims, dilated=False)
    arguments["count_include_pad"] = draw(st.booleans())
    if dims > 1:
        arguments["divisor_override"] = draw(st.sampled_from((None, None, 1, 8, 3, -2)))
    return arguments


def _positive(x: torch.Tensor) -> tuple[torch.Tensor]:
    """Shift the lab's integers above zero: sums of odd powers have no root if they are negative, and no derivative at 0."""
    return (x + 5,)


@layer_subject(
    layer=layer_of(LPPool1d, LPPool2d, LPPool3d),
    sequential=twin_of(nn.LPPool1d, nn.LPPool2d, nn.LPPool3d),
    prepare=_positive,
    name="LPPooling",
)
def power_average_pools(draw: DrawFn, ranks: int) -> Arguments:
    """One to three dimensions, without padding; powers that are whole, and not."""
    dims = draw(st.integers(1, 3))
    arguments = _pooling_arguments(draw, ranks, dims, dilated=False)
    padding, shape = arguments.pop("padding"), arguments["input_shape"]
    assert isinstance(padding, tuple)
    assert isinstance(shape, tuple)
    sides = (side + 2 * each for side, each in zip(shape[-dims:], padding, strict=True))
    kernel = arguments["kernel_size"]
    assert isinstance(kernel, tuple)
    return {
        **arguments,
        "input_shape": (*shape[:-dims], *sides),
        # Torch takes a number in one dimension.
        "kernel_size": kernel[0] if dims == 1 else kernel,
        "norm_type": draw(st.sampled_from((2.0, 1.0, 3.0, 2.5))),
    }


class _Unpool(nn.Module):
    """Torch's unpooling with the size of the output as an argument of the module."""

    def __init__(self, module: nn.Module, output_size: tuple[int, ...] | None) -> None:
        super().__init__()
        self.module, self.output_size = module, output_size

    def forward(self, x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        """The unpooled tensor."""
        y: torch.Tensor = self.module(
            x, indices, None if self.output_size is None else list(self.output_size)
        )
        return y


def with_legal_indices(
    layer: nn.Module, sides: Sequence[int], windows: Sequence[Window] | None, *, mirrored: bool, **case: Any
) -> nn.Module:
    """Return the layer, with distinct indices: each in the window of its input, or the position of that in the mirrored output.

    `windows` are those of the layer's input in the spatial dimensions (`None` on a rank that has none), `sides` the output's.
    """

    def legal(drawn: torch.Tensor) -> torch.Tensor:
        index = torch.zeros_like(drawn)
        kernels, strides = case["kernel_size"], case["stride"] or case["kernel_size"]
        for dim, (start, stop) in enumerate(windows or ()):
            first = torch.arange(start, stop, device=drawn.device) * strides[dim] - case["padding"][dim]
            along = first.reshape(-1, *(1,) * (len(sides) - dim - 1)) + (drawn + dim) % kernels[dim]
            along = along.clamp(0, sides[dim] - 1)
            index += (sides[dim] - 1 - along if mirrored else along) * math.prod(sides[dim + 1 :])
        return index

    return with_legal_input(layer, legal)


_UNPOOLS = (MaxUnpool1d, MaxUnpool2d, MaxUnpool3d)


def unpool(
    comm: Communicator, *, kinds: Sequence[type[MaxUnpooling]] = _UNPOOLS, mirrored: bool, **case: Any
) -> nn.Module:
    """Return an unpooling layer that gets legal indices."""
    made = layer_of(*kinds)(comm, **case)
    assert isinstance(made, MaxUnpooling)
    x, y = made.domain.tensors[0].layout, made.codomain.tensors[0].layout
    window = x.window(comm.Get_rank())
    spatial = None if window is None else window[-made.dims :]
    return with_legal_indices(made, y.shape[-made.dims :], spatial, mirrored=mirrored, **case)


def _sequential_unpool(*, mirrored: bool, input_shape: tuple[int, ...], dims: int, **case: Any) -> nn.Module:
    module = twin_of(nn.MaxUnpool1d, nn.MaxUnpool2d, nn.MaxUnpool3d)(dims=dims, **case)
    given = case["output_size"]
    strides = case["stride"] or case["kernel_size"]
    whole = input_shape[-dims:]
    sides = given or [
        (side - 1) * s + k - 2 * p
        for side, s, k, p in zip(whole, strides, case["kernel_size"], case["padding"], strict=True)
    ]
    twin = _Unpool(module, given)
    return with_legal_indices(twin, sides, [(0, side) for side in whole], mirrored=mirrored, **case)


@layer_subject(layer=unpool, sequential=_sequential_unpool, name="MaxUnpooling")
def max_unpools(draw: DrawFn, ranks: int) -> Arguments:
    """One to three dimensions, windows side by side or apart; each element near where it came from, or at the other end."""
    dims = draw(st.integers(1, 3))
    kernel = tuple(draw(st.integers(1, 3)) for _ in range(dims))
    stride = tuple(k + draw(st.integers(0, 2)) for k in kernel) if draw(st.booleans()) else None
    padding = tuple(draw(st.integers(0, (k - 1) // 2)) for k in kernel)
    sides = tuple(draw(st.integers(1, (7, 4, 3)[dims - 1])) for _ in range(dims))
    batch = (draw(batches),) if draw(st.integers(0, 4)) else ()
    sizes = zip(sides, stride or kernel, kernel, padding, strict=True)
    longer = tuple((side - 1) * s + k - 2 * p + draw(st.integers(0, s - 1)) for side, s, k, p in sizes)
    return {
        "dims": dims,
        "partition": draw(strategies.partitions(ranks, dims + 1 + len(batch), whole=False)),
        "input_shape": (*batch, draw(st.integers(1, 3)), *sides),
        "kernel_size": kernel,
        "stride": stride,
        "padding": padding,
        "output_size": longer if draw(st.booleans()) else None,
        "mirrored": draw(st.booleans()),
        "dtype": draw(dtypes),
    }
