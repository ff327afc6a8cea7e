"""Wrong ranks, uneven shards, empty and inactive ranks (classes C, D and E)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

import adjointlab as al
from adjointlab import MPI
from tests.planted.bug import recreated
from tests.planted.right_operators import (
    DTYPES,
    GatherToAll,
    Operator,
    copies,
    cut,
    shapes,
    unchanged,
    with_cuts,
)


class Butterfly(Operator):
    """All-reduce by pairwise exchange where the number of ranks is a power of two, else by the library."""

    steps = (1, 2, 4)

    def __init__(self, comm: Any, shape: Sequence[int], dtype: str) -> None:
        size = comm.Get_size()
        x, y = copies(shape, size, dtype, "partial"), copies(shape, size, dtype, "replicated", "y")
        super().__init__(comm, al.Space(x), al.Space(y), size)

    def forward(self, x: Any) -> Any:
        if self.size not in (2, 4, 8):
            return self.all_sum(x)
        total = np.array(x, order="C")
        for step in self.steps[: self.size.bit_length() - 1]:
            other = np.empty_like(total)
            peer = self.rank ^ step
            self.comm.Sendrecv(total, peer, 0, other, peer, 0)
            total += other
        return total

    adjoint = forward


class ThirdStepIsThree(Butterfly):
    steps = (1, 2, 3)


def plain(draw: Any, ranks: int) -> Mapping[str, Any]:
    return {"shape": shapes(draw), "dtype": draw(st.sampled_from(DTYPES))}


class CopyAlongColumns(Operator):
    """Broadcasts from a partition of order 1 onto a grid of order 2: from its first row to the others."""

    missing = 0

    def __init__(
        self, comm: Any, grid: Sequence[int], ranks: Sequence[int], side: int, ends: Any, dtype: str
    ) -> None:
        whole = al.Partition(grid, ranks)
        source = al.Partition((grid[1],), ranks[: grid[1]])
        domain = al.Space(al.Layout.cut((side,), source, [ends]), dtype=dtype)
        codomain = al.Space(al.Layout.cut((side,), whole, [ends], axes=(1,)), dtype=dtype, name="y")
        super().__init__(comm, domain, codomain, grid[0])
        self.active = whole.is_active(self.rank)
        row, column = whole.index(self.rank) if self.active else (0, 0)
        self.column = comm.Split(column if self.active else grid[1], row)
        # The missing leading coordinate of the source.
        self.root = min(self.missing, grid[0] - 1)

    def forward(self, x: Any) -> Any:
        y = np.zeros(self.shape_out(), self.codomain.tensors[0].dtype)
        if self.active:
            y[...] = x if x.shape == y.shape else 0
            self.column.Bcast(y, self.root)
        return y

    def adjoint(self, y: Any) -> Any:
        if not self.active:
            return np.zeros(self.shape_in(), y.dtype)
        total = np.zeros(y.shape, y.dtype)
        self.column.Reduce(np.ascontiguousarray(y), total, MPI.SUM, self.root)
        return total[: self.shape_in()[0]]


class MissingCoordinateIsOne(CopyAlongColumns):
    missing = 1


def onto_grids(draw: Any, ranks: int) -> Mapping[str, Any]:
    partition = draw(al.strategies.partitions(ranks, 2, whole=False))
    side = draw(al.strategies.shapes(1))[0]
    return {
        "grid": partition.shape,
        "ranks": partition.ranks,
        "side": side,
        "ends": draw(al.strategies.cuts(side, partition.shape[1])),
        "dtype": draw(st.sampled_from(DTYPES)),
    }


class OffsetIsThePreviousSize(GatherToAll):
    def mine(self, total: Any) -> Any:
        start = self.sizes[self.rank - 1] if self.rank > 0 else 0
        rows = np.zeros((self.sizes[self.rank], *total.shape[1:]), total.dtype)
        found = total[start : start + self.sizes[self.rank]]
        rows[: found.shape[0]] = found
        return rows


class Padded(Operator):
    """Pads every rank's rows by one zero row at their end."""

    def __init__(self, comm: Any, shape: Sequence[int], ends: Sequence[int], dtype: str) -> None:
        here = cut(shape, ends, dtype)
        size = comm.Get_size()
        sizes = self.padded(ends, comm.Get_rank())
        padded = [sum(sizes[:rank]) for rank in range(size + 1)]
        super().__init__(comm, al.Space(here), al.Space(cut((padded[-1], *shape[1:]), padded, dtype, "y")), 1)

    def padded(self, ends: Sequence[int], rank: int) -> list[int]:
        """Every rank's number of rows with padding."""
        return [stop - start + 1 for start, stop in itertools.pairwise(ends)]

    def forward(self, x: Any) -> Any:
        return np.concatenate([x, np.zeros((1, *x.shape[1:]), x.dtype)])

    def adjoint(self, y: Any) -> Any:
        return np.array(y[:-1])


class OwnShapeForAll(Padded):
    def padded(self, ends: Sequence[int], rank: int) -> list[int]:
        return [ends[rank + 1] - ends[rank] + 1] * (len(ends) - 1)


class CopyToSome(Operator):
    """Broadcasts from rank 0 to the ranks of a partition, after a set-up in which all ranks take part."""

    def __init__(self, comm: Any, shape: Sequence[int], ranks: Sequence[int], dtype: str) -> None:
        rest = (None,) * len(shape)
        domain = al.Space(al.Layout(shape, al.Partition((1,), [0]), axes=rest), dtype=dtype)
        codomain = al.Space(
            al.Layout(shape, al.Partition((len(ranks),), ranks), axes=rest), dtype=dtype, name="y"
        )
        super().__init__(comm, domain, codomain, len(ranks))
        self.active = self.rank in ranks
        self.is_set_up = False

    def set_up(self) -> None:
        if not self.is_set_up:
            self.comm.Barrier()
            self.is_set_up = True

    def forward(self, x: Any) -> Any:
        self.set_up()
        y = np.zeros(self.domain.tensors[0].layout.shape, self.domain.tensors[0].dtype)
        if self.rank == 0:
            y[...] = x
        self.comm.Bcast(y, 0)
        return y if self.active else np.zeros(self.shape_out(), y.dtype)

    def adjoint(self, y: Any) -> Any:
        self.set_up()
        shape = self.domain.tensors[0].layout.shape
        summand = np.array(y, order="C") if self.active else np.zeros(shape, y.dtype)
        total = np.empty(shape, y.dtype)
        self.comm.Reduce(summand, total, MPI.SUM, 0)
        return total if self.rank == 0 else np.zeros(self.shape_in(), y.dtype)


class InactiveSkipsSetUp(CopyToSome):
    def set_up(self) -> None:
        if not self.is_set_up:
            self.comm.Barrier()
            self.is_set_up = self.active


def to_some(draw: Any, ranks: int) -> Mapping[str, Any]:
    partition = draw(al.strategies.partitions(ranks, 1, whole=False))
    return {**plain(draw, ranks), "ranks": partition.ranks}


class SharedFactor(Operator):
    """Every rank's rows of fixed data times one parameter, which is the same on all ranks."""

    def __init__(self, comm: Any, shape: Sequence[int], ends: Sequence[int], dtype: str) -> None:
        size = comm.Get_size()
        w = copies((1,), size, dtype, "invariant", "w")
        rows = max(1, int(np.prod(shape)))
        super().__init__(comm, al.Space(w), al.Space(cut(shape, ends, dtype, "y")), 7 * rows)
        data = np.arange(np.prod(shape)).reshape(shape) % 7 + 1
        self.data = data[ends[self.rank] : ends[self.rank + 1]].astype(dtype)

    def forward(self, w: Any) -> Any:
        return self.data * w.reshape((1,) * self.data.ndim)

    def adjoint(self, y: Any) -> Any:
        return self.all_sum((self.data * y).sum().reshape(1).astype(y.dtype))


class EmptyRankStaysAway(SharedFactor):
    def adjoint(self, y: Any) -> Any:
        return np.zeros(1, y.dtype) if y.size == 0 else super().adjoint(y)


FAULTS = (
    recreated(
        "apex-89ae9e54",
        "third step of a butterfly exchanges with rank ^ 3",
        al.subject(ThirdStepIsThree, reference=unchanged)(plain),
        "sequential",
    ),
    recreated(
        "distdl-73",
        "missing grid coordinates taken as 1",
        al.subject(MissingCoordinateIsOne, reference=unchanged)(onto_grids),
        "sequential",
    ),
    recreated(
        "horovod-2204",
        "offset of a shard is the size of the one before",
        al.subject(OffsetIsThePreviousSize, reference=unchanged)(with_cuts),
        "adjoint",
    ),
    recreated(
        "physicsnemo-1535",
        "own shape taken for every rank's",
        al.subject(OwnShapeForAll)(with_cuts),
        "declared",
    ),
    recreated(
        "distdl-119", "inactive ranks skip the set-up", al.subject(InactiveSkipsSetUp)(to_some), "adjoint"
    ),
    recreated(
        "lbann-58a53dc0",
        "a rank without data skips a sum",
        al.subject(EmptyRankStaysAway)(with_cuts),
        "adjoint",
    ),
)

RIGHT = (
    al.subject(Butterfly, reference=unchanged)(plain),
    al.subject(CopyAlongColumns, reference=unchanged)(onto_grids),
    al.subject(Padded)(with_cuts),
    al.subject(CopyToSome)(to_some),
    al.subject(SharedFactor)(with_cuts),
)
