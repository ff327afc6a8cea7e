"""Cases of max and average pooling."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from torch import nn

from adjointlab.core import strategies
from adjointlab.engine.subject import subject
from adjointlab.layers.pooling import AvgPool1d, AvgPool2d, AvgPool3d, MaxPool1d, MaxPool2d, MaxPool3d
from adjointlab.layers.subjects.common import Arguments, dtypes, layer_of, twin_of

__all__ = ["average_pools", "max_pools"]


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
    batch = (draw(st.integers(0, 3)),) if draw(st.integers(0, 4)) else ()
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
    """The lab's integers go from -4 to 4; of negative numbers a zero in the padding would be the largest."""
    return (x - 5,)


@subject(
    layer=layer_of(MaxPool1d, MaxPool2d, MaxPool3d),
    sequential=twin_of(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d),
    prepare=_negative,
    twice_differentiable=True,
    name="MaxPooling",
)
def max_pools(draw: DrawFn, ranks: int) -> Arguments:
    """One to three dimensions, with dilation, or with the indices; negative data, with many equal ones."""
    arguments = _pooling_arguments(draw, ranks, draw(st.integers(1, 3)), dilated=True)
    return {**arguments, "return_indices": draw(st.booleans())}


@subject(
    layer=layer_of(AvgPool1d, AvgPool2d, AvgPool3d),
    sequential=twin_of(nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
    twice_differentiable=True,
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
