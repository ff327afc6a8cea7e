"""Cases of the transposed convolutions."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from torch import nn

from adjointlab.core import strategies
from adjointlab.layers.subjects.common import Arguments, batches, dtypes, layer_of, layer_subject, twin_of
from adjointlab.layers.transposed_convolution import ConvTranspose1d, ConvTranspose2d, ConvTranspose3d

__all__ = ["transposed_convolutions"]


@layer_subject(
    layer=layer_of(ConvTranspose1d, ConvTranspose2d, ConvTranspose3d),
    sequential=twin_of(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
    name="TransposedConvolution",
)
def transposed_convolutions(draw: DrawFn, ranks: int) -> Arguments:
    """One to three dimensions; batch, channels and space cut; strides beyond the kernel, output padding, groups."""
    dims = draw(st.integers(1, 3))
    sides = [draw(st.integers(1, 8 if dims == 1 else 3)) for _ in range(dims)]
    kernel, stride, dilation, padding, output_padding = ([] for _ in range(5))
    for side in sides:
        kernel.append(draw(st.integers(1, 3)))
        stride.append(draw(st.integers(1, 4 if dims == 1 else 3)))
        dilation.append(draw(st.integers(1, 2)))
        output_padding.append(draw(st.integers(0, max(stride[-1], dilation[-1]) - 1)))
        length = (side - 1) * stride[-1] + dilation[-1] * (kernel[-1] - 1) + 1 + output_padding[-1]
        padding.append(draw(st.integers(0, min(3, (length - 1) // 2))))
    groups = draw(st.integers(1, 3))
    channels = [groups * draw(st.integers(1, 3 if groups == 1 else 2)) for _ in range(2)]
    batch, bias, dtype = draw(batches), draw(st.booleans()), draw(dtypes)
    # Last, since the number of draws depends on the number of ranks: so cases shrink to fewer ranks.
    partition = draw(strategies.partitions(ranks, dims + 3, whole=False))
    if 1 not in partition.shape[1:3]:
        groups = 1
    return {
        "dims": dims,
        "partition": partition,
        "input_shape": (batch, channels[0], *sides),
        "in_channels": channels[0],
        "out_channels": channels[1],
        "kernel_size": tuple(kernel),
        "stride": tuple(stride),
        "padding": tuple(padding),
        "output_padding": tuple(output_padding),
        "dilation": tuple(dilation),
        "groups": groups,
        "bias": bias,
        "dtype": dtype,
    }
