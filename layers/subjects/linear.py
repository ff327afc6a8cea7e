"""Cases of the affine layer."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from torch import nn

from adjointlab.core import strategies
from adjointlab.layers.linear import Linear
from adjointlab.layers.subjects.common import Arguments, dtypes, layer_of, layer_subject, twin_of

__all__ = ["linears"]


@layer_subject(layer=layer_of(Linear), sequential=twin_of(nn.Linear), name="Linear")
def linears(draw: DrawFn, ranks: int) -> Arguments:
    """Any leading dimensions, cut or not; features cut along both dimensions of the weight; fewer features than workers."""
    lead = draw(st.integers(0, 2))
    shape = draw(strategies.shapes(lead + 2))
    return {
        "partition": draw(strategies.partitions(ranks, lead + 2, whole=False)),
        "input_shape": (*shape[:lead], max(1, shape[lead])),
        "in_features": max(1, shape[lead]),
        "out_features": max(1, shape[lead + 1]),
        "bias": draw(st.booleans()),
        "dtype": draw(dtypes),
    }
