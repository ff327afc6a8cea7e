"""Layouts: the window of a global tensor that each worker holds.

One dimension of length 10, laid along three workers, in four layouts::

    index    -1   0   1   2   3   4   5   6   7   8   9  10
    cut          [0   1   2   3] [4   5   6] [7   8   9]        (0, 4) (4, 7) (7, 10), written 0|4|7|10
    halos        [0   1   2   3   4]                            (0, 5)
                             [3   4   5   6   7]                (3, 8)
                                         [6   7   8   9]        (6, 10)
    padding [-1   0   1   2   3] [4   5   6] [7   8   9  10]    (-1, 4) (4, 7) (7, 11)
    gaps             [1   2   3]     [5   6] [7   8]            (1, 4) (5, 7) (7, 9)

A tensor of several dimensions has such a list of windows for each, and a worker holds the box that is their product::

    shape [4, 6] over a 2x3 partition      columns  0     2  3        6
                                           rows  0  +-----+--+--------+
    cut at 0|3|4, 0|2|3|6                           |  0  |1 |   2    |
                                                 3  +-----+--+--------+
    rank 5 holds x[3:4, 3:6]                        |  3  |4 |   5    |
                                                 4  +-----+--+--------+
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise, product
from operator import index as integer
from typing import TYPE_CHECKING

from adjointlab.core.partition import (
    Index,
    Partition,
    PartitionLike,
    as_partition,
    entries,
    integers,
    shared_property,
    whole_number,
)
from adjointlab.pictures.drawable import Drawable
from adjointlab.quantities import counted

if TYPE_CHECKING:
    from adjointlab.pictures.model import Drawing

__all__ = ["Layout", "Window", "balanced_cut", "balanced_windows"]

Window = tuple[int, int]
"""A half-open interval [start, stop) of global indices along one dimension."""


class _Checked(tuple[Window, ...]):
    """The windows of one dimension, known to be pairs of integers none of which stops before it starts.

    A layout that takes them over from another does not check or hash them again: each of P simulated ranks makes its own layouts
    of P windows.
    """

    @cached_property
    def _hash(self) -> int:
        return super().__hash__()

    def __hash__(self) -> int:
        return self._hash


# Neither of the next two classes refers to the layout that owns it: such a cycle would wait for a garbage collection, and a case
# makes many layouts.
class _WindowsByRank(dict[int, tuple[Window, ...] | None]):
    """The windows of a layout by rank, each computed at its first use; `None` for an inactive rank."""

    def __init__(
        self, partition: Partition, windows: Sequence[Sequence[Window]], axes: Sequence[int | None]
    ) -> None:
        super().__init__()
        self._partition, self._windows, self._axes = partition, windows, axes

    def __missing__(self, rank: int) -> tuple[Window, ...] | None:
        rank = whole_number("rank", rank)
        window = None
        if self._partition.is_active(rank):
            index = self._partition.index(rank)
            window = tuple(
                dim[0] if axis is None else dim[index[axis]]
                for dim, axis in zip(self._windows, self._axes, strict=True)
            )
        self[rank] = window
        return window


class _LocalShapes(dict[int, tuple[int, ...]]):
    """The shapes of a layout's local tensors by rank, each computed at its first use."""

    def __init__(self, windows: _WindowsByRank, order: int) -> None:
        super().__init__()
        self._windows, self._order = windows, order

    def __missing__(self, rank: int) -> tuple[int, ...]:
        window = self._windows[rank]
        shape = (
            (0,) * max(1, self._order) if window is None else tuple(stop - start for start, stop in window)
        )
        self[rank] = shape
        return shape


def balanced_cut(length: int, parts: int) -> tuple[int, ...]:
    """Return the boundaries 0 = c_0 <= ... <= c_parts = length; the first parts take one of the remainder each.

    Raises `ValueError` for a negative length, and for fewer than one part.
    """
    if length < 0 or parts < 1:
        raise ValueError(
            f"length: {length} elements cannot be cut into {parts} parts; at least 0 into at least 1 can"
        )
    least, remainder = divmod(length, parts)
    return tuple(part * least + min(part, remainder) for part in range(parts + 1))


@dataclass(frozen=True)
class Layout(Drawable):
    """For each worker and each dimension of a global tensor, the window of global indices that it holds.

    `partition` may be given by its shape: ``(2, 3)`` is the grid of the ranks 0 to 5.
    Dimension k of the tensor lies along dimension ``axes[k]`` of the partition (default: k, so the orders must be equal), or
    along none (``None``: every worker holds the only window). ``windows[k]`` has one window for each index along that
    partition dimension. Partition dimensions that no tensor dimension uses hold copies.

    The usual layout is a *cut* (:meth:`cut`): the windows of each dimension are disjoint and cover it. In general they may be
    empty, overlap, reach beyond the tensor and leave gaps.

    Raises `ValueError` for a partition of another order than the tensor, a negative side, a window that stops before it starts,
    or a number of windows that does not match the partition; `TypeError` for a value that is not an integer.
    """

    shape: tuple[int, ...]
    partition: Partition
    windows: tuple[tuple[Window, ...], ...]
    axes: tuple[int | None, ...]

    def __init__(
        self,
        shape: Sequence[int],
        partition: PartitionLike,
        windows: Sequence[Sequence[Window]] | None = None,
        axes: Sequence[int | None] | None = None,
    ) -> None:
        sides = integers("shape", shape)
        if any(side < 0 for side in sides):
            raise ValueError(f"shape: a side of a tensor is at least 0, not {sides}")
        partition = as_partition("partition", partition)
        partition_dims = (
            tuple(range(len(sides)))
            if axes is None
            else entries("axes", axes, "a dimension of the partition, or None, for each of the tensor")
        )
        _check_axes(sides, partition, partition_dims, given=axes is not None)
        counts = tuple(1 if axis is None else partition.shape[axis] for axis in partition_dims)
        if windows is None:
            all_windows = tuple(map(balanced_windows, sides, counts))
        else:
            all_windows = _windows(windows)
        if len(all_windows) != len(sides):
            raise ValueError(
                f"windows: a tensor of order {len(sides)} needs {counted(len(sides), 'list')}, not {len(all_windows)}"
            )
        for dim, (dim_windows, count) in enumerate(zip(all_windows, counts, strict=True)):
            if len(dim_windows) != count:
                raise ValueError(
                    f"windows: dimension {dim} lies along {counted(count, 'worker')} but has {counted(len(dim_windows), 'window')} "
                    f"{dim_windows}"
                )
            # A window that stops before it starts would have a negative length; an empty one is legal anywhere.
            if type(dim_windows) is not _Checked and (wrong := [w for w in dim_windows if w[1] < w[0]]):
                raise ValueError(f"windows: in dimension {dim} the window {wrong[0]} stops before it starts")
        object.__setattr__(self, "shape", sides)
        object.__setattr__(self, "partition", partition)
        object.__setattr__(self, "windows", tuple(map(_checked, all_windows)))
        object.__setattr__(self, "axes", partition_dims)

    @cached_property
    def _hash(self) -> int:
        # Computed once, since it is linear in the number of windows. Without the axes: before Python 3.12 the hash of None differs
        # between processes, and a layout that is pickled keeps its hash.
        return hash((self.shape, self.partition, self.windows))

    def __hash__(self) -> int:
        return self._hash

    @classmethod
    def cut(
        cls,
        shape: Sequence[int],
        partition: PartitionLike,
        cuts: Sequence[Sequence[int] | None],
        axes: Sequence[int | None] | None = None,
    ) -> Layout:
        """Return the layout with disjoint windows that cover the tensor, from the boundaries in each dimension.

        ``cuts[k]`` is (0, c_1, ..., n_k), never decreasing; equal neighbours make an empty local tensor; `None` takes the balanced
        cut. Raises `ValueError` for boundaries that decrease or do not cover the dimension.
        """
        sides = integers("shape", shape)
        every = entries("cuts", cuts, "boundaries, or None, for each dimension of the tensor")
        if len(every) != len(sides):
            raise ValueError(
                f"cuts: a tensor of order {len(sides)} needs {counted(len(sides), 'cut')}, not {len(every)}"
            )
        balanced = cls(sides, partition, axes=axes)
        windows: list[tuple[Window, ...]] = []
        for dim, (side, given) in enumerate(zip(sides, every, strict=True)):
            if given is None:
                windows.append(balanced.windows[dim])
                continue
            ends = integers("cuts", given)
            if not ends or ends[0] != 0 or ends[-1] != side:
                raise ValueError(f"cuts: {ends} do not cover dimension {dim}; they must run from 0 to {side}")
            if len(ends) != len(balanced.windows[dim]) + 1:
                raise ValueError(
                    f"cuts: {ends} make {counted(len(ends) - 1, 'part')} of dimension {dim}, which lies along "
                    f"{counted(len(balanced.windows[dim]), 'worker')}"
                )
            if any(right < left for left, right in pairwise(ends)):
                raise ValueError(f"cuts: {ends} in dimension {dim} decrease; boundaries never do")
            windows.append(_Checked(pairwise(ends)))
        return cls(sides, partition, windows, axes)

    @property
    def order(self) -> int:
        """The number of dimensions of the tensor."""
        return len(self.shape)

    def ends(self, dim: int) -> tuple[int, ...] | None:
        """Return the boundaries 0 = c_0 <= ... <= c_parts of dimension `dim` if its windows, in their order, cut it."""
        try:
            return self._ends[dim]
        except (IndexError, TypeError):
            raise ValueError(f"dim: {dim!r} is not a dimension of a tensor of order {self.order}") from None

    @shared_property
    def _ends(self) -> tuple[tuple[int, ...] | None, ...]:
        return tuple(
            (0, *(stop for _, stop in windows)) if _covers(windows, side) else None
            for windows, side in zip(self.windows, self.shape, strict=True)
        )

    def window(self, rank: int) -> tuple[Window, ...] | None:
        """Return the window of `rank` in every dimension, or `None` for an inactive rank; raise `TypeError` unless it is a whole number."""
        try:
            return self._windows_by_rank[rank]
        except TypeError:  # not hashable, such as a list
            return self._windows_by_rank[whole_number("rank", rank)]

    @cached_property
    def _windows_by_rank(self) -> _WindowsByRank:
        return _WindowsByRank(self.partition, self.windows, self.axes)

    def local_shape(self, rank: int) -> tuple[int, ...]:
        """Return the shape of the local tensor of *any* rank.

        An inactive rank holds a zero-volume tensor: shape (0, ..., 0), or (0,) for a tensor of order 0, whose own shape () has
        one element.
        """
        return self.local_shapes[rank]

    @cached_property
    def local_shapes(self) -> Mapping[int, tuple[int, ...]]:
        """:meth:`local_shape` by rank, without the cost of a function call: every call of every operator looks one up."""
        return _LocalShapes(self._windows_by_rank, self.order)

    @shared_property
    def _holds_anything(self) -> bool:
        """True if some local tensor has an element, that is if each dimension has a window that is not empty."""
        return all(map(_held, self.windows))

    def local_size(self, rank: int) -> int:
        """Return the number of elements that `rank` holds."""
        return math.prod(self.local_shape(rank))

    def to_global(self, rank: int, local: Sequence[int]) -> Index:
        """Return the global index of a local element; in padding it lies outside the tensor.

        Raises `ValueError` for an index that the local tensor does not have.
        """
        window, local = self.window(rank), integers("local", local)
        shape = self.local_shape(rank)
        if (
            window is None
            or len(local) != len(shape)
            or any(not 0 <= i < n for i, n in zip(local, shape, strict=True))
        ):
            raise ValueError(f"local: {local} is not in the local tensor of rank {rank}, of shape {shape}")
        return tuple(i + start for i, (start, _) in zip(local, window, strict=True))

    @shared_property
    def untiled(self) -> int | None:
        """The first dimension whose windows, in any order, are not disjoint or do not cover the tensor; `None` if there is none."""
        for dim, (windows, side) in enumerate(zip(self.windows, self.shape, strict=True)):
            if not _covers(_held(windows), side):
                return dim
        return None

    @shared_property
    def overlapping(self) -> tuple[bool, ...]:
        """For each partition dimension, True if some element is held at two or more indices along it.

        Elements in padding count. If all local tensors are empty, no element is held.
        """
        # A worker's box is a product of windows, so two boxes meet if their windows do in every tensor dimension. Along one partition
        # dimension only the tensor dimensions laid along it differ; there is at most one, and with none there are copies.
        return tuple(
            self._holds_anything
            and side >= 2
            and all(
                _overlap(self.windows[dim]) for dim, axis in enumerate(self.axes) if axis == partition_dim
            )
            for partition_dim, side in enumerate(self.partition.shape)
        )

    @shared_property
    def copied(self) -> tuple[bool, ...]:
        """For each partition dimension, True if all indices along it hold the same windows."""
        return tuple(
            all(
                len(set(self.windows[dim])) < 2 for dim, axis in enumerate(self.axes) if axis == partition_dim
            )
            for partition_dim in range(self.partition.order)
        )

    @shared_property
    def hull(self) -> tuple[Window, ...]:
        """In each dimension, the smallest window that contains the tensor and every worker's window."""
        return tuple(
            (min(0, *(start for start, _ in dim)), max(side, *(stop for _, stop in dim)))
            for dim, side in zip(self.windows, self.shape, strict=True)
        )

    def drawing(self) -> Drawing:
        """Return the windows of all ranks as a drawing."""
        from adjointlab.pictures.layouts import layout_drawing

        return layout_drawing(self)

    def __str__(self) -> str:
        workers = self.workers_in_order
        over = "" if workers == tuple(range(len(workers))) else f" over ranks {', '.join(map(str, workers))}"
        return self.without_workers + over

    @property
    def without_workers(self) -> str:
        """The text of the layout, without the ranks that hold the windows."""
        held = []
        for dim, (side, axis) in enumerate(zip(self.shape, self.axes, strict=True)):
            windows = self.windows[dim]
            if axis is None:
                ((start, stop),) = windows
                held.append("whole" if (start, stop) == (0, side) else f"{start}:{stop}")
            elif _covers(windows, side):
                held.append("|".join(map(str, (0, *(stop for _, stop in windows)))))
            else:
                held.append(" ".join(f"{start}:{stop}" for start, stop in windows))
        text = ", ".join(held)
        kind = "cut at " if "|" in text else "windows " if ":" in text else ""
        return f"[{', '.join(map(str, self.shape))}] {kind}{text}".rstrip()

    @property
    def workers_in_order(self) -> tuple[int, ...]:
        """The ranks in row-major order of the tensor's dimensions, followed by those of copies, whatever the axes are."""
        along = [axis for axis in self.axes if axis is not None]
        copies = [axis for axis in range(self.partition.order) if axis not in along]
        order = [*along, *copies]
        inverse = [order.index(axis) for axis in range(self.partition.order)]
        grid = product(*(range(self.partition.shape[axis]) for axis in order))
        return tuple(self.partition.rank([index[dim] for dim in inverse]) for index in grid)


@lru_cache(maxsize=64)
def balanced_windows(length: int, parts: int) -> tuple[Window, ...]:
    """Return the windows of the balanced cut, as one tuple for all callers, so that comparing two of them takes no time.

    Raises `ValueError` if :func:`balanced_cut` does.
    """
    return _Checked(pairwise(balanced_cut(length, parts)))


def _checked(windows: tuple[Window, ...]) -> _Checked:
    return windows if type(windows) is _Checked else _Checked(windows)


def _windows(windows: Sequence[Sequence[Window]]) -> tuple[tuple[Window, ...], ...]:
    try:
        return tuple(dim if type(dim) is _Checked else _pairs(tuple(dim)) for dim in windows)
    except (TypeError, ValueError):
        raise TypeError(
            f"windows: {windows!r} is not a list of (start, stop) for each dimension; boundaries are for Layout.cut"
        ) from None


def _pairs(windows: tuple[Window, ...]) -> tuple[Window, ...]:
    # Converted all at once, for speed: each of P simulated ranks converts P windows.
    starts, stops = zip(*windows, strict=True) if windows else ((), ())
    return tuple(zip(map(integer, starts), map(integer, stops), strict=True))


def _check_axes(
    shape: tuple[int, ...], partition: Partition, axes: tuple[int | None, ...], given: bool
) -> None:
    if not given and len(shape) != partition.order:
        raise ValueError(
            f"partition: of order {partition.order} ({partition}), but the tensor {list(shape)} has order "
            f"{len(shape)}; promote the partition or say with `axes` which dimension lies along which"
        )
    if len(axes) != len(shape):
        raise ValueError(
            f"axes: a tensor of order {len(shape)} needs {counted(len(shape), 'entry', 'entries')}, not {axes}"
        )
    used = integers("axes", [axis for axis in axes if axis is not None])
    if len(set(used)) != len(used) or any(not 0 <= axis < partition.order for axis in used):
        raise ValueError(
            f"axes: {axes} are not distinct dimensions of a partition of order {partition.order}"
        )


def _overlap(windows: Sequence[Window]) -> bool:
    # Sorted by start, two windows overlap if and only if two neighbours do.
    return any(right[0] < left[1] for left, right in pairwise(_held(windows)))


def _held(windows: Sequence[Window]) -> list[Window]:
    """The windows that are not empty, sorted by their starts: empty ones hold nothing, wherever they lie."""
    return sorted(window for window in windows if range(*window))


def _covers(windows: Sequence[Window], side: int) -> bool:
    """Return True if the windows, in order, run from 0 to `side` without gap or overlap."""
    ends = [0, *(stop for _, stop in windows)]  # each window must start where the one before stops
    return ends[-1] == side and all(start == end for (start, _), end in zip(windows, ends, strict=False))
