"""Partitions: Cartesian grids over an ordered subset of ranks (seed paper, section 3.1, eq. 21)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from operator import index as integer

__all__ = ["Index", "Partition"]

Index = tuple[int, ...]


def integers(name: str, values: object) -> tuple[int, ...]:
    """`values` as a tuple of integers; `TypeError` naming the argument where they are something else."""
    try:
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise TypeError
        return tuple(integer(value) for value in values)
    except TypeError:
        raise TypeError(f"{name}: {values!r} is not a sequence of integers") from None


@dataclass(frozen=True)
class Partition:
    """A Cartesian grid of workers, P = P_0 x ... x P_{d-1}.

    `ranks` lists the workers in row-major order of the grid (default: 0, 1, 2, ...). They may be any distinct
    ranks in any order; a rank that is not listed is *inactive*. A partition is pure data, the same on every
    rank.

    Raises `ValueError` for a side below 1, a negative or repeated rank, or a grid that does not match its
    ranks; `TypeError` for what is not an integer.
    """

    shape: tuple[int, ...]
    ranks: tuple[int, ...]

    def __init__(self, shape: Sequence[int], ranks: Iterable[int] | None = None) -> None:
        sides = integers("shape", shape)
        if any(side < 1 for side in sides):
            raise ValueError(f"shape: every side of a partition is at least 1, not {sides}")
        size = math.prod(sides)
        workers = tuple(range(size)) if ranks is None else integers("ranks", ranks)
        if len(workers) != size:
            raise ValueError(
                f"ranks: a {_times(sides)} partition needs {size} ranks, not the {len(workers)} of {workers}"
            )
        if len(set(workers)) != size:
            repeated = sorted({rank for rank in workers if workers.count(rank) > 1})
            raise ValueError(f"ranks: {repeated} stand more than once in {workers}; a worker has one place")
        if any(rank < 0 for rank in workers):
            raise ValueError(f"ranks: a rank is at least 0, not {min(workers)}")
        object.__setattr__(self, "shape", sides)
        object.__setattr__(self, "ranks", workers)

    @property
    def order(self) -> int:
        """The number of dimensions of the grid."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of workers."""
        return len(self.ranks)

    @cached_property
    def _index_of(self) -> dict[int, Index]:
        grid = product(*(range(side) for side in self.shape))
        return dict(zip(self.ranks, grid, strict=True))

    def is_active(self, rank: int) -> bool:
        """Whether `rank` has a place in the grid."""
        return rank in self._index_of

    def index(self, rank: int) -> Index:
        """The grid index of an active rank; `ValueError` for an inactive one."""
        try:
            return self._index_of[rank]
        except KeyError:
            raise ValueError(f"rank: {rank} is inactive in the partition over {self.ranks}") from None

    def rank(self, index: Sequence[int]) -> int:
        """The rank at a grid index; `ValueError` where the index is outside the grid."""
        if len(index) != self.order or any(not 0 <= i < n for i, n in zip(index, self.shape, strict=True)):
            raise ValueError(f"index: {tuple(index)} is not in the {_times(self.shape)} partition")
        position = 0
        for i, side in zip(index, self.shape, strict=True):
            position = position * side + i
        return self.ranks[position]

    def promote(self, order: int) -> Partition:
        """The same workers under leading sides of 1, up to `order` dimensions (seed paper, section 3.1)."""
        if order < self.order:
            raise ValueError(
                f"order: a partition of order {self.order} is not promoted to {order}, which is less"
            )
        return Partition((1,) * (order - self.order) + self.shape, self.ranks)

    def transpose(self) -> Partition:
        """The grid with its dimensions reversed; the worker at index (i, ..., k) moves to (k, ..., i)."""
        shape = self.shape[::-1]
        return Partition(shape, (self.rank(index[::-1]) for index in product(*(range(n) for n in shape))))

    def subpartitions(self, dims: Iterable[int]) -> tuple[Partition, ...]:
        """The sub-grids along `dims`, one for each index of the other dimensions, in row-major order.

        Together they hold every worker once: they are the groups of a collective that is segmented along
        `dims`.
        """
        along = tuple(dims)
        if len(set(along)) != len(along) or any(not 0 <= dim < self.order for dim in along):
            raise ValueError(
                f"dims: {along} are not distinct dimensions of a partition of order {self.order}"
            )
        fixed = [dim for dim in range(self.order) if dim not in along]
        inner = tuple(self.shape[dim] for dim in along)
        groups = []
        for outside in product(*(range(self.shape[dim]) for dim in fixed)):
            place = dict(zip(fixed, outside, strict=True))
            members = []
            for inside in product(*(range(side) for side in inner)):
                place.update(zip(along, inside, strict=True))
                members.append(self.rank([place[dim] for dim in range(self.order)]))
            groups.append(Partition(inner, members))
        return tuple(groups)

    def __str__(self) -> str:
        natural = self.ranks == tuple(range(self.size))
        return _times(self.shape) + ("" if natural else f" over ranks {', '.join(map(str, self.ranks))}")


def _times(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "()"
