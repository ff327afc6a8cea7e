"""Cases of flattening."""

from __future__ import annotations

import math

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from torch import nn

from adjointlab.core import strategies
from adjointlab.layers.flatten import Flatten
from adjointlab.layers.subjects.common import Arguments, cuts_over, dtypes, layer_of, layer_subject, twin_of

__all__ = ["flattens"]


@layer_subject(layer=layer_of(Flatten), sequential=twin_of(nn.Flatten), name="Flatten")
def flattens(draw: DrawFn, ranks: int) -> Arguments:
    """Any range of dimensions, counted from both ends, in any cut; the output in the layer's layout, or in any other."""
    shape = draw(strategies.shapes(draw(st.sampled_from((2, 3, 4, 5, 1, 0)))))
    dims = max(1, len(shape))
    start = draw(st.integers(0, dims - 1))
    end = draw(st.integers(start, dims - 1))
    flat = (*shape[:start], math.prod(shape[start : end + 1]), *shape[end + 1 :])
    arguments = {
        "input_shape": shape,
        "start_dim": start - draw(st.sampled_from((0, dims))),
        "end_dim": end - draw(st.sampled_from((dims, 0))),
        "dtype": draw(dtypes),
    }
    partition = draw(strategies.partitions(ranks, len(shape), whole=False))
    cuts = cuts_over(draw, shape, partition)
    target = draw(strategies.layouts(ranks, shape=flat, whole=False)) if draw(st.booleans()) else None
    return {**arguments, "partition": partition, "cuts": cuts, "target": target}
