"""Boxes of global indices, one interval for each dimension of a tensor, and local tensors that are made of boxes.

Pure data. An interval (start, stop) is half open, as a slice is; a box is empty if any of its intervals is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from types import EllipsisType
from typing import TypeAlias

from adjointlab.core.layout import Window
from adjointlab.core.program import Buffer, Region

__all__ = [
    "Assembly",
    "Box",
    "ViewIndex",
    "assemble",
    "index_in",
    "intersection",
    "multiplicity",
    "region_in",
    "relative_to",
    "size_of",
    "view_index",
]

Box: TypeAlias = tuple[Window, ...]

ViewIndex: TypeAlias = tuple[slice | EllipsisType, ...]
"""An index that gives a view of an array. With the trailing ``...`` it also does for arrays of order 0, and for batches."""


def size_of(box: Box) -> int:
    """Number of elements."""
    return math.prod(stop - start for start, stop in box)


def multiplicity(windows: Iterable[Window]) -> int:
    """The largest number of windows that hold one element."""
    # Sweep: +1 where a window starts, -1 where it stops; at a tie the stop sorts first, as intervals are half open.
    steps = sorted((end, step) for window in windows for end, step in zip(window, (1, -1), strict=True))
    return max(accumulate(step for _, step in steps), default=0)


def intersection(one: Box, other: Box) -> Box | None:
    """Box of the elements in both, or `None` if there are none."""
    both = tuple((max(a[0], b[0]), min(a[1], b[1])) for a, b in zip(one, other, strict=True))
    return both if all(start < stop for start, stop in both) else None


def relative_to(window: Box, box: Box) -> Box:
    """Return a box of global indices in the coordinates of the local tensor that holds `window`."""
    return tuple((start - first, stop - first) for (start, stop), (first, _) in zip(box, window, strict=True))


def view_index(box: Box) -> ViewIndex:
    """Index of a box of local indices in its array."""
    return (*(slice(start, stop) for start, stop in box), ...)


def index_in(window: Box, box: Box) -> ViewIndex:
    """Index of a box of global indices in the array that holds `window`."""
    return view_index(relative_to(window, box))


def region_in(buffer: Buffer, window: Box, box: Box) -> Region:
    """A box of global indices as a region of the buffer that holds `window`."""
    return Region(buffer.rank, buffer.name, relative_to(window, box))


@dataclass(frozen=True)
class Assembly:
    """The steps that make a local tensor of boxes: clear some parts, copy boxes, then add the other boxes.

    `copied` and `added` are positions in the list of boxes. A box is added after all copies, in the order given.
    """

    cleared: tuple[Box, ...]
    copied: tuple[int, ...]
    added: tuple[int, ...]


def assemble(shape: Sequence[int], boxes: Sequence[Box], disjoint_or_equal: bool) -> Assembly:
    """Return the steps that make a local tensor of `shape` of `boxes`, summed where they overlap, and zero where there are none.

    Equal boxes are summed in the order of the list. `disjoint_or_equal` means that no two boxes overlap in part,
    which saves comparing all pairs.
    """
    whole: Box = tuple((0, side) for side in shape)
    # By size, so that a box inside another comes after it and can be added to it.
    by_size = sorted(range(len(boxes)), key=lambda position: -size_of(boxes[position]))
    copied: dict[Box, int] = {}
    added = []
    for position in by_size:
        box = boxes[position]
        if box in copied:
            added.append(position)
        elif disjoint_or_equal or all(intersection(box, other) is None for other in copied):
            copied[box] = position
        elif any(intersection(box, other) == box for other in copied):
            added.append(position)
        else:
            # It overlaps a copied box in part, as the cotangents of a target with halos do: a part would have to be copied and
            # the rest added. So everything is cleared and all boxes are added.
            return Assembly((whole,) if size_of(whole) else (), (), tuple(by_size))
    covered = sum(map(size_of, copied))
    if covered == size_of(whole):
        return Assembly((), tuple(copied.values()), tuple(added))
    # The copies usually fill their hull: then only the region around it is cleared, such as padding around a tensor.
    hull = tuple(
        (min(start for start, _ in dim), max(stop for _, stop in dim)) for dim in zip(*copied, strict=True)
    )
    rest = tuple(_around(whole, hull)) if copied and covered == size_of(hull) else (whole,)
    return Assembly(rest, tuple(copied.values()), tuple(added))


# A slab spans `hull` in the dimensions before its own and `whole` in those after it:
#
#     whole +-------------------+
#           | 0                 |   slabs of dimension 0 (rows)
#           +----+--------+-----+
#           | 1  |  hull  | 1   |   slabs of dimension 1 (columns)
#           +----+--------+-----+
#           | 0                 |
#           +-------------------+
def _around(whole: Box, hull: Box) -> Iterator[Box]:
    """Disjoint boxes that make up `whole` without `hull`: two slabs for each dimension."""
    for dim, ((first, last), (start, stop)) in enumerate(zip(whole, hull, strict=True)):
        for slab in ((first, start), (stop, last)):
            if slab[0] < slab[1]:
                yield (*hull[:dim], slab, *whole[dim + 1 :])
