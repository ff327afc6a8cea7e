"""Cases of the stationary convolutions."""

from __future__ import annotations

import math

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from adjointlab.core import strategies
from adjointlab.core.partition import Partition
from adjointlab.layers.stationary_convolution import (
    ALGORITHMS,
    StationaryConv1d,
    StationaryConv2d,
    StationaryConv3d,
)
from adjointlab.layers.subjects.common import Arguments, grids_up_to, layer_of, layer_subject
from adjointlab.layers.subjects.convolution import drawn_convolution, sequential_convolution

__all__ = ["stationary_convolutions"]


@layer_subject(
    layer=layer_of(StationaryConv1d, StationaryConv2d, StationaryConv3d),
    sequential=sequential_convolution,
    name="StationaryConvolution",
)
def stationary_convolutions(draw: DrawFn, ranks: int) -> Arguments:
    """All algorithms in one to three dimensions; fewer channels than workers; all of torch's options for kernels."""
    arguments = drawn_convolution(draw)
    algorithm, dims = draw(st.sampled_from(ALGORITHMS)), arguments["dims"]
    has_filters = draw(st.booleans()) if algorithm == "auto" else algorithm == "stationary-w"
    # Last, since the number of draws depends on the number of ranks: so cases shrink to fewer ranks. Channels first, which
    # these layers cut, among all grids from small to large.
    c, f = draw(st.sampled_from(grids_up_to(ranks, 2)))
    n, *sides = draw(st.sampled_from(grids_up_to(ranks // (c * f), dims + 1)))
    grid = (n, c, f, *sides) if has_filters else (n, c * f, *sides)
    partition = Partition(grid, draw(strategies.rank_orders(ranks, math.prod(grid))))
    # If groups are cut, only halos and parameters are sent, so there are mostly none.
    if (has_filters and c > 1 and f > 1) or draw(st.sampled_from((True, True, False))):
        arguments["groups"] = 1
    return {**arguments, "algorithm": algorithm, "partition": partition}
