"""Cases of concatenation and splitting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from torch import nn

from adjointlab.core import strategies
from adjointlab.engine.subject import subject
from adjointlab.layers.joining import Concatenation, Join, Part, Split
from adjointlab.layers.subjects.common import Arguments, dtypes, layer_of

__all__ = ["concatenations", "splits"]


def _join(*, dim: int, **_: Any) -> nn.Module:
    return Join(dim)


def _part(*, sizes: int | Sequence[int], dim: int, **_: Any) -> nn.Module:
    return Part(sizes, dim)


@subject(layer=layer_of(Concatenation), sequential=_join, twice_differentiable=True, name="Concatenation")
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


@subject(layer=layer_of(Split), sequential=_part, twice_differentiable=True, name="Split")
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
