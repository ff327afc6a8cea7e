"""Layouts, cuts and local types that the subjects of several primitives draw or enumerate.

Enumerations go from small cases to large ones, so that the first wrong case of ``adjointlab exhaust`` is a small one. They
leave out element types, memory orders and batches, on which data movement does not depend. ``docs/primitives.md`` lists
for each primitive what is enumerated and what is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import combinations_with_replacement, permutations, product
from math import prod
from typing import TypeAlias

from hypothesis.strategies import DrawFn

from adjointlab.core import strategies
from adjointlab.core.kept_strategies import choices
from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.engine.subject_decorators import subject

LIBRARIES = ("numpy", "torch", "cupy", "torch-cuda", "numpy+cupy", "torch+torch-cuda")
"""Device memories are drawn only if there is a device."""

primitive_subject = partial(subject.operator, arrays=LIBRARIES)
"""``@subject.operator`` of a primitive, whose local tensors lie in memory of any library."""

DTYPES = strategies.dtypes(bfloat16=True, integers=True)

Parameters: TypeAlias = dict[str, object]
"""The arguments of one operator, by name."""

SizedCase: TypeAlias = tuple[int, Parameters]
"""A number of ranks and the arguments of an operator on them."""


def grids(ranks: int, order: int) -> Iterator[tuple[int, ...]]:
    """Every grid of 1 to `order` dimensions with at most `ranks` workers, by the number of workers."""
    found = [
        grid
        for dims in range(1, order + 1)
        for grid in product(range(1, ranks + 1), repeat=dims)
        if prod(grid) <= ranks
    ]
    yield from sorted(found, key=lambda grid: (prod(grid), len(grid)))


def grids_of_order(ranks: int, order: int) -> list[tuple[int, ...]]:
    """The grids of exactly `order` dimensions with at most `ranks` workers."""
    return [grid for grid in grids(ranks, order) if len(grid) == order]


def shapes(order: int, side: int) -> Iterator[tuple[int, ...]]:
    """Every tensor shape of `order` dimensions with sides from 0 to `side`, by the number of elements."""
    yield from sorted(product(range(side + 1), repeat=order), key=lambda shape: (prod(shape), shape))


def cuts(length: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Every cut of `length` into `parts`, empty ones included."""
    for inner in combinations_with_replacement(range(length + 1), parts - 1):
        yield 0, *inner, length


def layouts(partition: Partition, side: int, along: Iterable[int] | None = None) -> Iterator[Layout]:
    """Every cut of every tensor with sides up to `side` whose dimensions lie along the partition dimensions `along`.

    The tensor has one dimension for each of them (default: for all); workers along the others hold copies.
    """
    axes = tuple(range(partition.order) if along is None else along)
    for shape in shapes(len(axes), side):
        dimension_cuts = (
            cuts(length, partition.shape[axis]) for length, axis in zip(shape, axes, strict=True)
        )
        for ends in product(*dimension_cuts):
            yield Layout.cut(shape, partition, ends, axes)


def rank_orders(world: int, size: int) -> Iterator[tuple[int, ...]]:
    """Every choice of `size` ranks of `world`, in every order."""
    yield from permutations(range(world), size)


def windows(length: int, beyond: int) -> Iterator[tuple[int, int]]:
    """Every interval that reaches at most `beyond` elements outside a dimension of `length`; the empty one once."""
    yield 0, 0
    for start in range(-beyond, length + beyond):
        for stop in range(start + 1, length + beyond + 1):
            yield start, stop


def layout_and_dtype(draw: DrawFn, ranks: int) -> Parameters:
    """Draw any layout, also one that leaves ranks inactive, and any element type."""
    return {"layout": draw(strategies.layouts(ranks, whole=False)), "dtype": draw(DTYPES)}


def cut_layout(draw: DrawFn, partition: Partition, axes: Sequence[int | None]) -> Layout:
    """Draw a layout of a tensor whose dimension k lies along ``axes[k]`` of the partition; `None` if it is not cut."""
    shape = draw(strategies.shapes(len(axes)))
    parts = [1 if axis is None else partition.shape[axis] for axis in axes]
    ends = [draw(strategies.cuts(side, count)) for side, count in zip(shape, parts, strict=True)]
    return Layout.cut(shape, partition, ends, axes)


def local_types(draw: DrawFn, layout: Layout, one_value: bool) -> tuple[str, ...]:
    """Draw local types that a layout may have; with `one_value` only those that give each element a single value.

    An element that several workers hold as varying has no single value, so `one_value` leaves out "varying" along partition
    dimensions with copies, unless the copies are empty.
    """
    windows_along = {axis: layout.windows[dim] for dim, axis in enumerate(layout.axes)}
    types = []
    for dim, (side, copied) in enumerate(zip(layout.partition.shape, layout.copied, strict=True)):
        legal = ["varying", "replicated", "partial", "invariant"] if copied else ["varying"]
        holds_elements = any(start < stop for start, stop in windows_along.get(dim, [(0, 1)]))
        if one_value and copied and side > 1 and holds_elements:
            legal.remove("varying")
        types.append(draw(choices(tuple(legal))))
    return tuple(types)
