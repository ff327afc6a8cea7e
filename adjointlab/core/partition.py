"""Partitions: Cartesian grids over an ordered subset of ranks [Hewett21, section 3.1, eq. 21].

A 2x3 partition over the ranks 4, 5, 6, 0, 1, 2 of a larger world, its transpose, and its sub-partitions along dimension 1::

    grid index  (0, 0) (0, 1) (0, 2)      4  5  6      4  0       [4  5  6]
                (1, 0) (1, 1) (1, 2)      0  1  2      5  1       [0  1  2]
                                                       6  2
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from operator import index as integer
from typing import TypeAlias, TypeVar

__all__ = [
    "Index",
    "Partition",
    "PartitionLike",
    "as_partition",
    "entries",
    "integers",
    "shared_property",
    "whole_number",
]

Index = tuple[int, ...]

E = TypeVar("E")
R = TypeVar("R")
S = TypeVar("S")


def shared_property(compute: Callable[[S], R]) -> cached_property[R]:
    """Property of an immutable, hashable object, computed once for all objects that are equal.

    Its value must follow from what equality compares, and nobody may change it.
    """
    # Every rank describes the whole operator: partitions, layouts and spaces of P ranks, whose properties take P steps. With
    # P ranks simulated in one process that would be P**2 steps; so equal objects share one result. The lock that a cached_property
    # holds for all instances up to Python 3.11 [cpython-87634] does no harm, since no such computation communicates.
    return cached_property(lru_cache(compute))


def integers(name: str, values: object) -> tuple[int, ...]:
    """Return `values` as a tuple of integers; raise `TypeError` naming the argument where they are something else."""
    try:
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise TypeError
        return tuple(map(integer, values))
    except TypeError:
        raise TypeError(f"{name}: {values!r} is not a sequence of integers") from None


def whole_number(name: str, value: object) -> int:
    """Return `value` as an integer; raise `TypeError` naming the argument where it is something else."""
    try:
        return integer(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{name}: {value!r} is not a whole number") from None


def entries(name: str, values: Iterable[E], wanted: str) -> tuple[E, ...]:
    """Return `values` as a tuple; raise `TypeError`, naming the argument and what they should be, if they are not a list."""
    given: object = values
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise TypeError(f"{name}: {given!r} is not a list of {wanted}")
    return tuple(values)


@dataclass(frozen=True)
class Partition:
    """A Cartesian grid of workers, P = P_0 x ... x P_{d-1}.

    `ranks` lists the workers in row-major order of the grid (default: 0, 1, 2, ...). They may be any distinct ranks in any order;
    a rank that is not listed is *inactive*. A partition is pure data, the same on every rank.

    Raises `ValueError` for a side below 1, a negative or repeated rank, or a grid that does not match its ranks; `TypeError` for
    a value that is not an integer.
    """

    shape: tuple[int, ...]
    ranks: tuple[int, ...]

    def __init__(self, shape: Sequence[int], ranks: Iterable[int] | None = None) -> None:
        sides = integers("shape", shape)
        if any(side < 1 for side in sides):
            raise ValueError(f"shape: every side of a partition is at least 1, not {sides}")
        size = math.prod(sides)
        workers = _natural(size) if ranks is None else _distinct(ranks, sides, size)
        object.__setattr__(self, "shape", sides)
        object.__setattr__(self, "ranks", workers)

    @cached_property
    def _hash(self) -> int:
        return hash((self.shape, self.ranks))

    def __hash__(self) -> int:
        return self._hash  # computed once: it is needed often, and is linear in the number of ranks

    @property
    def order(self) -> int:
        """The number of dimensions of the grid."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of workers."""
        return len(self.ranks)

    @shared_property
    def _index_of(self) -> dict[int, Index]:
        grid = product(*(range(side) for side in self.shape))
        return dict(zip(self.ranks, grid, strict=True))

    def is_active(self, rank: int) -> bool:
        """Return True if `rank` is in the grid."""
        return rank in self._index_of

    def index(self, rank: int) -> Index:
        """Return the grid index of an active rank; raise `ValueError` for an inactive one."""
        try:
            return self._index_of[rank]
        except (KeyError, TypeError):
            raise ValueError(f"rank: {rank} is inactive in the partition over {self.ranks}") from None

    def rank(self, index: Sequence[int]) -> int:
        """Return the rank at a grid index; raise `ValueError` where the index is outside the grid."""
        index = integers("index", index)
        if len(index) != self.order or any(not 0 <= i < n for i, n in zip(index, self.shape, strict=True)):
            raise ValueError(f"index: {index} is not in the {_times(self.shape)} partition")
        position = 0
        for i, side in zip(index, self.shape, strict=True):
            position = position * side + i
        return self.ranks[position]

    def promote(self, order: int) -> Partition:
        """Return the same workers under leading sides of 1, up to `order` dimensions [Hewett21, section 3.1]."""
        order = whole_number("order", order)
        if order < self.order:
            raise ValueError(
                f"order: a partition of order {self.order} is not promoted to {order}, which is less"
            )
        return Partition((1,) * (order - self.order) + self.shape, self.ranks)

    def transpose(self) -> Partition:
        """Return the grid with its dimensions reversed; the worker at index (i, ..., k) moves to (k, ..., i)."""
        shape = self.shape[::-1]
        return Partition(shape, (self.rank(index[::-1]) for index in product(*(range(n) for n in shape))))

    def subpartitions(self, dims: Iterable[int]) -> tuple[Partition, ...]:
        """Return the sub-grids along `dims`, one for each index of the other dimensions, in row-major order.

        Together they hold every worker once: they are the groups of a collective that is segmented along `dims`.
        """
        along = integers("dims", dims)
        if len(set(along)) != len(along) or any(not 0 <= dim < self.order for dim in along):
            raise ValueError(
                f"dims: {along} are not distinct dimensions of a partition of order {self.order}"
            )
        return _subpartitions(self, along)

    def subpartition(self, dims: Iterable[int], rank: int) -> Partition:
        """Return the one of :meth:`subpartitions` that an active rank is in; raise `ValueError` for an inactive one."""
        along = integers("dims", dims)
        groups = self.subpartitions(along)
        # The position among the groups is the row-major index along the dimensions that are not in `dims`.
        position = 0
        for dim, i in enumerate(self.index(rank)):
            if dim not in along:
                position = position * self.shape[dim] + i
        return groups[position]

    def __str__(self) -> str:
        natural = self.ranks == _natural(self.size)
        return _times(self.shape) + ("" if natural else f" over ranks {', '.join(map(str, self.ranks))}")


def _distinct(ranks: Iterable[int], shape: tuple[int, ...], size: int) -> tuple[int, ...]:
    """Return the workers of a grid; raise `ValueError` for a wrong number of them, and for repeated or negative ranks."""
    workers = integers("ranks", ranks)
    if len(workers) != size:
        raise ValueError(
            f"ranks: a {_times(shape)} partition needs {size} ranks, not the {len(workers)} of {workers}"
        )
    if len(set(workers)) != size:
        repeated = sorted({rank for rank in workers if workers.count(rank) >= 2})
        raise ValueError(f"ranks: {repeated} stand more than once in {workers}; a worker has one place")
    if min(workers) < 0:
        raise ValueError(f"ranks: a rank is at least 0, not {min(workers)}")
    return workers


PartitionLike: TypeAlias = Partition | Sequence[int]
"""A partition, or the sides of one over the ranks 0, 1, 2, ...: ``(2, 3)`` for ``Partition((2, 3))``."""


def as_partition(name: str, value: PartitionLike) -> Partition:
    """Return `value` as a partition; raise `TypeError` naming the argument where it is neither one nor the sides of one.

    Raises `ValueError` for a side below 1.
    """
    if isinstance(value, Partition):
        return value
    try:
        sides = integers(name, value)
    except TypeError:
        raise TypeError(
            f"{name}: {value!r} is neither a Partition nor a sequence of its sides, such as (2, 3)"
        ) from None
    if any(side < 1 for side in sides):
        raise ValueError(f"{name}: every side of a partition is at least 1, not {sides}")
    return Partition(sides)


@lru_cache(maxsize=64)
def _natural(size: int) -> tuple[int, ...]:
    """Return 0, 1, 2, ... as one tuple for all callers, so that comparing two of them takes no time."""
    return tuple(range(size))


@lru_cache(maxsize=64)  # linear in the number of workers, and called by every rank
def _subpartitions(partition: Partition, along: tuple[int, ...]) -> tuple[Partition, ...]:
    dims = range(partition.order)
    fixed = [dim for dim in dims if dim not in along]
    inner_shape = tuple(partition.shape[dim] for dim in along)
    groups = []
    for fixed_index in product(*(range(partition.shape[dim]) for dim in fixed)):
        grid_index = dict(zip(fixed, fixed_index, strict=True))
        members = []
        for inner_index in product(*map(range, inner_shape)):
            grid_index.update(zip(along, inner_index, strict=True))
            members.append(partition.rank([grid_index[dim] for dim in dims]))
        groups.append(Partition(inner_shape, members))
    return tuple(groups)


def _times(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "()"
