"""Cases of the convolutions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from torch import nn

from adjointlab.core import strategies
from adjointlab.layers.convolution import Conv1d, Conv2d, Conv3d
from adjointlab.layers.padded import Padded, Paddings, paddings
from adjointlab.layers.subjects.common import Arguments, batches, dtypes, layer_of, layer_subject

__all__ = ["convolutions", "drawn_convolution", "sequential_convolution"]


def sequential_convolution(
    *,
    dims: int,
    dtype: str,
    padding: str | Paddings,
    partition: object,
    input_shape: object,
    overlap: object = False,
    algorithm: object = None,
    **arguments: Any,
) -> nn.Module:
    """Return torch's convolution for the arguments of a case, with separate padding if left and right differ."""
    torch_class = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
    make: Callable[..., nn.Module] = partial(torch_class, dtype=getattr(torch, dtype), **arguments)
    if isinstance(padding, str):
        return make(padding=padding)
    if all(left == right for left, right in padding):
        return make(padding=tuple(left for left, _ in padding))
    return Padded(make(padding=0), padding, arguments["padding_mode"])


def drawn_convolution(draw: DrawFn) -> dict[str, Any]:
    """Draw the arguments of a convolution except its partition, with all of torch's options for kernels."""
    dims = draw(st.integers(1, 3))
    kernel = tuple(draw(st.integers(1, 3)) for _ in range(dims))
    dilation = tuple(draw(st.integers(1, 2)) for _ in range(dims))
    stride = tuple(draw(st.integers(1, 3)) for _ in range(dims))
    mode = draw(st.sampled_from(("zeros", "zeros", "circular")))
    reach = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    padding: str | Paddings = tuple((draw(st.integers(0, r)), draw(st.integers(0, r))) for r in reach)
    if draw(st.booleans()):
        padding = "same" if stride == (1,) * dims and draw(st.booleans()) else "valid"
    sides = []
    for r, (left, right) in zip(reach, paddings(padding, kernel, dilation), strict=True):
        least = max(r + 1 - left - right, 1, *((left, right) if mode == "circular" else ()))
        sides.append(draw(st.integers(least, least + (8 if dims == 1 else 3))))
    groups = draw(st.integers(1, 3))
    channels = [groups * draw(st.integers(1, 3 if groups == 1 else 2)) for _ in range(2)]
    batch, bias, dtype = draw(batches), draw(st.booleans()), draw(dtypes)
    return {
        "dims": dims,
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


@layer_subject(layer=layer_of(Conv1d, Conv2d, Conv3d), sequential=sequential_convolution, name="Convolution")
def convolutions(draw: DrawFn, ranks: int) -> Arguments:
    """One to three dimensions; batch, channels and features cut; all of torch's options for kernels."""
    arguments, overlap = drawn_convolution(draw), draw(st.booleans())
    # Last, since the number of draws depends on the number of ranks: so cases shrink to fewer ranks.
    partition = draw(strategies.partitions(ranks, arguments["dims"] + 3, whole=False))
    if 1 not in partition.shape[1:3]:
        arguments["groups"] = 1
    return {**arguments, "partition": partition, "overlap": overlap}
