"""Cases of dropout with a seed."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from adjointlab.core import strategies
from adjointlab.layers.dropout import Dropout, SeededDropout
from adjointlab.layers.subjects.common import Arguments, drawn_shape, dtypes, layer_of, layer_subject, twin_of

__all__ = ["dropouts"]


@layer_subject(layer=layer_of(Dropout), sequential=twin_of(SeededDropout), name="Dropout")
def dropouts(draw: DrawFn, ranks: int) -> Arguments:
    """Inputs of order one to four, cut in any dimension; masks that drop nothing, everything, or some; in training and not."""
    order = draw(st.integers(1, 4))
    return {
        "partition": draw(strategies.partitions(ranks, order, whole=False)),
        "input_shape": drawn_shape(draw, order),
        "p": draw(st.sampled_from((0.5, 0.0, 0.25, 1.0))),
        "seed": draw(st.integers(-(2**63), 2**64 - 1)),
        "inplace": draw(st.booleans()),
        "dtype": draw(dtypes),
        "training": draw(st.integers(0, 3)) > 0,
    }
