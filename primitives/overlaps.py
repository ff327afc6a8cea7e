"""Which regions of a tensor travel between which workers when it goes from one layout to another.

A worker r of P_x holds the window X_r of the tensor and a worker s of P_y the window Y_s. What r has for s is their
intersection. A window is an interval in each dimension, so the intersection is one box, and one message for a pair of
workers is enough.

Where several workers hold copies of one window, of which any may take part, they form a *place*: a grid index with 0
along the dimensions of these copies. Two places exchange their box once, between one worker of each: a worker that is
at both keeps what it has, and nothing travels; otherwise the places are spread over each other's workers by their
numbers. Places whose workers must end up equal, one by one, take a box at the same of their workers: which one, the first
of these places says. The rule does not know source from target, so the overlaps of the way back are the same.

Pure data, for any rank on any rank. A rank's overlaps cost it a step for each worker that it shares elements with, and
the sides of the grids, not all pairs of workers.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, product
from types import EllipsisType

from adjointlab.core.layout import Layout, Window
from adjointlab.core.partition import Index, shared_property
from adjointlab.core.space import LocalType, Tensor

__all__ = [
    "Assembly",
    "Box",
    "Overlap",
    "Overlaps",
    "Place",
    "Side",
    "assemble",
    "gaps",
    "overlaps",
    "place",
    "within",
]

Box = tuple[Window, ...]
"""An interval in each dimension."""

Place = tuple[slice | EllipsisType, ...]
"""An index that gives a view, also of an array of order 0 and of a batch."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """What one worker has for another: a box of global indices, inside the tensor and not empty."""

    source: int
    target: int
    box: Box

    @property
    def travels(self) -> bool:
        """Whether it is a message; else the worker has it already."""
        return self.source != self.target

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(stop - start for start, stop in self.box)


@dataclass(frozen=True)
class Side:
    """One end of a repartition: a layout, and for each dimension of its partition whether one of the workers along it
    takes part, whichever (`single`), or every one does. Along a single dimension all workers hold the same windows.

    Along an `equal` dimension every worker of a target gets the same, and of a source all are summed: on the way back each
    gets the same. Where a dimension is single besides, it matters which worker takes part: the same one along all of the
    equal dimension.
    """

    layout: Layout
    single: tuple[bool, ...]
    equal: tuple[bool, ...]

    @classmethod
    def of_source(cls, tensor: Tensor) -> Side:
        """Any one of shared copies is read, and all summands are."""
        return cls(tensor.layout, *_sharing(tensor))

    @classmethod
    def of_target(cls, tensor: Tensor) -> Side:
        """Any one of summands is written, and all shared copies are."""
        return cls(tensor.layout, *reversed(_sharing(tensor)))

    def place(self, rank: int) -> Index:
        """Where an active rank stands: its grid index, 0 along single dimensions."""
        index = self.layout.partition.index(rank)
        return tuple(0 if single else i for i, single in zip(index, self.single, strict=True))

    def first(self, place: Index) -> Index:
        """The first of the places that must end up equal to `place`."""
        return tuple(0 if equal else i for i, equal in zip(place, self.equal, strict=True))

    def beside(self, place: Index, rank: int) -> int:
        """The worker of a place that stands along single dimensions where `rank` does."""
        index = zip(place, self.layout.partition.index(rank), self.single, strict=True)
        return self.layout.partition.rank([its if single else i for i, its, single in index])

    def number(self, place: Index) -> int:
        """The places in row-major order, counted from 0."""
        number = 0
        for i, side, single in zip(place, self.layout.partition.shape, self.single, strict=True):
            number = number if single else number * side + i
        return number

    def holder(self, place: Index, number: int) -> int:
        """The worker of a place that is the `number`-th in turn."""
        partition = self.layout.partition
        position, stride = 0, 1
        for i, side, single in zip(place[::-1], partition.shape[::-1], self.single[::-1], strict=True):
            if single:
                number, i = divmod(number, side)
            position += i * stride
            stride *= side
        return partition.ranks[position]

    def holders(self, place: Index) -> Iterator[int]:
        """All workers of a place."""
        sides = zip(place, self.layout.partition.shape, self.single, strict=True)
        for index in product(*(range(side) if single else (i,) for i, side, single in sides)):
            yield self.layout.partition.rank(index)

    @shared_property
    def lines(self) -> tuple[_Line, ...]:
        """The windows of each dimension, to be searched."""
        layout = self.layout
        return tuple(
            _Line.of(windows, side) for windows, side in zip(layout.windows, layout.shape, strict=True)
        )

    @shared_property
    def holds_anything(self) -> bool:
        """Whether some worker holds an element of the tensor."""
        return all(line.entries for line in self.lines)

    def copies(self, dim: int) -> int:
        """The largest number of workers along dimension `dim` of the partition that hold one element of the tensor."""
        if not self.holds_anything:
            return 1
        axes = self.layout.axes
        return self.lines[axes.index(dim)].depth if dim in axes else self.layout.partition.shape[dim]

    @shared_property
    def terms(self) -> int:
        """The largest number of workers that hold one element and all take part: so many are summed, or get it."""
        return math.prod(self.copies(dim) for dim, single in enumerate(self.single) if not single)

    @shared_property
    def is_regular(self) -> bool:
        """Whether the windows of any two places are the same or disjoint, inside the tensor."""
        return all(copied or self.copies(dim) == 1 for dim, copied in enumerate(self.layout.copied))

    def meeting(self, window: Box) -> tuple[list[list[tuple[int, Window | None]]], Box] | None:
        """The places whose windows meet `window`: for each dimension of the partition their indices along it, with the
        part of the tensor's dimension that they share if one lies along it; and the parts shared along the others.

        `None` if there are none.
        """
        shared = [line.meet(part) for line, part in zip(self.lines, window, strict=True)]
        if not all(shared):
            return None
        axes = self.layout.axes
        indices: list[list[tuple[int, Window | None]]] = []
        for dim, side in enumerate(self.layout.partition.shape):
            along: list[tuple[int, Window | None]] = (
                [*shared[axes.index(dim)]] if dim in axes else [(i, None) for i in range(side)]
            )
            indices.append(along[:1] if self.single[dim] else along)
        return indices, tuple(parts[0][1] for parts in shared)


@dataclass(frozen=True)
class Overlaps:
    """All that goes from the source to the target. Make it with :func:`overlaps`, which shares what is known."""

    source: Side
    target: Side

    @property
    def reversed(self) -> Overlaps:
        """The same boxes on their way back."""
        return overlaps(self.target, self.source)

    def leaving(self, rank: int) -> tuple[Overlap, ...]:
        """What `rank` has for others, and for itself, by the places of the target."""
        if not self.source.layout.partition.is_active(rank):
            return ()
        return _from_place(self, self.source.place(rank)).get(rank, ())

    def arriving(self, rank: int) -> tuple[Overlap, ...]:
        """What others, and itself, have for `rank`, by the places of the source: so workers with the same window find
        the same boxes in the same order.
        """
        return tuple(Overlap(back.target, back.source, back.box) for back in self.reversed.leaving(rank))


@lru_cache(maxsize=64)
def overlaps(source: Side, target: Side) -> Overlaps:
    """What goes from the one side to the other: the same object for all who ask."""
    return Overlaps(source, target)


@lru_cache(maxsize=64)  # all workers of a place ask the same, and each asks for both directions
def _from_place(entries: Overlaps, place: Index) -> dict[int, tuple[Overlap, ...]]:
    """What the workers of a place of the source have for the target."""
    source, target = entries.source, entries.target
    window = source.layout.window(source.holder(place, 0))
    assert window is not None
    if (meeting := target.meeting(window)) is None:
        return {}
    indices, shared = meeting
    at_both, first_at_both = _at_both(entries, place), _at_both(entries, source.first(place))
    number = source.number(place)
    found: dict[int, list[Overlap]] = {}
    for met in product(*indices):
        other = tuple(i for i, _ in met)
        box = tuple(
            part if axis is None else met[axis][1] or part
            for part, axis in zip(shared, target.layout.axes, strict=True)
        )
        if (common := first_at_both.get(other)) is not None:
            sender = source.beside(place, common)
        else:
            sender = source.holder(place, target.number(other))
        if (common := at_both.get(target.first(other))) is not None:
            receiver = target.beside(other, common)
        else:
            receiver = target.holder(other, number)
        found.setdefault(sender, []).append(Overlap(sender, receiver, box))
    return {rank: tuple(leaving) for rank, leaving in found.items()}


def _at_both(entries: Overlaps, place: Index) -> dict[Index, int]:
    """The workers of a place of the source that are in the target, by their places there.

    Of several, the lowest: each side can know it without the other.
    """
    return {
        entries.target.place(rank): rank
        for rank in sorted(entries.source.holders(place), reverse=True)
        if entries.target.layout.partition.is_active(rank)
    }


def _sharing(tensor: Tensor) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
    """For each dimension of the partition whether the workers along it share values, and whether they hold summands."""
    return (
        tuple(entry.is_shared for entry in tensor.types),
        tuple(entry is LocalType.PARTIAL for entry in tensor.types),
    )


@lru_cache(maxsize=64)
def gaps(source: Side, target: Side) -> tuple[int, tuple[Window, ...]] | None:
    """The first dimension in which the target needs elements of the tensor that nobody in the source holds, and those.

    `None` if there are none: an element is held where it is held in each dimension.
    """
    if not target.holds_anything:
        return None
    for dim, (needed, held) in enumerate(zip(target.lines, source.lines, strict=True)):
        missing = tuple(part for window in needed.union for part in _outside(window, held.union))
        if missing:
            return dim, missing
    return None


def within(box: Box, window: Box) -> Box:
    """A box of global indices in the local tensor that holds `window`."""
    return tuple((start - first, stop - first) for (start, stop), (first, _) in zip(box, window, strict=True))


def place(box: Box) -> Place:
    """A box as an index of its local tensor."""
    return (*(slice(start, stop) for start, stop in box), ...)


@dataclass(frozen=True)
class Assembly:
    """How a local tensor is made of boxes: it is cleared in some, then boxes are copied into it and others added.

    `copied` and `added` are positions in the list of boxes. A box is added after all copies, in the order given.
    """

    cleared: tuple[Box, ...]
    copied: tuple[int, ...]
    added: tuple[int, ...]


def assemble(shape: Sequence[int], boxes: Sequence[Box], regular: bool) -> Assembly:
    """Make a local tensor of the shape out of `boxes`, which are summed where they overlap; zero where there are none.

    Nothing is cleared that is overwritten anyway, as far as that is simple. The sum of boxes that are equal is taken
    in their order. With `regular`, any two boxes are the same or disjoint.
    """
    whole = tuple((0, side) for side in shape)
    # The largest first: what is added to a part of a box finds it there.
    order = sorted(range(len(boxes)), key=lambda position: -_size(boxes[position]))
    copied: dict[Box, int] = {}
    added = []
    for position in order:
        box = boxes[position]
        if box in copied:
            added.append(position)
        elif regular or not any(_meet(box, other) for other in copied):
            copied[box] = position
        elif any(_contains(other, box) for other in copied):
            added.append(position)
        else:
            return Assembly((whole,) if _size(whole) else (), (), tuple(order))
    covered = sum(map(_size, copied))
    if covered == _size(whole):
        return Assembly((), tuple(copied.values()), tuple(added))
    hull = tuple(
        (min(start for start, _ in dim), max(stop for _, stop in dim)) for dim in zip(*copied, strict=True)
    )
    rest = tuple(_around(whole, hull)) if copied and covered == _size(hull) else (whole,)
    return Assembly(rest, tuple(copied.values()), tuple(added))


@dataclass(frozen=True)
class _Line:
    """The windows along one dimension, cut off at the ends of the tensor; those that hold something, by their starts."""

    entries: tuple[tuple[int, int, int], ...]  # start, stop, index along the partition
    starts: tuple[int, ...]
    furthest: tuple[int, ...]  # the largest stop so far

    @classmethod
    def of(cls, windows: Sequence[Window], side: int) -> _Line:
        clipped = ((max(0, start), min(side, stop), i) for i, (start, stop) in enumerate(windows))
        entries = tuple(sorted(entry for entry in clipped if entry[0] < entry[1]))
        return cls(
            entries, tuple(entry[0] for entry in entries), tuple(accumulate((e[1] for e in entries), max))
        )

    def meet(self, window: Window) -> list[tuple[int, Window]]:
        """The indices along the partition whose windows share elements with `window`, and these, by index."""
        first, last = window
        if first >= last:
            return []
        candidates = self.entries[bisect_right(self.furthest, first) : bisect_left(self.starts, last)]
        return sorted(
            (i, (max(start, first), min(stop, last))) for start, stop, i in candidates if stop > first
        )

    @cached_property
    def depth(self) -> int:
        """The largest number of windows that hold one element."""
        steps = sorted(
            [(start, 1) for start, _, _ in self.entries] + [(stop, -1) for _, stop, _ in self.entries]
        )
        return max(accumulate(step for _, step in steps), default=0)

    @cached_property
    def union(self) -> list[Window]:
        """The intervals that are held, in order and apart."""
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


def _around(whole: Box, hull: Box) -> Iterator[Box]:
    """Disjoint boxes that make up `whole` without `hull`."""
    for dim, ((first, last), (start, stop)) in enumerate(zip(whole, hull, strict=True)):
        for part in ((first, start), (stop, last)):
            if part[0] < part[1]:
                yield (*hull[:dim], part, *whole[dim + 1 :])


def _size(box: Box) -> int:
    return math.prod(stop - start for start, stop in box)


def _meet(one: Box, other: Box) -> bool:
    return all(max(a[0], b[0]) < min(a[1], b[1]) for a, b in zip(one, other, strict=True))


def _contains(outer: Box, inner: Box) -> bool:
    return all(a[0] <= b[0] and b[1] <= a[1] for a, b in zip(outer, inner, strict=True))
