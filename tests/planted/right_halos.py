"""Halo exchanges and repartitions as a user writes them, in plain messages: the faulty ones derive from these.

What a rank sends and receives is computed for every rank on every rank, from cuts and widths alone. A subclass that
overrides one step of that, or one step of the exchange, has one fault.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from hypothesis import strategies as st

import adjointlab as al
from adjointlab import MPI
from adjointlab.core.layout import Window
from tests.planted.right_operators import DTYPES, Operator, shapes

Cut = Sequence[int]
Widths = Sequence[Sequence[tuple[int, int]]]
Index = tuple[slice, ...]


class Messenger(Operator):
    """Messages to and from several ranks at once, which all of them exchange."""

    def messages(
        self, outgoing: Iterable[tuple[int, Any]], incoming: Iterable[tuple[int, Sequence[int]]]
    ) -> list[Any]:
        """Send each (rank, array) and receive for each (rank, shape): what came. Own messages stay here."""
        received, requests, mine, kept = [], [], [], []
        for peer, shape in incoming:
            received.append(self.buffer(peer, shape))
            if peer == self.rank:
                mine.append(received[-1])
            else:
                requests.append(self.comm.Irecv(received[-1], peer))
        for peer, piece in outgoing:
            if peer == self.rank:
                mine.pop(0)[...] = piece
            else:
                kept.append(self.packed(piece))
                requests.append(self.comm.Isend(kept[-1], peer))
        return self.arrived(requests, received)

    def arrived(self, requests: list[Any], received: list[Any]) -> list[Any]:
        """Wait for the messages, and return them."""
        MPI.Request.Waitall(requests)
        return received

    def buffer(self, peer: int, shape: Sequence[int]) -> Any:
        """Memory for what `peer` sends."""
        return np.empty(shape, self.domain.tensors[0].dtype)

    def packed(self, piece: Any) -> Any:
        """A copy of `piece` in row-major memory, which is sent."""
        return np.array(piece, order="C")


class HaloExchange(Messenger):
    """From a cut to windows: in dimension k, part p holds ``widths[k][p]`` = (left, right) rows more than its bulk.

    A negative width trims, and what is trimmed may still feed a neighbour. Windows reach as many ranks on as they like.
    Beyond the tensor they hold zeros, or, where a dimension is `periodic`, its other end. Dimensions follow one another, so
    that corners come by way of the faces. The windows are declared as a cut of a tensor in which they lie side by side.
    """

    def __init__(
        self,
        comm: Any,
        shape: Sequence[int],
        grid: al.Partition,
        ends: Sequence[Cut],
        widths: Widths,
        periodic: Sequence[bool],
        dtype: str,
    ) -> None:
        self.grid, self.shape, self.ends = grid, tuple(shape), ends
        self.widths, self.periodic = widths, tuple(periodic)
        self.dims = range(len(self.shape))
        domain, codomain = self.spaces(dtype)
        super().__init__(comm, domain, codomain, copies_of_an_element(self.shape, ends, widths, periodic))
        self.place = grid.index(self.rank) if grid.is_active(self.rank) else None

    def spaces(self, dtype: str) -> tuple[al.Space, al.Space]:
        bulk = al.Layout.cut(self.shape, self.grid, self.ends)
        return al.Space(bulk, dtype=dtype), al.Space(self.side_by_side(), dtype=dtype, name="y")

    def side_by_side(self) -> al.Layout:
        """The windows of all ranks, as the cut of a larger tensor."""
        cuts = [window_ends(ends, widths) for ends, widths in zip(self.ends, self.widths, strict=True)]
        return al.Layout.cut([cut[-1] for cut in cuts], self.grid, cuts)

    # The plan: which rows of a dimension go where.

    def width(self, dim: int, part: int) -> tuple[int, int]:
        return self.widths[dim][part]

    def bulk(self, dim: int, part: int) -> Window:
        """The global rows that a part owns."""
        return self.ends[dim][part], self.ends[dim][part + 1]

    def window(self, dim: int, part: int) -> Window:
        """The global rows that a part holds after the exchange."""
        (start, stop), (left, right) = self.bulk(dim, part), self.width(dim, part)
        return start - left, stop + right

    def wanted_rows(self, dim: int, part: int) -> Window:
        """Those of them that it asks for."""
        return self.window(dim, part)

    def lendable_rows(self, dim: int, to: int, source: int) -> Window:
        """The global rows that a part may send to another."""
        return self.bulk(dim, source)

    def turns(self, dim: int) -> range:
        """The number of times that a window may reach round the tensor."""
        if not (self.periodic[dim] and self.shape[dim]):
            return range(1)
        side, windows = self.shape[dim], [self.window(dim, part) for part in range(self.grid.shape[dim])]
        return range(min(low for low, _ in windows) // side, max(high for _, high in windows) // side + 1)

    def pieces(self, dim: int, to: int, source: int) -> Iterator[tuple[slice, slice]]:
        """The cells that part `source` sends to part `to`: the rows of the window of `to`, and those of the bulk of `source`."""
        (low, high), (start, stop) = self.wanted_rows(dim, to), self.lendable_rows(dim, to, source)
        begin, origin = self.window(dim, to)[0], self.bulk(dim, source)[0]
        for turn in self.turns(dim):
            there = turn * self.shape[dim]
            first, last = max(low, start + there), min(high, stop + there)
            if first < last:
                yield (
                    slice(first - begin, last - begin),
                    slice(first - there - origin, last - there - origin),
                )

    def peer(self, dim: int, part: int) -> int:
        """The rank of part `part` in this rank's line of the grid along `dim`."""
        assert self.place is not None
        return self.grid.rank((*self.place[:dim], part, *self.place[dim + 1 :]))

    def wanted(self, dim: int) -> list[tuple[int, slice]]:
        """From which rank which rows of this rank's window come."""
        assert self.place is not None
        here, parts = self.place[dim], range(self.grid.shape[dim])
        return [(self.peer(dim, part), rows) for part in parts for rows, _ in self.pieces(dim, here, part)]

    def lent(self, dim: int) -> list[tuple[int, slice]]:
        """To which rank which rows of this rank's bulk go."""
        assert self.place is not None
        here, parts = self.place[dim], range(self.grid.shape[dim])
        return [(self.peer(dim, part), rows) for part in parts for _, rows in self.pieces(dim, part, here)]

    def at(self, dim: int, rows: slice) -> Index:
        """The index of rows of a dimension."""
        return (slice(None),) * dim + (rows,)

    # The exchange.

    def forward(self, x: Any) -> Any:
        if self.place is None:
            return np.zeros(self.shape_out(), x.dtype)
        for dim in self.dims:
            x = self.exchange(x, dim)
        return x

    def adjoint(self, y: Any) -> Any:
        if self.place is None:
            return np.zeros(self.shape_in(), y.dtype)
        for dim in reversed(self.dims):
            y = self.exchange_back(y, dim)
        return y

    def exchange(self, x: Any, dim: int) -> Any:
        """The windows along `dim`, from the bulk."""
        y = np.zeros((*x.shape[:dim], self.shape_out()[dim], *x.shape[dim + 1 :]), x.dtype)
        for index, rows in self.carried(x, dim, self.lent(dim), self.wanted(dim)):
            y[index] = rows
        return y

    def exchange_back(self, y: Any, dim: int) -> Any:
        """The bulk along `dim`, to which the windows are added."""
        x = np.zeros((*y.shape[:dim], self.shape_in()[dim], *y.shape[dim + 1 :]), y.dtype)
        for index, rows in self.carried(y, dim, self.wanted(dim), self.lent(dim)):
            self.add(x, index, rows)
        return x

    def carried(
        self, x: Any, dim: int, outgoing: Sequence[tuple[int, slice]], incoming: Sequence[tuple[int, slice]]
    ) -> list[tuple[Index, Any]]:
        """Rows of `x` are sent; those that come, each with its place."""
        face = x[self.at(dim, slice(0, 0))].shape
        came = self.messages(
            [(peer, x[self.at(dim, rows)]) for peer, rows in outgoing],
            [(peer, (*face[:dim], rows.stop - rows.start, *face[dim + 1 :])) for peer, rows in incoming],
        )
        return [(self.at(dim, rows), array) for (_, rows), array in zip(incoming, came, strict=True)]

    def add(self, x: Any, index: Index, rows: Any) -> None:
        x[index] += rows


class HaloExchangeInPlace(HaloExchange):
    """The same on the padded local tensors: forward overwrites the halo, adjoint adds it to the bulks and clears it.

    Both work in place on a copy of their argument. Widths are not negative.
    """

    def spaces(self, dtype: str) -> tuple[al.Space, al.Space]:
        padded = self.side_by_side()
        return al.Space(padded, dtype=dtype), al.Space(padded, dtype=dtype, name="y")

    def pieces(self, dim: int, to: int, source: int) -> Iterator[tuple[slice, slice]]:
        left, _ = self.width(dim, source)
        for rows, lent in super().pieces(dim, to, source):
            inside = slice(lent.start + left, lent.stop + left)
            if to != source or rows != inside:  # a bulk stays where it is
                yield rows, inside

    def inner(self, dim: int) -> slice:
        """The bulk's rows of the padded tensor."""
        assert self.place is not None
        left, _ = self.width(dim, self.place[dim])
        start, stop = self.bulk(dim, self.place[dim])
        return slice(left, left + stop - start)

    def at(self, dim: int, rows: slice) -> Index:
        # Dimensions that are done take their halos along, so that corners arrive; those to come have none yet.
        return (*super().at(dim, rows), *(self.inner(later) for later in self.dims[dim + 1 :]))

    def forward(self, x: Any) -> Any:
        return super().forward(np.array(x))

    def adjoint(self, y: Any) -> Any:
        return super().adjoint(np.array(y))

    def exchange(self, x: Any, dim: int) -> Any:
        came = self.carried(x, dim, self.lent(dim), self.wanted(dim))
        self.clear_halo(x, dim)
        for index, rows in came:
            x[index] = rows
        return x

    def exchange_back(self, y: Any, dim: int) -> Any:
        came = self.carried(y, dim, self.wanted(dim), self.lent(dim))
        self.clear_halo(y, dim)
        for index, rows in came:
            self.add(y, index, rows)
        return y

    def clear_halo(self, x: Any, dim: int) -> None:
        inner, before = self.inner(dim), (slice(None),) * dim
        x[(*before, slice(0, inner.start))] = 0
        x[(*before, slice(inner.stop, None))] = 0


class Repartition(Messenger):
    """From a cut over one grid to a cut over another, by one message for each pair of ranks that have something in common.

    The target's grid may have one dimension more than the tensor: along it lie copies.
    """

    def __init__(
        self, comm: Any, shape: Sequence[int], grids: Sequence[al.Partition], ends: Sequence[Any], dtype: str
    ) -> None:
        order = len(shape)
        self.source, self.target = (
            al.Layout.cut(shape, grid, cuts, axes=range(order))
            for grid, cuts in zip(grids, ends, strict=True)
        )
        types = ("varying",) * order + ("replicated",) * (grids[1].order - order)
        super().__init__(
            comm,
            al.Space(self.source, dtype=dtype),
            al.Space(self.target, dtype=dtype, types=types, name="y"),
            math.prod(grids[1].shape[order:]),
        )

    def windows(self, layout: al.Layout) -> dict[int, tuple[Window, ...]]:
        """The window of every active rank, in the order of the grid."""
        return {rank: layout.window(rank) or () for rank in layout.partition.ranks}

    def common(self, one: Sequence[Window], other: Sequence[Window]) -> list[Window] | None:
        """The global rows that two windows have in common; `None` where there are none."""
        rows = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True)]
        return rows if all(start < stop for start, stop in rows) else None

    def local(self, rows: Sequence[Window], window: Sequence[Window]) -> Index:
        """Global rows as an index of a local tensor."""
        return tuple(
            slice(start - origin, stop - origin)
            for (start, stop), (origin, _) in zip(rows, window, strict=True)
        )

    def plan(self, here: al.Layout, there: al.Layout) -> list[tuple[int, Index]]:
        """With which rank this one has what part of its window of `here` in common."""
        mine = self.windows(here).get(self.rank)
        if mine is None:
            return []
        shared = {rank: self.common(mine, window) for rank, window in self.windows(there).items()}
        return [(rank, self.local(rows, mine)) for rank, rows in shared.items() if rows is not None]

    def lent(self) -> list[tuple[int, Index]]:
        return self.plan(self.source, self.target)

    def wanted(self) -> list[tuple[int, Index]]:
        return self.plan(self.target, self.source)

    def carried(
        self, x: Any, outgoing: Sequence[tuple[int, Index]], incoming: Sequence[tuple[int, Index]]
    ) -> list[tuple[Index, Any]]:
        came = self.messages(
            [(peer, x[index]) for peer, index in outgoing],
            [(peer, [rows.stop - rows.start for rows in index]) for peer, index in incoming],
        )
        return [(index, array) for (_, index), array in zip(incoming, came, strict=True)]

    def forward(self, x: Any) -> Any:
        y = np.zeros(self.shape_out(), x.dtype)
        for index, rows in self.carried(x, self.lent(), self.wanted()):
            y[index] = rows
        return y

    def adjoint(self, y: Any) -> Any:
        x = np.zeros(self.shape_in(), y.dtype)
        for index, rows in self.carried(y, self.wanted(), self.lent()):
            x[index] += rows
        return x


def window_ends(ends: Cut, widths: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """The ends of the windows of one dimension when they lie side by side."""
    sizes = [
        stop - start + left + right
        for (start, stop), (left, right) in zip(pairwise(ends), widths, strict=True)
    ]
    return tuple(accumulate(sizes, initial=0))


def window_rows(ends: Cut, widths: Sequence[tuple[int, int]]) -> list[int]:
    """The global rows of the windows of one dimension, side by side."""
    windows = zip(pairwise(ends), widths, strict=True)
    return [row for (start, stop), (left, right) in windows for row in range(start - left, stop + right)]


def copies_of_an_element(
    shape: Sequence[int], ends: Sequence[Cut], widths: Widths, periodic: Sequence[bool]
) -> int:
    """In how many windows an element stands at most, and in its bulk."""
    copies = 1
    for side, cut, beside, wraps in zip(shape, ends, widths, periodic, strict=True):
        rows = window_rows(cut, beside)
        held = [row % side for row in rows] if wraps and side else [row for row in rows if 0 <= row < side]
        copies *= 1 + max(map(held.count, set(held)), default=0)
    return copies


# How cases are drawn: everything that may hurt, nothing that a particular fault needs.


def exchanges(draw: Any, ranks: int) -> Mapping[str, Any]:
    """Halos and trimmed borders."""
    return with_widths(draw, ranks, (1, 0, 2, 3, -1, -2))


def exchanges_in_place(draw: Any, ranks: int) -> Mapping[str, Any]:
    """Halos alone."""
    return with_widths(draw, ranks, (1, 0, 2, 3))


def with_widths(draw: Any, ranks: int, widths: Sequence[int]) -> Mapping[str, Any]:
    """Any number of rows on each part, none included; widths for each part, or the same for all of a dimension.

    One row on each part and a halo of one row on each side are the simplest: with less, nothing would move.
    """
    grid = grids(draw, ranks, draw(st.sampled_from((1, 2, 3, 2))))
    periodic = tuple(draw(st.booleans()) for _ in grid.shape)
    rows, pairs = st.sampled_from((1, 2, 3, 0)), st.tuples(*[st.sampled_from(widths)] * 2)
    ends, beside = [], []
    for parts in grid.shape:
        sizes = [draw(rows) for _ in range(parts)]
        drawn = [draw(pairs) for _ in range(parts)] if draw(st.booleans()) else [draw(pairs)] * parts
        ends.append(tuple(accumulate(sizes, initial=0)))
        # No window ends before it begins.
        beside.append(
            [(left, max(right, -size - left)) for size, (left, right) in zip(sizes, drawn, strict=True)]
        )
    return {
        "shape": tuple(cut[-1] for cut in ends),
        "grid": grid,
        "ends": ends,
        "widths": beside,
        "periodic": periodic,
        "dtype": draw(st.sampled_from(DTYPES)),
    }


def grids(draw: Any, ranks: int, order: int) -> al.Partition:
    """Grids over all ranks, or over some in any order; half of them are cut in as many dimensions as can be."""
    size = ranks - (draw(st.integers(0, ranks - 1)) if draw(st.booleans()) else 0)
    shapes = sorted(al.strategies.grids(size, order), key=max)
    return al.Partition(
        draw(st.sampled_from([shapes[0]] * len(shapes) + shapes)),
        draw(al.strategies.rank_orders(ranks, size)),
    )


def repartitions(draw: Any, ranks: int) -> Mapping[str, Any]:
    """Any grid to any grid of the same tensor, over any ranks; the target may have copies."""
    shape = shapes(draw)
    both = [grids(draw, ranks, order) for order in (len(shape), len(shape) + draw(st.integers(0, 1)))]
    ends = [
        [draw(al.strategies.cuts(side, parts)) for side, parts in zip(shape, grid.shape, strict=False)]
        for grid in both
    ]
    return {"shape": shape, "grids": both, "ends": ends, "dtype": draw(st.sampled_from(DTYPES))}


# The sequential twins.


def windowed(
    x: Any, shape: Sequence[int], ends: Sequence[Cut], widths: Widths, periodic: Sequence[bool], **_: Any
) -> Any:
    """All windows side by side."""
    for dim, side in enumerate(shape):
        rows = window_rows(ends[dim], widths[dim])
        beyond = np.zeros((*x.shape[:dim], 1, *x.shape[dim + 1 :]), x.dtype)
        wrapped = [row % side for row in rows] if periodic[dim] and side else rows
        source = [row if 0 <= row < side else side for row in wrapped]
        x = np.concatenate([x, beyond], axis=dim).take(source, axis=dim)
    return x


def windowed_in_place(x: Any, ends: Sequence[Cut], widths: Widths, **parameters: Any) -> Any:
    """All windows side by side, from the bulks of padded tensors side by side: halos do not matter."""
    for dim, (cut, beside) in enumerate(zip(ends, widths, strict=True)):
        padded = pairwise(window_ends(cut, beside))
        inner = [
            row
            for (start, stop), (left, right) in zip(padded, beside, strict=True)
            for row in range(start + left, stop - right)
        ]
        x = x.take(inner, axis=dim)
    return windowed(x, ends=ends, widths=widths, **parameters)
