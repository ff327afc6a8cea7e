"""The partition broadcasting rules: which workers hold copies of which [Hewett21, sections 3.1 and 3.2.1].

Pure data, the same on every rank. Broadcast follows a pattern from the one to the many, SumReduce from the many to the one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product

from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition, shared_property
from adjointlab.primitives.validation import check_summed

# The functions here are memoised: P simulated ranks call them with the same data, and each call would take P steps.

__all__ = ["BroadcastPattern", "CopyGroup", "broadcast_pattern", "copied_layout", "summed_layout"]


# P_x = 3 x 1 broadcasts to P_y = 3 x 4: its dimension of side 1 is copied, and each worker of P_x is the one of a group:
#
#     P_x   0          P_y   0  1   2   3         groups   0 → 0, 1, 2, 3
#           1                4  5   6   7                  1 → 4, 5, 6, 7
#           2                8  9  10  11                  2 → 8, 9, 10, 11
@dataclass(frozen=True)
class CopyGroup:
    """One worker of P_x and the workers of P_y that hold its copies: {a} and {k} of eq. 16."""

    one: int
    many: tuple[int, ...]

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """All workers of the group, sorted: its members in the order of their communicator."""
        return tuple(sorted({self.one, *self.many}))


@dataclass(frozen=True)
class BroadcastPattern:
    """The groups of a broadcast from `one` = P_x to `many` = P_y, in the order of P_x.

    ``dims[j]`` is the dimension of P_y that dimension j of P_x is matched with, after transposition and promotion.
    """

    one: Partition
    many: Partition
    dims: tuple[int, ...]

    @property
    def kept(self) -> dict[int, int]:
        """Dimensions of P_x matched on equal sides, where nothing is copied, with their dimensions of P_y."""
        return {j: k for j, k in enumerate(self.dims) if self.one.shape[j] == self.many.shape[k]}

    @shared_property
    def groups(self) -> tuple[CopyGroup, ...]:
        """For each worker of P_x the workers of P_y whose index agrees with its own wherever P_x is cut."""
        copies: dict[int, list[int]] = {rank: [] for rank in self.one.ranks}
        for index in product(*(range(side) for side in self.many.shape)):
            source = [0 if side == 1 else index[k] for side, k in zip(self.one.shape, self.dims, strict=True)]
            copies[self.one.rank(source)].append(self.many.rank(index))
        return tuple(CopyGroup(one, tuple(many)) for one, many in copies.items())

    @shared_property
    def _groups_of(self) -> dict[int, list[CopyGroup]]:
        found: dict[int, list[CopyGroup]] = {}
        for group in self.groups:
            for rank in group.ranks:
                found.setdefault(rank, []).append(group)
        return found

    def groups_of(self, rank: int) -> Sequence[CopyGroup]:
        """The groups that `rank` is in, in the order of :attr:`groups`: two at most, as the one and among the many."""
        return self._groups_of.get(rank, ())

    @property
    def largest(self) -> int:
        """The largest number of copies."""
        return self.many.size // self.one.size


@lru_cache(maxsize=64)
def broadcast_pattern(
    one: Partition, many: Partition, *, transpose_one: bool = False, transpose_many: bool = False
) -> BroadcastPattern:
    """Match the dimensions of P_x = `one` and P_y = `many` by the broadcasting rules.

    In each dimension the sides must be equal or that of P_x must be 1. A transposed partition is read with its
    dimensions reversed, and P_x is then promoted by leading ones.

    Raises `ValueError` if P_x does not broadcast to P_y, naming the dimension and both sides.
    """
    if one.order > many.order:
        raise ValueError(
            f"partition: {_shape(one)} does not broadcast to {_shape(many)}: it has order {one.order}, which is above "
            f"{many.order}; leading ones are added to the partition of the copies' source, never to the other"
        )
    promoted = many.order - one.order  # leading dimensions of side 1 that P_x gets
    one_dims = range(one.order)[::-1] if transpose_one else range(one.order)
    many_dims = range(many.order)[::-1] if transpose_many else range(many.order)
    dims = dict(zip(one_dims, many_dims[promoted:], strict=True))
    for position, (j, k) in enumerate(dims.items(), start=promoted):
        if one.shape[j] not in (1, many.shape[k]):
            legal = "1" if many.shape[k] == 1 else f"1 or {many.shape[k]}"
            raise ValueError(
                f"partition: {_shape(one, transpose_one)} does not broadcast to {_shape(many, transpose_many)}: in "
                f"dimension {position} the sides are {one.shape[j]} and {many.shape[k]}; the first must be {legal}"
            )
    return BroadcastPattern(one, many, tuple(dims[j] for j in range(one.order)))


@lru_cache(maxsize=64)
def copied_layout(layout: Layout, pattern: BroadcastPattern) -> Layout:
    """The layout over P_y of the copies of a tensor laid over P_x: every worker keeps its source's windows."""
    axes = [None if axis is None else pattern.kept.get(axis) for axis in layout.axes]
    return Layout(layout.shape, pattern.many, layout.windows, axes)


@lru_cache(maxsize=64)
def summed_layout(layout: Layout, pattern: BroadcastPattern) -> Layout:
    """The layout over P_x of the sums of local tensors laid over P_y.

    Raises `ValueError` if workers that are summed hold different windows.
    """
    kept = {k: j for j, k in pattern.kept.items()}
    check_summed("layout", layout, (dim for dim in range(layout.partition.order) if dim not in kept))
    axes = [None if axis is None else kept.get(axis) for axis in layout.axes]
    windows = [
        layout.windows[dim][:1] if axis is None else layout.windows[dim] for dim, axis in enumerate(axes)
    ]
    return Layout(layout.shape, pattern.one, windows, axes)


def _shape(partition: Partition, transposed: bool = False) -> str:
    sides = "x".join(map(str, partition.shape))
    return f"{'x'.join(map(str, partition.shape[::-1]))} ({sides} transposed)" if transposed else sides
