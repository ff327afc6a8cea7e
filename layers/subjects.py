"""How the cases of the built-in layers are drawn (entry-point group ``adjointlab.subjects``)."""

from __future__ import annotations

import math
from typing import Any

import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from adjointlab import strategies
from adjointlab.harness.subject import subject
from adjointlab.layers.batch_norm import BatchNorm1d, BatchNorm2d, BatchNorm3d
from adjointlab.layers.convolution import Conv1d, Conv2d, Conv3d, Padded
from adjointlab.layers.linear import Linear
from adjointlab.layers.pooling import AvgPool1d, AvgPool2d, AvgPool3d, MaxPool1d, MaxPool2d, MaxPool3d

__all__ = ["average_pools", "batch_norms", "convolutions", "linears", "max_pools"]

_DTYPES = ("float64", "float32")
_CONVOLUTIONS = (Conv1d, Conv2d, Conv3d)


def _linear(comm: Any, *, dtype: str, **arguments: Any) -> Linear:
    return Linear(comm, dtype=getattr(torch, dtype), **arguments)


def _sequential_linear(
    *, in_features: int, out_features: int, bias: bool, dtype: str, **_: Any
) -> torch.nn.Linear:
    return torch.nn.Linear(in_features, out_features, bias, dtype=getattr(torch, dtype))


@subject(layer=_linear, sequential=_sequential_linear, name="Linear")
def linears(draw: DrawFn, ranks: int) -> dict[str, Any]:
    """Any leading dimensions, cut or not; features cut along both dimensions of the weight; fewer features than workers."""
    lead = draw(st.integers(0, 2))
    shape = draw(strategies.shapes(lead + 2))
    return {
        "partition": draw(strategies.partitions(ranks, lead + 2, whole=False)),
        "input_shape": (*shape[:lead], max(1, shape[lead])),
        "in_features": max(1, shape[lead]),
        "out_features": max(1, shape[lead + 1]),
        "bias": draw(st.booleans()),
        "dtype": draw(st.sampled_from(_DTYPES)),
    }


def _convolution(comm: Any, *, dims: int, dtype: str, **arguments: Any) -> Any:
    return _CONVOLUTIONS[dims - 1](comm, dtype=getattr(torch, dtype), **arguments)


def _sequential_convolution(
    *, dims: int, dtype: str, partition: Any, input_shape: Any, padding: Any, **arguments: Any
) -> torch.nn.Module:
    module = (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)[dims - 1]
    even = isinstance(padding, str) or all(left == right for left, right in padding)
    own = padding if isinstance(padding, str) else tuple(left for left, _ in padding)
    convolution = module(padding=own if even else 0, dtype=getattr(torch, dtype), **arguments)
    return convolution if even else Padded(convolution, padding, arguments["padding_mode"])


@subject(layer=_convolution, sequential=_sequential_convolution, name="Convolution")
def convolutions(draw: DrawFn, ranks: int) -> dict[str, Any]:
    """One to three dimensions; batch, channels and features cut; kernels with all that torch lets them have."""
    dims = draw(st.integers(1, 3))
    kernel = tuple(draw(st.integers(1, 3)) for _ in range(dims))
    dilation = tuple(draw(st.integers(1, 2)) for _ in range(dims))
    stride = tuple(draw(st.integers(1, 3)) for _ in range(dims))
    mode = draw(st.sampled_from(("zeros", "zeros", "circular")))
    reach = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    padding: Any = tuple((draw(st.integers(0, r)), draw(st.integers(0, r))) for r in reach)
    if draw(st.booleans()):
        padding = "same" if stride == (1,) * dims and draw(st.booleans()) else "valid"
    pads = (
        [(0, 0)] * dims
        if padding == "valid"
        else [(r // 2, r - r // 2) for r in reach]
        if padding == "same"
        else padding
    )
    sides = []
    for r, (left, right) in zip(reach, pads, strict=True):
        least = max(r + 1 - left - right, 1, *((left, right) if mode == "circular" else ()))
        sides.append(draw(st.integers(least, least + (8 if dims == 1 else 3))))
    groups = draw(st.integers(1, 3))
    channels = [groups * draw(st.integers(1, 3 if groups == 1 else 2)) for _ in range(2)]
    batch, bias, dtype = draw(st.integers(0, 3)), draw(st.booleans()), draw(st.sampled_from(_DTYPES))
    # Last, as the number of draws depends on the number of ranks: so cases shrink to fewer.
    partition = draw(strategies.partitions(ranks, dims + 3, whole=False))
    if 1 not in partition.shape[1:3]:
        groups = 1
    return {
        "dims": dims,
        "partition": partition,
        "input_shape": (batch, channels[0], *sides),
        "in_channels": channels[0],
        "out_channels": channels[1],
        "kernel_size": kernel,
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "groups": groups,
        "bias": bias,
        "padding_mode": mode,
        "dtype": dtype,
    }


_MAX_POOLS = (MaxPool1d, MaxPool2d, MaxPool3d)
_AVERAGE_POOLS = (AvgPool1d, AvgPool2d, AvgPool3d)


def _pooling_arguments(draw: DrawFn, ranks: int, dims: int, *, dilated: bool) -> dict[str, Any]:
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
        "dtype": draw(st.sampled_from(_DTYPES)),
    }
    return {**arguments, "dilation": dilation} if dilated else arguments


def _max_pool(comm: Any, *, dims: int, dtype: str, **arguments: Any) -> Any:
    return _MAX_POOLS[dims - 1](comm, dtype=getattr(torch, dtype), **arguments)


def _sequential_max_pool(
    *, dims: int, partition: Any, input_shape: Any, dtype: str, **arguments: Any
) -> torch.nn.Module:
    module: Any = (torch.nn.MaxPool1d, torch.nn.MaxPool2d, torch.nn.MaxPool3d)[dims - 1]
    return module(**arguments)  # type: ignore[no-any-return]


def _negative(x: torch.Tensor) -> tuple[torch.Tensor]:
    """The lab's integers go from -4 to 4; of negative numbers a zero in the padding would be the largest."""
    return (x - 5,)


@subject(layer=_max_pool, sequential=_sequential_max_pool, prepare=_negative, name="MaxPooling")
def max_pools(draw: DrawFn, ranks: int) -> dict[str, Any]:
    """One to three dimensions, with dilation, or with the indices; negative data, with many equal ones."""
    arguments = _pooling_arguments(draw, ranks, draw(st.integers(1, 3)), dilated=True)
    return {**arguments, "return_indices": draw(st.booleans())}


def _average_pool(comm: Any, *, dims: int, dtype: str, **arguments: Any) -> Any:
    return _AVERAGE_POOLS[dims - 1](comm, dtype=getattr(torch, dtype), **arguments)


def _sequential_average_pool(
    *, dims: int, partition: Any, input_shape: Any, dtype: str, **arguments: Any
) -> torch.nn.Module:
    module: Any = (torch.nn.AvgPool1d, torch.nn.AvgPool2d, torch.nn.AvgPool3d)[dims - 1]
    return module(**arguments)  # type: ignore[no-any-return]


@subject(layer=_average_pool, sequential=_sequential_average_pool, name="AveragePooling")
def average_pools(draw: DrawFn, ranks: int) -> dict[str, Any]:
    """One to three dimensions, and every way to count; often with divisors that keep the arithmetic exact."""
    dims = draw(st.integers(1, 3))
    arguments = _pooling_arguments(draw, ranks, dims, dilated=False)
    arguments["count_include_pad"] = draw(st.booleans())
    if dims > 1:
        arguments["divisor_override"] = draw(st.sampled_from((None, None, 1, 8, 3, -2)))
    return arguments


_BATCH_NORMS = (BatchNorm1d, BatchNorm2d, BatchNorm3d)


def _batch_norm(comm: Any, *, dtype: str, **arguments: Any) -> Any:
    dims = max(1, len(arguments["input_shape"]) - 2)
    layer = _BATCH_NORMS[dims - 1](comm, dtype=getattr(torch, dtype), **arguments)
    layer.load_sequential(_sequential_batch_norm(dtype=dtype, **arguments))
    return layer


def _sequential_batch_norm(
    *, partition: Any, input_shape: Any, dtype: str, bias: bool, **arguments: Any
) -> torch.nn.Module:
    dims = max(1, len(input_shape) - 2)
    kind: Any = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d)[dims - 1]
    without = {} if bias else {"bias": False}
    module: torch.nn.Module = kind(**arguments, **without, dtype=getattr(torch, dtype))
    if arguments["track_running_stats"]:  # some that were not just made
        channel = torch.arange(arguments["num_features"])
        module.get_buffer("running_mean").copy_(channel / 4 - 1)
        module.get_buffer("running_var").copy_(channel + 0.5)
        module.get_buffer("num_batches_tracked").fill_(3)
    return module


@subject(layer=_batch_norm, sequential=_sequential_batch_norm, name="BatchNormalisation")
def batch_norms(draw: DrawFn, ranks: int) -> dict[str, Any]:
    """Inputs of order two to five, cut in any dimension; training and evaluation; batches of one, or of none."""
    order = draw(st.integers(2, 5))
    training, tracked = draw(st.booleans()), draw(st.booleans())
    channels = draw(st.integers(1, 4))
    batch = draw(st.integers(0, 6 if order == 2 else 3))
    sides = [draw(st.integers(1, 6 if order == 3 else 3)) for _ in range(order - 2)]
    if (training or not tracked) and batch * math.prod(sides) == 1:
        batch = 2  # of one value per channel there are no statistics
    affine = draw(st.booleans())
    return {
        "partition": draw(strategies.partitions(ranks, order, whole=False)),
        "input_shape": (batch, channels, *sides),
        "num_features": channels,
        "eps": draw(st.sampled_from((1e-5, 0.25))),
        "momentum": draw(st.sampled_from((0.1, None, 0.5, 0.0, 1.0))),
        "affine": affine,
        "track_running_stats": tracked,
        "bias": draw(st.integers(0, 3)) > 0,
        "dtype": draw(st.sampled_from(_DTYPES)),
        "training": training,
    }
