"""Planted bugs of halo exchanges and repartitions, and the customary dot test, which does not see most of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

import adjointlab as al
from adjointlab.core.layout import Window
from adjointlab.engine.subject import Subject
from adjointlab.worlds.run import Returned
from adjointlab.worlds.world import RankContext, World
from tests.planted.bug import PlantedBug
from tests.planted.right_halos import (
    HaloExchange,
    HaloExchangeInPlace,
    Index,
    Repartition,
    exchanges,
    exchanges_in_place,
    repartitions,
    windowed,
    windowed_in_place,
)
from tests.planted.right_operators import unchanged

# Widths and cuts.


class OneRowShort(HaloExchange):
    """Asks for one row too few on the right."""

    def wanted_rows(self, dim: int, part: int) -> Window:
        low, high = super().wanted_rows(dim, part)
        _, right = self.width(dim, part)
        return low, high - (right > 0)


class SidesSwapped(HaloExchange):
    """Takes the left width for the right one."""

    def width(self, dim: int, part: int) -> tuple[int, int]:
        left, right = super().width(dim, part)
        return right, left


class SidesSwappedInTheAdjoint(HaloExchange):
    def __init__(self, comm: Any, **parameters: Any) -> None:
        super().__init__(comm, **parameters)
        self.swapped = SidesSwapped(comm, **parameters)

    def adjoint(self, y: Any) -> Any:
        return self.swapped.adjoint(y)


class OneWidthForAllDimensions(HaloExchange):
    def width(self, dim: int, part: int) -> tuple[int, int]:
        return self.widths[0][min(part, len(self.widths[0]) - 1)]


class RemainderDropped(HaloExchange):
    """Lends as many rows as an even cut has."""

    def lendable_rows(self, dim: int, to: int, source: int) -> Window:
        start, stop = super().lendable_rows(dim, to, source)
        even = self.shape[dim] // self.grid.shape[dim]
        return (start, stop) if to == source else (start, min(stop, start + even))


class TrimsFirst(HaloExchange):
    """A rank trims cells before a neighbour has had them."""

    def lendable_rows(self, dim: int, to: int, source: int) -> Window:
        (start, stop), (low, high) = self.bulk(dim, source), self.window(dim, source)
        return max(start, low), min(stop, high)


class TrimmedRowsNotZero(HaloExchange):
    """`numpy.resize` fills up with copies; it is the method of that name that fills up with zeros."""

    def exchange_back(self, y: Any, dim: int) -> Any:
        came = self.carried(y, dim, self.wanted(dim), self.lent(dim))
        x = np.resize(y, (*y.shape[:dim], self.shape_in()[dim], *y.shape[dim + 1 :]))
        for index, _ in came:
            x[index] = 0
        for index, rows in came:
            self.add(x, index, rows)
        return x


class ClearedFromMinusZero(HaloExchangeInPlace):
    """Clears everything where there is no right halo."""

    def clear_halo(self, x: Any, dim: int) -> None:
        assert self.place is not None
        left, right = self.width(dim, self.place[dim])
        x[(slice(None),) * dim + (slice(0, left),)] = 0
        x[(slice(None),) * dim + (slice(-right, None),)] = 0


# Neighbours.


class NearestNeighboursOnly(HaloExchange):
    def pieces(self, dim: int, to: int, source: int) -> Iterator[tuple[slice, slice]]:
        if abs(to - source) <= 1 or (self.periodic[dim] and abs(to - source) == self.grid.shape[dim] - 1):
            yield from super().pieces(dim, to, source)


class NearestFirst(HaloExchange):
    """Lines the blocks of the left halo up in the order in which it meets their owners."""

    def wanted(self, dim: int) -> list[tuple[int, slice]]:
        assert self.place is not None
        wanted = super().wanted(dim)
        left, _ = self.width(dim, self.place[dim])
        halo = sorted((rows.start, rows.stop) for _, rows in wanted if rows.stop <= left)
        moved, end = {}, halo[0][0] if halo else 0
        for start, stop in reversed(halo):
            moved[start] = slice(end, end + stop - start)
            end += stop - start
        return [(peer, moved.get(rows.start, rows)) for peer, rows in wanted]


class RanksSorted(HaloExchange):
    """Forgets the order in which the grid has its ranks, as a group does that is made from a set."""

    def __init__(self, comm: Any, **parameters: Any) -> None:
        super().__init__(comm, **parameters)
        self.grid = al.Partition(self.grid.shape, sorted(self.grid.ranks))
        self.place = self.grid.index(self.rank) if self.place is not None else None


class NeighboursByRank(HaloExchange):
    """Takes the ranks of the grid for 0, 1, 2, ..."""

    def peer(self, dim: int, part: int) -> int:
        assert self.place is not None
        return int(self.rank + (part - self.place[dim]) * math.prod(self.grid.shape[dim + 1 :]))


class SendsItsOwnHalo(HaloExchangeInPlace):
    """Sends each neighbour as many rows as it has halo, counted from the border, be the bulk narrower or not."""

    def pieces(self, dim: int, to: int, source: int) -> Iterator[tuple[slice, slice]]:
        parts, periodic = self.grid.shape[dim], self.periodic[dim]
        (left, right), (before, _) = self.width(dim, to), self.width(dim, source)
        mine, theirs = (stop - start for start, stop in (self.bulk(dim, to), self.bulk(dim, source)))
        if left and source in (to - 1, (to - 1) % parts if periodic else to - 1):
            yield slice(0, left), slice(before + theirs - left, before + theirs)
        if right and source in (to + 1, (to + 1) % parts if periodic else to + 1):
            yield slice(left + mine, left + mine + right), slice(before, before + right)


class WrapsAnyway(HaloExchange):
    """The left neighbour of the first part is the one at index -1: the last."""

    def __init__(self, comm: Any, **parameters: Any) -> None:
        super().__init__(comm, **{**parameters, "periodic": (True,) * len(parameters["shape"])})


class WrapClamped(HaloExchange):
    """Beyond a periodic border it slices at a start that is clamped to the tensor, rather than wrapped."""

    def turns(self, dim: int) -> range:
        return range(1)

    def pieces(self, dim: int, to: int, source: int) -> Iterator[tuple[slice, slice]]:
        yield from super().pieces(dim, to, source)
        (low, high), (start, stop), side = self.window(dim, to), self.bulk(dim, source), self.shape[dim]
        for first, last in ((low, min(high, 0)), (max(low, side), high)):
            clamped = min(max(first, 0), side - (last - first))
            begin, end = max(clamped, start), min(clamped + last - first, stop)
            if self.periodic[dim] and begin < end:
                there = first - low - clamped
                yield slice(begin + there, end + there), slice(begin - start, end - start)


class BothNeighboursOneRank(HaloExchange):
    """Sends to the right first and receives from the left first, which one rank on both sides does not tell apart."""

    def lent(self, dim: int) -> list[tuple[int, slice]]:
        lent = super().lent(dim)
        return [piece for piece in lent if piece[0] == self.rank] + [
            piece for piece in reversed(lent) if piece[0] != self.rank
        ]


class EmptyRankLeavesEarly(HaloExchange):
    """A rank without rows has nothing to do, it thinks."""

    def forward(self, x: Any) -> Any:
        return super().forward(x) if x.size else np.zeros(self.shape_out(), x.dtype)


# Phases, corners and what the adjoint does with them.


class CornersSkipped(HaloExchangeInPlace):
    """Exchanges the faces of the bulk, in both directions."""

    def at(self, dim: int, rows: slice) -> Index:
        return tuple(rows if other == dim else self.inner(other) for other in self.dims)


class CornersSkippedInTheAdjoint(HaloExchangeInPlace):
    def __init__(self, comm: Any, **parameters: Any) -> None:
        super().__init__(comm, **parameters)
        self.without = CornersSkipped(comm, **parameters)

    def adjoint(self, y: Any) -> Any:
        return self.without.adjoint(y)


class AdjointInForwardOrder(HaloExchangeInPlace):
    def adjoint(self, y: Any) -> Any:
        self.dims, forward = self.dims[::-1], self.dims
        x = super().adjoint(y)
        self.dims = forward
        return x


class AdjointAssigns(HaloExchangeInPlace):
    def add(self, x: Any, index: Index, rows: Any) -> None:
        x[index] = rows


class AdjointKeepsTheHalo(HaloExchangeInPlace):
    def exchange_back(self, y: Any, dim: int) -> Any:
        for index, rows in self.carried(y, dim, self.wanted(dim), self.lent(dim)):
            self.add(y, index, rows)
        return y


class AdjointCrops(HaloExchange):
    """Gives no row back to its owner."""

    def exchange_back(self, y: Any, dim: int) -> Any:
        x = np.zeros((*y.shape[:dim], self.shape_in()[dim], *y.shape[dim + 1 :]), y.dtype)
        wanted, lent = (
            [rows for peer, rows in plan(dim) if peer == self.rank] for plan in (self.wanted, self.lent)
        )
        for window, bulk in zip(wanted, lent, strict=True):
            x[self.at(dim, bulk)] += y[self.at(dim, window)]
        return x


# Messages and their buffers.


class OneSendBuffer(HaloExchange):
    """Packs the next message over one that may still be on its way."""

    def __init__(self, comm: Any, **parameters: Any) -> None:
        super().__init__(comm, **parameters)
        largest = map(max, self.shape_in(), self.shape_out())
        self.memory = np.empty(math.prod(largest), self.domain.tensors[0].dtype)

    def packed(self, piece: Any) -> Any:
        buffer = self.memory[: piece.size].reshape(piece.shape)
        buffer[...] = piece
        return buffer


class BufferOfTheFirstShape(HaloExchange):
    """Keeps a receive buffer for each neighbour, of the shape that is needed first."""

    def __init__(self, comm: Any, **parameters: Any) -> None:
        super().__init__(comm, **parameters)
        self.buffers: dict[int, Any] = {}

    def buffer(self, peer: int, shape: Sequence[int]) -> Any:
        fresh = super().buffer(peer, shape)
        return fresh if peer == self.rank else self.buffers.setdefault(peer, fresh)


class ReadBeforeArrival(HaloExchange):
    def arrived(self, requests: list[Any], received: list[Any]) -> list[Any]:
        return super().arrived(requests, [array.copy() for array in received])


# Repartitions.


class OffsetOfTheOwnWindow(Repartition):
    """Looks every overlap up relative to the window that it holds before."""

    def local(self, rows: Sequence[Window], window: Sequence[Window]) -> Index:
        return super().local(rows, self.source.window(self.rank) or window)


class OverlapEndsOneEarly(Repartition):
    """Takes a stop for the last row that belongs to it."""

    def common(self, one: Sequence[Window], other: Sequence[Window]) -> list[Window] | None:
        return super().common(*([(start, stop - 1) for start, stop in windows] for windows in (one, other)))


class BalancedCutAssumed(Repartition):
    def windows(self, layout: al.Layout) -> dict[int, tuple[Window, ...]]:
        return super().windows(al.Layout(layout.shape, layout.partition, axes=layout.axes))


class PlacesTakenForRanks(Repartition):
    """Sends to places in the grid, as if its ranks were 0, 1, 2, ..."""

    def windows(self, layout: al.Layout) -> dict[int, tuple[Window, ...]]:
        return dict(enumerate(super().windows(layout).values()))


class EmptyTargetLeavesEarly(Repartition):
    """A rank that is to hold nothing forgets that it has something to send."""

    def forward(self, x: Any) -> Any:
        y = np.zeros(self.shape_out(), x.dtype)
        return super().forward(x) if y.size else y


class OnlyTheSourceTakesPart(Repartition):
    """Ranks that hold nothing before are skipped."""

    def forward(self, x: Any) -> Any:
        held = self.source.partition.is_active(self.rank)
        return super().forward(x) if held else np.zeros(self.shape_out(), x.dtype)


class SameShapeTakenForSameLayout(Repartition):
    """Moves nothing where the local tensors have one shape before and after."""

    def forward(self, x: Any) -> Any:
        return np.array(x) if x.shape == self.shape_out() else super().forward(x)

    def adjoint(self, y: Any) -> Any:
        return np.array(y) if y.shape == self.shape_in() else super().adjoint(y)


class FirstCopyAlone(Repartition):
    """The adjoint takes one of the copies for all."""

    def adjoint(self, y: Any) -> Any:
        order, grid = self.target.order, self.target.partition
        first = {rank for rank in grid.ranks if not any(grid.index(rank)[order:])}
        x = np.zeros(self.shape_in(), y.dtype)
        outgoing = self.wanted() if self.rank in first else []
        for index, rows in self.carried(y, outgoing, [piece for piece in self.lent() if piece[0] in first]):
            x[index] += rows
        return x


def planted(
    bug: str, operator: type[HaloExchange | Repartition], check: str, least_ranks: int = 2
) -> PlantedBug:
    """A bug with the strategy and the sequential twin of the right operator."""
    draws, reference = family(operator)
    return PlantedBug(bug, al.subject(operator, reference=reference)(draws), check, least_ranks)


def family(operator: type[HaloExchange | Repartition]) -> tuple[Any, Any]:
    """The strategy of an operator's cases, and its sequential twin."""
    if issubclass(operator, Repartition):
        return repartitions, unchanged
    if issubclass(operator, HaloExchangeInPlace):
        return exchanges_in_place, windowed_in_place
    return exchanges, windowed


PLANTED = (
    planted("halo one row too narrow, both ways", OneRowShort, "sequential"),
    planted("left and right width swapped, both ways", SidesSwapped, "sequential"),
    planted("left and right width swapped in the adjoint", SidesSwappedInTheAdjoint, "adjoint"),
    planted("one dimension's width used for all", OneWidthForAllDimensions, "sequential"),
    planted("last rows of an uneven cut not sent", RemainderDropped, "sequential"),
    planted("trimmed before a neighbour has its rows", TrimsFirst, "sequential"),
    planted("trimmed rows not restored as zero", TrimmedRowsNotZero, "adjoint"),
    planted("halo cleared as x[-0:]", ClearedFromMinusZero, "sequential"),
    planted("wide halo filled by the nearest neighbours alone", NearestNeighboursOnly, "sequential"),
    planted("blocks of a wide halo in the wrong order", NearestFirst, "sequential"),
    planted("ranks of the grid sorted", RanksSorted, "sequential"),
    planted("neighbours taken from rank ± 1", NeighboursByRank, "sequential"),
    planted("send slice runs into the sender's own halo", SendsItsOwnHalo, "sequential"),
    planted("wraps round where it should not", WrapsAnyway, "sequential"),
    planted("periodic index clamped", WrapClamped, "sequential"),
    planted("left and right confused where one rank is both", BothNeighboursOneRank, "sequential"),
    planted("rank without rows skips the exchange", EmptyRankLeavesEarly, "sequential"),
    planted("corners skipped, both ways", CornersSkipped, "sequential"),
    planted("corners skipped in the adjoint", CornersSkippedInTheAdjoint, "adjoint"),
    planted("adjoint's dimensions in forward order", AdjointInForwardOrder, "adjoint"),
    planted("adjoint assigns for adding", AdjointAssigns, "adjoint"),
    planted("adjoint does not clear the halo", AdjointKeepsTheHalo, "adjoint"),
    planted("adjoint crops, and gives nothing back", AdjointCrops, "adjoint"),
    planted("send buffer reused before the send completed", OneSendBuffer, "sequential"),
    planted("receive buffer kept where shapes differ", BufferOfTheFirstShape, "adjoint"),
    planted("halo read before it arrived", ReadBeforeArrival, "sequential"),
    planted("overlap placed relative to the own old window", OffsetOfTheOwnWindow, "sequential"),
    planted("overlap ends one row early, both ways", OverlapEndsOneEarly, "sequential"),
    planted("balanced cut assumed", BalancedCutAssumed, "sequential"),
    planted("places in the grid taken for ranks", PlacesTakenForRanks, "sequential"),
    planted("rank that is to hold nothing does not send", EmptyTargetLeavesEarly, "sequential"),
    planted("rank that held nothing does not receive", OnlyTheSourceTakesPart, "sequential"),
    planted("same local shape taken for same layout", SameShapeTakenForSameLayout, "sequential"),
    planted("adjoint takes one of the copies", FirstCopyAlone, "adjoint"),
)

RIGHT = tuple(
    al.subject(operator, reference=family(operator)[1])(family(operator)[0])
    for operator in (HaloExchange, HaloExchangeInPlace, Repartition)
)


# The customary test.


def customary_cases(operator: type[HaloExchange | Repartition]) -> list[dict[str, Any]]:
    """Arguments as tests have them: 2 and 4 ranks in their order, balanced even cuts, one width for all sides of all
    dimensions, no period, float64; repartitions from one cut dimension to another.
    """
    if issubclass(operator, Repartition):
        pairs = [((2,), (2,)), ((2, 1), (1, 2)), ((4,), (4,)), ((4, 1), (1, 4)), ((2, 2), (4, 1))]
        return [
            {
                "shape": (8, 12)[: len(source)],
                "grids": (al.Partition(source), al.Partition(target)),
                "ends": [even_cuts((8, 12), grid) for grid in (source, target)],
                "dtype": "float64",
            }
            for source, target in pairs
        ]
    grids = [(2,), (2, 1), (1, 2), (4,), (2, 2), (4, 1), (1, 4)]
    return [
        {
            "shape": shape,
            "grid": al.Partition(grid),
            "ends": even_cuts(shape, grid),
            "widths": [[(width, width)] * parts for parts in grid],
            "periodic": (False,) * len(grid),
            "dtype": "float64",
        }
        for grid in grids
        for shape in sorted({(8, 8)[: len(grid)], (8, 12)[: len(grid)]})
        for width in (1, 2)
    ]


def even_cuts(shape: Sequence[int], grid: Sequence[int]) -> list[list[int]]:
    return [list(range(0, side + 1, side // parts)) for side, parts in zip(shape, grid, strict=False)]


def customary_dot_test(subject: Subject, world: World) -> bool:
    """Return True if the usual test finds a fault: ⟨Fx, y⟩ = ⟨x, F*y⟩ for one random x and y in each of a few even layouts.

    Arrays are in row-major order and messages are delivered at once. A rank that raises or hangs is seen too; what the
    simulated world finds beyond that (a message left over, a buffer changed while it is sent), no MPI tells.
    """

    def products(context: RankContext, parameters: Mapping[str, Any]) -> tuple[float, float]:
        operator = subject.make(context.comm, parameters)
        random = np.random.default_rng([2024, context.rank])
        x, y = (
            random.standard_normal(space.tensors[0].layout.local_shape(context.rank))
            for space in (operator.domain, operator.codomain)
        )
        return float(np.vdot(operator.forward(x), y)), float(np.vdot(x, operator.adjoint(y)))

    for parameters in customary_cases(subject.target):
        grid = parameters["grids"][0] if "grids" in parameters else parameters["grid"]
        run = world.run(products, parameters, grid.size)
        if not all(isinstance(outcome, Returned) for outcome in run.outcomes):
            return True
        forward, adjoint = np.sum(run.values, axis=0)
        if abs(forward - adjoint) > 1e-9 * max(abs(forward), abs(adjoint)):
            return True
    return False
