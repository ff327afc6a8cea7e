"""Assignments of a tensor's dimensions to those of a processor grid [Dryden19, sections 2.3.1 and 2.3.2].

    x[◦_0, *, ◦_{1,2}]

The first dimension is distributed over dimension 0 of the grid, the second is whole, the third is distributed over
dimensions 1 and 2. Grid dimensions that are not named are *redundant*: along them lie copies, or summands of a sum Σ̃.

A distribution over several grid dimensions is nested: the tensor's dimension is cut along the first, and each part along
the next. Each cut is balanced, and then so is the whole (⌊⌊n/p⌋/q⌋ = ⌊n/pq⌋, and likewise for ⌈ ⌉): the largest part has at
most one element more than the smallest. A part of a distribution over fewer dimensions, without the last ones, is a union
of whole parts, so [Dryden19]'s ◦_{d'} ← ◦_d and ◦_d ← ◦_{d'} are a discard and a segmented all-gather.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np

from adjointlab.core.layout import Layout, balanced_cut
from adjointlab.core.partition import Partition, integers
from adjointlab.core.space import LocalType

__all__ = ["Assignment", "checked_assignment", "layout_of", "local_types", "nested_cut", "subscript"]


@dataclass(frozen=True)
class Assignment:
    """For each dimension of a tensor the grid dimensions that it is distributed over, () for a whole one.

    `summed` are the redundant grid dimensions along which summands lie; along the other redundant ones lie copies. Make it
    with :func:`checked_assignment`, which validates it.
    """

    dims: tuple[tuple[int, ...], ...]
    summed: tuple[int, ...] = ()

    @property
    def used(self) -> tuple[int, ...]:
        """The grid dimensions that the tensor is distributed over, dimension by dimension."""
        return tuple(axis for axes in self.dims for axis in axes)

    def redundant(self, grid: Sequence[int]) -> tuple[int, ...]:
        """The dimensions of a grid with these sides that the tensor is not distributed over."""
        return tuple(axis for axis in range(len(grid)) if axis not in self.used)

    def text(self, name: str) -> str:
        """The tensor, called `name`, in [Dryden19]'s notation."""
        return f"{name}[{', '.join('◦' + subscript(axes) if axes else '*' for axes in self.dims)}]"


def subscript(axes: Sequence[int]) -> str:
    """Grid dimensions in the notation: ``_0`` or ``_{1,2}``."""
    return f"_{axes[0]}" if len(axes) == 1 else f"_{{{','.join(map(str, axes))}}}"


def checked_assignment(
    name: str, grid: Partition, order: int, dims: Sequence[Sequence[int]], summed: Sequence[int] = ()
) -> Assignment:
    """Check and make the assignment of a tensor of `order` dimensions; `name` is the caller's name for `dims`.

    Raises `ValueError` for a number of entries that is not the order, for grid dimensions that do not exist or that are
    repeated, and for summands along a dimension that the tensor is distributed over; `TypeError` for values that are not
    integers. Errors about `summed` call it ``partial``.
    """
    try:
        entries = tuple(integers(name, axes) for axes in tuple(dims))
    except TypeError:
        raise TypeError(
            f"{name}: {dims!r} is not a list of grid dimensions for each dimension of the tensor"
        ) from None
    along = tuple(sorted(integers("partial", summed)))
    if len(entries) != order:
        raise ValueError(
            f"{name}: a tensor of order {order} needs {order} entries, the grid dimensions that each of its dimensions is "
            f"distributed over, not {entries}"
        )
    for argument, axes in ((name, [axis for entry in entries for axis in entry]), ("partial", [*along])):
        if beyond := [axis for axis in axes if not 0 <= axis < grid.order]:
            raise ValueError(
                f"{argument}: {beyond[0]} is not a dimension of the grid {grid}, which has {grid.order} dimensions"
            )
        if repeated := [axis for axis in axes if axes.count(axis) > 1]:
            raise ValueError(
                f"{argument}: dimension {repeated[0]} of the grid stands more than once in "
                f"{entries if argument == name else along}; then some elements would lie on no worker, or be summed twice"
            )
    result = Assignment(entries, along)
    if both := [axis for axis in along if axis in result.used]:
        raise ValueError(
            f"partial: the tensor is distributed over dimension {both[0]} of the grid, {result.text('x')}; summands lie "
            f"along redundant dimensions, here {result.redundant(grid.shape)}"
        )
    return result


def nested_cut(length: int, sides: Sequence[int]) -> tuple[int, ...]:
    """Boundaries of `length` cut into balanced parts along the first side, each part along the next side, and so on.

    Length 10 over sides 2 and 2: 0 5 10, then 0 3 5 8 10.
    """
    ends: tuple[int, ...] = (0, length)
    for side in sides:
        inner = [
            start + end for start, stop in pairwise(ends) for end in balanced_cut(stop - start, side)[1:]
        ]
        ends = (0, *inner)
    return ends


@lru_cache(maxsize=256)
def layout_of(grid: Partition, shape: tuple[int, ...], assigned: Assignment) -> Layout:
    """The layout of an assignment over a partition of the same workers as the grid.

    The partition has one dimension for each distributed dimension of the tensor, into which its grid dimensions are merged,
    then the redundant grid dimensions. On a grid of 2 x 3, x[*, ◦_1] lies over 3 x 2, and x[◦_{0,1}] over 6.
    """
    redundant = assigned.redundant(grid.shape)
    distributed = [axes for axes in assigned.dims if axes]
    sides = [math.prod(grid.shape[axis] for axis in axes) for axes in distributed]
    # Grid dimensions in the order in which they cut the tensor, so that those to be merged are adjacent.
    ranks = np.array(grid.ranks).reshape(grid.shape).transpose(*assigned.used, *redundant).ravel()
    partition = Partition([*sides, *(grid.shape[axis] for axis in redundant)], ranks.tolist())
    merged_dim = {axes: dim for dim, axes in enumerate(distributed)}
    return Layout.cut(
        shape,
        partition,
        [
            nested_cut(side, [grid.shape[axis] for axis in axes])
            for side, axes in zip(shape, assigned.dims, strict=True)
        ],
        [merged_dim[axes] if axes else None for axes in assigned.dims],
    )


def local_types(grid: Partition, assigned: Assignment, copies: LocalType) -> tuple[LocalType, ...]:
    """The local types of :func:`layout_of`: partial along `summed`, `copies` along the other redundant dimensions."""
    distributed = (LocalType.VARYING,) * sum(bool(axes) for axes in assigned.dims)
    return distributed + tuple(
        LocalType.PARTIAL if axis in assigned.summed else copies for axis in assigned.redundant(grid.shape)
    )
