"""Cases of the stationary convolutions."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from torch import nn

from adjointlab.core import strategies
from adjointlab.engine.subject import subject
from adjointlab.layers.stationary_convolution import (
    ALGORITHMS,
    StationaryConv1d,
    StationaryConv2d,
    StationaryConv3d,
)
from adjointlab.layers.subjects.common import Arguments, layer_of
from adjointlab.layers.subjects.convolution import drawn_convolution, sequential_convolution

__all__ = ["stationary_convolutions"]


def _sequential(*, algorithm: str, **arguments: Any) -> nn.Module:
    return sequential_convolution(**arguments)


@subject(
    layer=layer_of(StationaryConv1d, StationaryConv2d, StationaryConv3d),
    sequential=_sequential,
    twice_differentiable=True,
    name="StationaryConvolution",
)
def stationary_convolutions(draw: DrawFn, ranks: int) -> Arguments:
    """All algorithms in one to three dimensions; fewer channels than workers; kernels with all that torch lets them have."""
    arguments = drawn_convolution(draw)
    algorithm, dims = draw(st.sampled_from(ALGORITHMS)), arguments["dims"]
    has_filters = draw(st.booleans()) if algorithm == "auto" else algorithm == "stationary-w"
    # Last, as the number of draws depends on the number of ranks: so cases shrink to fewer.
    partition = draw(strategies.partitions(ranks, dims + 2 + has_filters, whole=False))
    if has_filters and 1 not in partition.shape[1:3]:
        arguments["groups"] = 1
    return {**arguments, "algorithm": algorithm, "partition": partition}
