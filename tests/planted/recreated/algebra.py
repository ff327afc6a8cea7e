"""Complex numbers, the order of stages, and reductions over the wrong axis (classes J and K)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

import adjointlab as al
from tests.planted.bug import recreated
from tests.planted.right_operators import (
    DTYPES,
    Operator,
    Ring,
    SumAlong,
    on_grid,
    on_ring,
    scaled,
    shapes,
    weighted,
)


class ImaginaryPartLost(SumAlong):
    def adjoint(self, y: Any) -> Any:
        return super().adjoint(np.ascontiguousarray(y.real)).astype(y.dtype)


class StagesInForwardOrder(Ring):
    """The exchange first, then the weights, as in the forward pass."""

    def adjoint(self, y: Any) -> Any:
        come = self.carry(y, self.shape_in(), -self.step)
        weights = self.weights()
        rows = min(len(weights), len(come))
        come[:rows] = weights.conj()[:rows] * come[:rows]
        return come


class Lookup(Operator):
    """Rows of a table: its vocabulary is cut along one dimension of a mesh, the rows asked for along the other."""

    def __init__(
        self, comm: Any, mesh: Sequence[int], shape: Sequence[int], ends: Any, asked: Any, dtype: str
    ) -> None:
        grid = al.Partition(mesh)
        rest: list[None] = [None] * (len(shape) - 1)
        table = al.Layout.cut(shape, grid, [ends, *rest], axes=(1, *rest))
        rows = al.Layout((len(asked), *shape[1:]), grid, axes=(0, *rest))
        domain = al.Space(table, dtype=dtype, types=("invariant", "varying"), name="table")
        codomain = al.Space(rows, dtype=dtype, types=("varying", "invariant"), name="rows")
        super().__init__(comm, domain, codomain, max(len(asked), 1))
        place = grid.index(self.rank)
        self.data, self.vocabulary = comm.Split(place[1], place[0]), comm.Split(place[0], place[1])
        self.start, self.stop = table.windows[0][place[1]]
        low, high = rows.windows[0][place[0]]
        self.asked, self.shape = [asked[i] for i in range(low, high)], tuple(shape)

    def forward(self, x: Any) -> Any:
        found = np.zeros(self.shape_out(), x.dtype)
        for row, index in enumerate(self.asked):
            if self.start <= index < self.stop:
                found[row] = x[index - self.start]
        return self.all_sum(found, self.vocabulary)

    def scattered(self, y: Any) -> Any:
        table = np.zeros(self.shape, y.dtype)
        for row, index in enumerate(self.asked):
            table[index] += y[row]
        return table

    def adjoint(self, y: Any) -> Any:
        return self.all_sum(self.scattered(y), self.data)[self.start : self.stop].copy()


class SlicedBeforeTheSum(Lookup):
    """Slices its own rows first, and then sums over all ranks: rows of different shards meet."""

    def adjoint(self, y: Any) -> Any:
        mine = self.scattered(y)[self.start : self.stop].copy()
        longest = max(self.comm.allgather(len(mine)))
        padded = np.zeros((longest, *self.shape[1:]), y.dtype)
        padded[: len(mine)] = mine
        return self.all_sum(padded)[: len(mine)].copy()


def lookups(draw: Any, ranks: int) -> Mapping[str, Any]:
    mesh = draw(st.sampled_from([(side, ranks // side) for side in range(1, ranks + 1) if ranks % side == 0]))
    shape = shapes(draw, (1, 2))
    index = st.integers(0, max(shape[0] - 1, 0))
    return {
        "mesh": mesh,
        "shape": shape,
        "ends": draw(al.strategies.cuts(shape[0], mesh[1])),
        "asked": draw(st.lists(index, max_size=6)) if shape[0] else [],
        "dtype": draw(st.sampled_from(DTYPES)),
    }


def looked_up(table: Any, asked: Sequence[int], **_: Any) -> Any:
    return table[list(asked)] if asked else np.zeros((0, *table.shape[1:]), table.dtype)


FAULTS = (
    recreated(
        "pytorch-158753",
        "imaginary part lost",
        al.subject(ImaginaryPartLost, reference=scaled)(on_grid),
        "adjoint",
    ),
    recreated(
        "atlas-223",
        "adjoint's stages in forward order",
        al.subject(StagesInForwardOrder, reference=weighted)(on_ring),
        "adjoint",
    ),
    recreated(
        "openxla-42481",
        "sliced before the sum",
        al.subject(SlicedBeforeTheSum, reference=looked_up)(lookups),
        "adjoint",
    ),
)

RIGHT = (al.subject(Lookup, reference=looked_up)(lookups),)
