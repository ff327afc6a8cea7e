"""Regions of a tensor that are sent between workers when it goes from one layout to another.

A worker r of P_x holds the window X_r of the tensor and a worker s of P_y needs the window Y_s. What r has for s is
X_r ∩ Y_s. A window is an interval in each dimension, so this is one box, and one message for a pair of workers is enough.
Workers that hold copies form replica groups, of which one member takes part.

Pure data, for any rank on any rank. The overlaps of a rank cost one step for each worker that it shares elements with and
one for each index of the grids' sides; pairs of workers that share nothing cost nothing.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, product

from adjointlab.core.layout import Layout, Window
from adjointlab.core.partition import Index, shared_property
from adjointlab.core.space import LocalType, Tensor
from adjointlab.primitives.boxes import Box, multiplicity, size_of

__all__ = ["Endpoint", "Overlap", "Overlaps", "gaps", "overlaps"]


# Two workers of P_x, three of P_y, and a tensor of one dimension:
#
#     index of the tensor     0   1   2   3   4   5   6   7
#     in X_r of r =           0   0   0   0   0   1   1   1
#     in Y_s of s =           0   0   0   1   1   1   2   2
#     boxes, r→s            [   0→0   ] [ 0→1 ][1→1][ 1→2 ]
@dataclass(frozen=True, slots=True)
class Overlap:
    """A box of global indices, inside the tensor and not empty, that worker `source` has for worker `target`."""

    source: int
    target: int
    box: Box

    @property
    def is_sent(self) -> bool:
        """Return True if it is a message; otherwise the worker has it already."""
        return self.source != self.target

    @property
    def size(self) -> int:
        """Number of elements."""
        return size_of(self.box)


# Where several workers hold copies of one window and any one of them may take part, they form a
# *replica group*. Its index is their common grid index, with 0 along the dimensions of these copies:
#
#     a grid of 2 x 3 workers     0  1  2     the group (0, 0)
#     with copies along rows      3  4  5     the group (1, 0)
@dataclass(frozen=True)
class Endpoint:
    """One end of a repartition: a layout, and the workers that take part along each dimension of its partition.

    Along an `interchangeable` dimension all workers hold the same windows and any one of them takes part: they are a replica
    group. Along the others every worker takes part.

    Along an `agreeing` dimension every worker of a target gets the same values, and those of a source are all summed (on the
    way back each gets the same). If another dimension is interchangeable, all workers along the agreeing dimension must choose
    the same index along that one.
    """

    layout: Layout
    interchangeable: tuple[bool, ...]
    agreeing: tuple[bool, ...]

    @classmethod
    def of_source(cls, tensor: Tensor) -> Endpoint:
        """The end that is read: any one of the shared copies, and all summands."""
        shared, summands = _sharing(tensor)
        return cls(tensor.layout, interchangeable=shared, agreeing=summands)

    @classmethod
    def of_target(cls, tensor: Tensor) -> Endpoint:
        """The end that is written: all shared copies, and any one of the summands (the others hold zero)."""
        shared, summands = _sharing(tensor)
        return cls(tensor.layout, interchangeable=summands, agreeing=shared)

    def group_of(self, rank: int) -> Index:
        """Index of the replica group of an active rank."""
        index = self.layout.partition.index(rank)
        return tuple(0 if any_one else i for i, any_one in zip(index, self.interchangeable, strict=True))

    def first_agreeing(self, group: Index) -> Index:
        """The first of the groups that must end up equal to `group`."""
        return tuple(0 if agrees else i for i, agrees in zip(group, self.agreeing, strict=True))

    def member_aligned_with(self, rank: int, group: Index) -> int:
        """The member of a group that has the grid index of `rank` along interchangeable dimensions."""
        index = zip(group, self.layout.partition.index(rank), self.interchangeable, strict=True)
        return self.layout.partition.rank([of_rank if any_one else i for i, of_rank, any_one in index])

    def group_number(self, group: Index) -> int:
        """Position of a group among all groups, in row-major order of their indices."""
        position = 0
        for i, side, any_one in zip(group, self.layout.partition.shape, self.interchangeable, strict=True):
            position = position if any_one else position * side + i
        return position

    def member(self, group: Index, turn: int) -> int:
        """The member with the number `turn`, modulo the number of members, in row-major order."""
        # One pass over the dimensions, from the last, splits `turn` into digits for the interchangeable dimensions and
        # computes the position of the worker in the partition's list of ranks.
        partition = self.layout.partition
        position, stride = 0, 1
        for i, side, any_one in zip(
            group[::-1], partition.shape[::-1], self.interchangeable[::-1], strict=True
        ):
            if any_one:
                turn, i = divmod(turn, side)
            position += i * stride
            stride *= side
        return partition.ranks[position]

    def members(self, group: Index) -> Iterator[int]:
        """All workers of a group."""
        sides = zip(group, self.layout.partition.shape, self.interchangeable, strict=True)
        for index in product(*(range(side) if any_one else (i,) for i, side, any_one in sides)):
            yield self.layout.partition.rank(index)

    @shared_property
    def sorted_windows(self) -> tuple[_SortedWindows, ...]:
        """The windows of each dimension of the tensor, sorted for searches."""
        layout = self.layout
        return tuple(
            _SortedWindows.of(windows, side)
            for windows, side in zip(layout.windows, layout.shape, strict=True)
        )

    @shared_property
    def holds_anything(self) -> bool:
        """Return True if some worker holds an element of the tensor."""
        return all(held.entries for held in self.sorted_windows)

    def copies(self, grid_dim: int) -> int:
        """The largest number of workers along a dimension of the partition that hold one element of the tensor."""
        if not self.holds_anything:
            return 1
        axes = self.layout.axes
        if grid_dim in axes:
            return self.sorted_windows[axes.index(grid_dim)].depth
        return self.layout.partition.shape[grid_dim]

    @shared_property
    def terms(self) -> int:
        """The largest number of workers that hold one element and take part: those that are summed, or that get it."""
        return math.prod(
            self.copies(grid_dim) for grid_dim, any_one in enumerate(self.interchangeable) if not any_one
        )

    @shared_property
    def is_regular(self) -> bool:
        """Return True if the windows of any two groups are the same or disjoint, inside the tensor."""
        return all(copied or self.copies(grid_dim) == 1 for grid_dim, copied in enumerate(self.layout.copied))

    def groups_meeting(self, window: Box) -> Iterator[tuple[Index, Box]]:
        """Indices of the groups whose windows share elements with `window`, and the box that each shares."""
        shared = [
            windows.meeting(interval) for windows, interval in zip(self.sorted_windows, window, strict=True)
        ]
        if not all(shared):
            return
        # For each dimension of the grid: the indices along it that take part, each with the interval that it shares if a
        # tensor dimension lies along it.
        axes = self.layout.axes
        choices: list[list[tuple[int, Window | None]]] = []
        for grid_dim, side in enumerate(self.layout.partition.shape):
            along: list[tuple[int, Window | None]] = (
                [*shared[axes.index(grid_dim)]] if grid_dim in axes else [(i, None) for i in range(side)]
            )
            choices.append(along[:1] if self.interchangeable[grid_dim] else along)
        # A tensor dimension that lies along no grid dimension has one window, and so one shared interval.
        uncut = [intervals[0][1] for intervals in shared]
        for chosen in product(*choices):
            box = tuple(
                interval if axis is None else chosen[axis][1] or interval
                for interval, axis in zip(uncut, axes, strict=True)
            )
            yield tuple(i for i, _ in chosen), box


@dataclass(frozen=True)
class Overlaps:
    """The overlaps of a source and a target. Make it with :func:`overlaps`, which returns a shared object."""

    source: Endpoint
    target: Endpoint

    @property
    def reversed(self) -> Overlaps:
        """The same boxes in the other direction."""
        return overlaps(self.target, self.source)

    def leaving(self, rank: int) -> tuple[Overlap, ...]:
        """Return the overlaps that `rank` has for others, and for itself, in the order of the target's groups."""
        if not self.source.layout.partition.is_active(rank):
            return ()
        return _leaving_group(self, self.source.group_of(rank)).get(rank, ())

    def arriving(self, rank: int) -> tuple[Overlap, ...]:
        """Return the overlaps that others, and itself, have for `rank`, in the order of the source's groups.

        So workers with the same window find the same boxes in the same order, and sum them in this order.
        """
        return tuple(Overlap(back.target, back.source, back.box) for back in self.reversed.leaving(rank))


@lru_cache(maxsize=64)
def overlaps(source: Endpoint, target: Endpoint) -> Overlaps:
    """Return the overlaps of two ends: one object for all callers."""
    return Overlaps(source, target)


# Two groups, one of the source and one of the target, exchange their box once, between one member of each. The rule:
#
# 1. If a worker is a member of both, it keeps its part and nothing is sent.
# 2. Else the members take turns: the group with the number n sends to, and receives from, member n (modulo the size) of
#    the other, so that the work is spread.
# 3. Groups whose workers must end up with equal values, along agreeing dimensions, use the same of their members: the one
#    that rules 1 and 2 give for the first of these groups. Otherwise a box could be added to one summand here and to
#    another there: their sum would be right, but the copies of each summand would differ.
#
# The rule is symmetric. So the way back, from target to source, has the same boxes between the same workers, and
# sender and receiver find the same pairs without communication.
@lru_cache(maxsize=64)  # all members of a group need the same, and each needs both directions
def _leaving_group(moves: Overlaps, group: Index) -> dict[int, tuple[Overlap, ...]]:
    """Return the overlaps that the members of a group of the source have for the target, by the rank of the member."""
    source, target = moves.source, moves.target
    window = source.layout.window(source.member(group, 0))
    assert window is not None
    in_both = _members_in_both(moves, group)
    first_in_both = _members_in_both(moves, source.first_agreeing(group))
    turn = source.group_number(group)
    leaving_from: dict[int, list[Overlap]] = {}
    for target_group, box in target.groups_meeting(window):
        # Each side chooses by its first agreeing group (rule 3): a common worker of that group if there is one (rule 1),
        # else the member whose turn it is (rule 2).
        if (common := first_in_both.get(target_group)) is not None:
            sender = source.member_aligned_with(common, group)
        else:
            sender = source.member(group, target.group_number(target_group))
        if (common := in_both.get(target.first_agreeing(target_group))) is not None:
            receiver = target.member_aligned_with(common, target_group)
        else:
            receiver = target.member(target_group, turn)
        leaving_from.setdefault(sender, []).append(Overlap(sender, receiver, box))
    return {rank: tuple(leaving) for rank, leaving in leaving_from.items()}


def _members_in_both(moves: Overlaps, group: Index) -> dict[Index, int]:
    """Return the members of a group of the source that are active in the target, by their group there: the lowest of each."""
    return {
        moves.target.group_of(rank): rank
        for rank in sorted(moves.source.members(group), reverse=True)  # the lowest overwrites the others
        if moves.target.layout.partition.is_active(rank)
    }


def _sharing(tensor: Tensor) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
    """Return, for each dimension of the partition, True if the workers along it share values, and True if they hold summands."""
    return (
        tuple(entry.is_shared for entry in tensor.types),
        tuple(entry is LocalType.PARTIAL for entry in tensor.types),
    )


@lru_cache(maxsize=64)
def gaps(source: Endpoint, target: Endpoint) -> tuple[int, tuple[Window, ...]] | None:
    """Return the first dimension in which no worker of the source holds indices that the target needs, and these indices.

    `None` if there are none. Dimensions are independent: an element is held if it is held in each dimension.
    """
    if not target.holds_anything:
        return None
    for dim, (needed, held) in enumerate(zip(target.sorted_windows, source.sorted_windows, strict=True)):
        missing = tuple(part for window in needed.union for part in _outside(window, held.union))
        if missing:
            return dim, missing
    return None


@dataclass(frozen=True)
class _SortedWindows:
    """The windows along one dimension of a tensor that are not empty, clipped to the tensor and sorted by their starts."""

    entries: tuple[tuple[int, int, int], ...]  # start, stop, index along the partition
    starts: tuple[int, ...]
    largest_stops: tuple[int, ...]  # of this entry and all before it: unlike stops, they are ascending

    @classmethod
    def of(cls, windows: Sequence[Window], side: int) -> _SortedWindows:
        clipped = ((max(0, start), min(side, stop), i) for i, (start, stop) in enumerate(windows))
        entries = tuple(sorted(entry for entry in clipped if entry[0] < entry[1]))
        return cls(
            entries, tuple(entry[0] for entry in entries), tuple(accumulate((e[1] for e in entries), max))
        )

    def meeting(self, window: Window) -> list[tuple[int, Window]]:
        """Indices along the partition whose windows share elements with `window`, and these elements, by index."""
        first, last = window
        if first >= last:
            return []
        # Entries before the slice stop too early and those after it start too late. An entry in the slice may still stop
        # before `first`, if an earlier one stops later.
        candidates = self.entries[bisect_right(self.largest_stops, first) : bisect_left(self.starts, last)]
        return sorted(
            (i, (max(start, first), min(stop, last))) for start, stop, i in candidates if stop > first
        )

    @cached_property
    def depth(self) -> int:
        """The largest number of windows that hold one element."""
        return multiplicity((start, stop) for start, stop, _ in self.entries)

    @cached_property
    def union(self) -> list[Window]:
        """The intervals that are held, in order and separated."""
        joined: list[Window] = []
        for start, stop, _ in self.entries:
            if joined and start <= joined[-1][1]:
                joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
            else:
                joined.append((start, stop))
        return joined


def _outside(window: Window, union: Sequence[Window]) -> Iterator[Window]:
    """The parts of `window` that are not in the intervals of `union`."""
    start, end = window
    for first, last in union:
        if start < min(first, end):
            yield start, min(first, end)
        start = max(start, last)
    if start < end:
        yield start, end
