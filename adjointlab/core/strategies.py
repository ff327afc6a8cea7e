"""Hypothesis strategies for partitions, layouts and element types, including those that distributed code often gets wrong.

Everything shrinks towards fewer ranks, balanced cuts, small sides, the natural order of ranks, and float64, since Hypothesis
shrinks integers to 0, booleans to False and choices to the first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import TypedDict

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from adjointlab.core.arrays import installed
from adjointlab.core.layout import Layout, balanced_cut
from adjointlab.core.partition import Partition

__all__ = [
    "broadcasting_partitions",
    "cuts",
    "dtypes",
    "layouts",
    "partitions",
    "rank_orders",
    "shapes",
]

FLOATING = ("float64", "float32", "complex128", "complex64", "float16")
"""The element types of a linear operator that NumPy has."""

_LARGEST_SIDE = {0: 1, 1: 12, 2: 6, 3: 4}


@st.composite
def rank_orders(draw: DrawFn, ranks: int, size: int | None = None) -> tuple[int, ...]:
    """Draw `size` (default: all) distinct ranks of `ranks`: any subset, not starting at 0, strided, permuted."""
    # Ranks are left out from the end, unless other positions are drawn, and kept in order, unless a permutation is: so the simplest
    # result is 0, 1, 2, ...
    chosen = list(range(ranks))
    for _ in range(0 if size is None else ranks - size):
        chosen.pop(-1 - draw(st.integers(0, len(chosen) - 1)))
    if len(chosen) > 1 and draw(st.booleans()):
        chosen = list(draw(st.permutations(chosen)))
    return tuple(chosen)


@st.composite
def partitions(
    draw: DrawFn, ranks: int, order: int | None = None, *, whole: bool = True, max_order: int = 3
) -> Partition:
    """Draw grids over the ranks of a world of `ranks`.

    With `whole` the grid uses every rank in its natural order; otherwise any subset in any order, so that ranks are inactive and
    positions in the grid differ from ranks.
    """
    dims = draw(st.integers(1, max_order)) if order is None else order
    size = ranks if whole else draw(st.integers(1, ranks))
    if dims == 0:
        size = 1
    shape = draw(st.sampled_from(grids(size, dims)))
    return Partition(shape, None if whole and dims else draw(rank_orders(ranks, math.prod(shape))))


@cache
def grids(size: int, order: int) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of all grids of `order` dimensions with `size` workers; of order 0 there is one, ()."""
    if order == 0:
        return ((),)
    if order == 1:
        return ((size,),)
    return tuple(
        (side, *rest)
        for side in range(1, size + 1)
        if size % side == 0
        for rest in grids(size // side, order - 1)
    )


@cache
def shapes(order: int, largest: int | None = None) -> SearchStrategy[tuple[int, ...]]:
    """Draw tensor shapes: small sides, mostly pairwise different, mostly above 1; sometimes empty."""
    # Dimensions that are exchanged by mistake show where their sides differ; a factor that a side of 1 hides shows above 1.
    top = max(2, largest or _LARGEST_SIDE.get(order, 3))
    # The mixture weighs different sides above 1 twice.
    any_sides = st.lists(st.integers(1, top), min_size=order, max_size=order)
    different = st.lists(st.integers(2, max(top, order + 1)), min_size=order, max_size=order, unique=True)
    empty = st.lists(st.integers(0, top), min_size=order, max_size=order)
    return st.one_of(any_sides, different, different, empty).map(tuple)


@st.composite
def cuts(draw: DrawFn, length: int, parts: int) -> tuple[int, ...]:
    """Draw boundaries that cut `length` into `parts`: balanced, or any, empty parts included."""
    # Sorted draws with repetitions: equal boundaries make empty parts, as they are met where there are more ranks than elements.
    if parts > 1 and draw(st.booleans()):
        inner = [draw(st.integers(0, length)) for _ in range(parts - 1)]
        return (0, *sorted(inner), length)
    return balanced_cut(length, parts)


@st.composite
def layouts(
    draw: DrawFn,
    ranks: int,
    ndim: int | None = None,
    *,
    partition: Partition | None = None,
    whole: bool = True,
    balanced: bool = False,
    shape: Sequence[int] | None = None,
) -> Layout:
    """Draw cuts of a tensor over (some of) the ranks, uneven and with empty local tensors unless `balanced`.

    `partition` and `shape` are drawn where they are not given.
    """
    if partition is None:
        order = len(shape) if shape is not None else ndim
        partition = draw(partitions(ranks, order, whole=whole))
    sides = draw(shapes(partition.order)) if shape is None else tuple(shape)
    if balanced:
        return Layout(sides, partition)
    ends = [draw(cuts(side, parts)) for side, parts in zip(sides, partition.shape, strict=True)]
    return Layout.cut(sides, partition, ends)


class BroadcastingPartitions(TypedDict):
    """The arguments of a broadcast that say who sends to whom."""

    source: Partition
    destination: Partition
    transpose_src: bool
    transpose_dest: bool


@st.composite
def broadcasting_partitions(
    draw: DrawFn, ranks: int, max_order: int = 3, *, transpose: bool = True
) -> BroadcastingPartitions:
    """Draw pairs of partitions that broadcast, P_x onto P_y, in a world of `ranks`; with the transposition flags.

    Orders may differ; the two may overlap, be disjoint, or leave ranks inactive in either or both.
    """
    order = draw(st.integers(1, max_order))
    size = draw(st.integers(1, ranks))
    target = draw(st.sampled_from(grids(size, order)))
    effective = [side if draw(st.booleans()) else 1 for side in target]
    # Leading sides of 1 may be left out, since a partition of lower order is promoted [DistDL].
    leading = next((i for i, side in enumerate(effective) if side != 1), order - 1)
    source = effective[draw(st.integers(0, leading)) :]
    transpose_src = transpose and draw(st.booleans())
    transpose_dest = transpose and draw(st.booleans())
    return {
        "source": Partition(
            source[::-1] if transpose_src else source, draw(rank_orders(ranks, math.prod(source)))
        ),
        "destination": Partition(target[::-1] if transpose_dest else target, draw(rank_orders(ranks, size))),
        "transpose_src": transpose_src,
        "transpose_dest": transpose_dest,
    }


def dtypes(
    names: Sequence[str] | None = None, *, bfloat16: bool = False, integers: bool = False
) -> SearchStrategy[str]:
    """Draw element types: real and complex, down to half precision; float64 is the simplest.

    `bfloat16` adds that type where torch is installed: NumPy does not have it. `integers` adds int64 and int32, in which an
    operator is linear as long as nothing overflows.
    """
    every = FLOATING + (("bfloat16",) if bfloat16 and installed("torch") else ())
    every += ("int64", "int32") if integers else ()
    return st.sampled_from(tuple(names) if names is not None else every)
