"""Every case of the built-in primitives up to a bound, for ``adjointlab exhaust``, from the small to the large.

Element types and memory orders are not listed: what moves does not depend on them. Partitions use the ranks from 0 on
where they stand alone; where two partitions meet, the second one lies on any ranks in any order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations_with_replacement, permutations, product
from math import prod
from typing import Any

from adjointlab.layout import Layout
from adjointlab.partition import Partition
from adjointlab.primitives.broadcast_rules import broadcast_pattern

__all__ = [
    "all_sum_reduces",
    "broadcasts",
    "memory_operations",
    "memory_operations_in_both_forms",
    "send_receives",
    "sum_reduces",
]

Case = tuple[int, dict[str, Any]]


def broadcasts(*, ranks: int = 4, order: int = 2, side: int = 2) -> Iterator[Case]:
    """P_x in any place, P_y in any place, every cut of every tensor along P_x."""
    for world, source, target, flags in _broadcasting(ranks, order):
        for layout in layouts(source, side):
            yield world, {"layout": layout, "partition": target, **flags}


def sum_reduces(*, ranks: int = 4, order: int = 2, side: int = 2) -> Iterator[Case]:
    """The same the other way round; tensors are cut along what is not summed over."""
    for world, source, target, flags in _broadcasting(ranks, order):
        pattern = broadcast_pattern(
            source, target, transpose_one=flags["transpose_src"], transpose_many=flags["transpose_dest"]
        )
        for layout in layouts(target, side, along=pattern.kept.values()):
            yield (
                world,
                {
                    "layout": layout,
                    "partition": source,
                    "transpose_src": flags["transpose_dest"],
                    "transpose_dest": flags["transpose_src"],
                },
            )


def all_sum_reduces(*, ranks: int = 4, order: int = 3, side: int = 2) -> Iterator[Case]:
    """Every subset of the dimensions of every grid is summed over."""
    for grid in grids(ranks, order):
        partition = Partition(grid)
        for chosen in product((False, True), repeat=len(grid)):
            dims = tuple(dim for dim, summed in enumerate(chosen) if summed)
            kept = [dim for dim, summed in enumerate(chosen) if not summed]
            for layout in layouts(partition, side, along=kept):
                yield partition.size, {"layout": layout, "dims": dims}


def send_receives(*, ranks: int = 3, order: int = 2, side: int = 2) -> Iterator[Case]:
    """Any two workers, both forms."""
    for world in range(1, ranks + 1):
        for dims, source, target, form in product(
            range(order + 1), range(world), range(world), ("copy", "move")
        ):
            partition = Partition((1,) * dims, [source])
            for shape in shapes(dims, side):
                yield world, {"layout": Layout(shape, partition), "destination": target, "form": form}


def memory_operations(*, ranks: int = 3, order: int = 2, side: int = 2) -> Iterator[Case]:
    """Buffers of every layout."""
    for grid in grids(ranks, order):
        for layout in layouts(Partition(grid), side):
            yield prod(grid), {"layout": layout}


def memory_operations_in_both_forms(*, ranks: int = 3, order: int = 2, side: int = 2) -> Iterator[Case]:
    """Buffers of every layout, in place and out of place."""
    for world, parameters in memory_operations(ranks=ranks, order=order, side=side):
        for in_place in (False, True):
            yield world, {**parameters, "in_place": in_place}


# What cases are made of


def grids(ranks: int, order: int) -> Iterator[tuple[int, ...]]:
    """Every grid of 1 to `order` dimensions with at most `ranks` workers, by the number of workers."""
    found = [
        grid
        for dims in range(1, order + 1)
        for grid in product(range(1, ranks + 1), repeat=dims)
        if prod(grid) <= ranks
    ]
    yield from sorted(found, key=lambda grid: (prod(grid), len(grid)))


def shapes(order: int, side: int) -> Iterator[tuple[int, ...]]:
    """Every tensor shape of `order` dimensions with sides from 0 to `side`, by the number of elements."""
    yield from sorted(product(range(side + 1), repeat=order), key=lambda shape: (prod(shape), shape))


def cuts(length: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Every cut of `length` into `parts`, empty ones included."""
    for inner in combinations_with_replacement(range(length + 1), parts - 1):
        yield 0, *inner, length


def layouts(partition: Partition, side: int, along: Iterable[int] | None = None) -> Iterator[Layout]:
    """Every cut of every tensor up to `side` that has one dimension for each partition dimension of `along`.

    Default: all of them. Copies lie along the others.
    """
    axes = tuple(range(partition.order) if along is None else along)
    for shape in shapes(len(axes), side):
        every = (cuts(length, partition.shape[axis]) for length, axis in zip(shape, axes, strict=True))
        for ends in product(*every):
            yield Layout.cut(shape, partition, ends, axes)


def places(world: int, size: int) -> Iterator[tuple[int, ...]]:
    """Every choice of `size` ranks of `world`, in every order."""
    yield from permutations(range(world), size)


def _broadcasting(ranks: int, order: int) -> Iterator[tuple[int, Partition, Partition, dict[str, bool]]]:
    """All pairs of partitions that broadcast, with the transposition flags; P_y in natural places, P_x in any.

    Relabelling the ranks of a case gives nothing new, so that one of the two may stand still. The world has one rank
    more than P_y: P_x may lie outside.
    """
    for target in grids(ranks - 1, order):
        world = prod(target) + 1
        for source, flags in _sources(target):
            for place in places(world, prod(source)):
                yield world, Partition(source, place), Partition(target), flags


def _sources(target: Sequence[int]) -> Iterator[tuple[tuple[int, ...], dict[str, bool]]]:
    """The grids that broadcast to `target`, with leading ones and without, and read in either direction."""
    for transpose_src, transpose_dest in product((False, True), repeat=2):
        read = target[::-1] if transpose_dest else target
        for shape in dict.fromkeys(product(*((1, length) for length in read))):
            for first in range(len(shape)):
                if any(length != 1 for length in shape[:first]):
                    break
                grid = shape[first:]
                yield (
                    grid[::-1] if transpose_src else grid,
                    {"transpose_src": transpose_src, "transpose_dest": transpose_dest},
                )
