"""Cases of concatenation, stacking and splitting."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from adjointlab.core import strategies
from adjointlab.layers.joining import Chunk, Chunks, Concatenation, Join, Part, Pile, Split, Stack
from adjointlab.layers.subjects.common import Arguments, drawn_shape, dtypes, layer_of, layer_subject, twin_of

__all__ = ["chunks", "concatenations", "splits", "stacks"]


@layer_subject(layer=layer_of(Concatenation), sequential=twin_of(Join), name="Concatenation")
def concatenations(draw: DrawFn, ranks: int) -> Arguments:
    """One to three tensors of order one to three, along any dimension, cut in any, also in that one."""
    order = draw(st.integers(1, 3))
    dim = draw(st.integers(-order, order - 1))
    shape = [draw(st.integers(1, 4)) for _ in range(order)]
    lengths = draw(st.lists(st.integers(0, 5), min_size=1, max_size=3))
    shapes = [
        tuple(length if other == dim % order else side for other, side in enumerate(shape))
        for length in lengths
    ]
    return {
        "partition": draw(strategies.partitions(ranks, order, whole=False)),
        "input_shapes": shapes,
        "dim": dim,
        "dtype": draw(dtypes),
    }


@layer_subject(layer=layer_of(Split), sequential=twin_of(Part), name="Split")
def splits(draw: DrawFn, ranks: int) -> Arguments:
    """A tensor of order one to three, along any dimension, cut in any; into parts of given sizes, or of one size."""
    order = draw(st.integers(1, 3))
    dim = draw(st.integers(-order, order - 1))
    shape = [draw(st.integers(1, 4)) for _ in range(order)]
    sizes: int | list[int] = draw(st.lists(st.integers(0, 4), min_size=1, max_size=3))
    assert isinstance(sizes, list)
    shape[dim] = max(1, sum(sizes))
    if draw(st.booleans()):
        sizes = draw(st.integers(1, shape[dim]))
    elif sum(sizes) != shape[dim]:
        sizes = [*sizes, 1]
    return {
        "partition": draw(strategies.partitions(ranks, order, whole=False)),
        "input_shape": tuple(shape),
        "sizes": sizes,
        "dim": dim,
        "dtype": draw(dtypes),
    }


@layer_subject(layer=layer_of(Chunk), sequential=twin_of(Chunks), name="Chunk")
def chunks(draw: DrawFn, ranks: int) -> Arguments:
    """A tensor of order one to three, along any dimension, cut in any; into more chunks than there are elements, too."""
    order = draw(st.integers(1, 3))
    return {
        "partition": draw(strategies.partitions(ranks, order, whole=False)),
        "input_shape": drawn_shape(draw, order),
        "chunks": draw(st.integers(1, 4)),
        "dim": draw(st.integers(-order, order - 1)),
        "dtype": draw(dtypes),
    }


@layer_subject(layer=layer_of(Stack), sequential=twin_of(Pile), name="Stack")
def stacks(draw: DrawFn, ranks: int) -> Arguments:
    """One to three tensors of order zero to three, along a new dimension anywhere, which a target may cut."""
    shape = draw(strategies.shapes(draw(st.sampled_from((1, 2, 3, 0)))))
    order, number = len(shape), draw(st.integers(1, 3))
    dim = draw(st.integers(-order - 1, order))
    at = dim % (order + 1)
    stacked = (*shape[:at], number, *shape[at:])
    return {
        "partition": draw(strategies.partitions(ranks, order, whole=False)),
        "input_shapes": [shape] * number,
        "dim": dim,
        "target": draw(strategies.layouts(ranks, shape=stacked, whole=False))
        if draw(st.booleans())
        else None,
        "dtype": draw(dtypes),
    }
