"""Halos, borders, and how arrays lie in memory (classes F and G)."""

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
    Operator,
    Ring,
    SumAlong,
    copies,
    cut,
    on_grid,
    on_ring,
    scaled,
    weighted,
    with_cuts,
)


class Stencil(Operator):
    """y_i = x_{i-1} + 2 x_i + 3 x_{i+1}, zero beyond the ends; every rank has as many rows and lends one on each side."""

    def __init__(self, comm: Any, rows: int, width: int, dtype: str) -> None:
        shape = (rows * comm.Get_size(), width)
        ends = range(0, shape[0] + 1, rows)
        domain, codomain = cut(shape, ends, dtype), cut(shape, ends, dtype, "y")
        super().__init__(comm, al.Space(domain), al.Space(codomain), 6)

    def halo(self) -> Any:
        """Memory for this rank's rows and one more on each side."""
        rows, width = self.shape_in()
        return np.zeros((rows + 2, width), self.domain.tensors[0].dtype)

    def neighbours(self) -> tuple[int, int]:
        left = self.rank - 1 if self.rank > 0 else MPI.PROC_NULL
        return left, self.rank + 1 if self.rank + 1 < self.size else MPI.PROC_NULL

    def exchange(self, padded: Any) -> None:
        left, right = self.neighbours()
        self.comm.Sendrecv(padded[1].copy(), left, 0, padded[-1], right, 0)
        self.comm.Sendrecv(padded[-2].copy(), right, 1, padded[0], left, 1)

    def exchange_back(self, padded: Any) -> None:
        left, right = self.neighbours()
        for mine, to, row, source in ((0, left, -2, right), (-1, right, 1, left)):
            come = np.zeros_like(padded[0])
            self.comm.Sendrecv(padded[mine].copy(), to, 2, come, source, 2)
            padded[row] += come

    def forward(self, x: Any) -> Any:
        padded = self.halo()
        padded[1:-1] = x
        self.exchange(padded)
        return padded[:-2] + 2 * padded[1:-1] + 3 * padded[2:]

    def adjoint(self, y: Any) -> Any:
        padded = self.halo()
        padded[:-2] += y
        padded[1:-1] += 2 * y
        padded[2:] += 3 * y
        self.exchange_back(padded)
        return np.array(padded[1:-1])


class OneRankForgetsPadding(Stencil):
    def forward(self, x: Any) -> Any:
        return x[:-2] + 2 * x[1:-1] + 3 * x[2:] if self.size == 1 else super().forward(x)


class BordersKeepTheirValues(Stencil):
    """Keeps the memory of the halo between calls; nobody clears the halos that no neighbour writes."""

    kept: Any = None

    def halo(self) -> Any:
        if self.kept is None:
            self.kept = super().halo()
        self.kept[1:-1] = 0
        return self.kept


def even_rows(draw: Any, ranks: int) -> Mapping[str, Any]:
    rows, width = draw(al.strategies.shapes(2).filter(lambda sides: sides[0] > 0))
    return {"rows": rows, "width": width, "dtype": draw(st.sampled_from(DTYPES))}


def stencilled(x: Any, **_: Any) -> Any:
    padded = np.zeros((x.shape[0] + 2, x.shape[1]), x.dtype)
    padded[1:-1] = x
    return padded[:-2] + 2 * padded[1:-1] + 3 * padded[2:]


class Trim(Operator):
    """Every rank pads its rows by `left` and `right` zero rows; the adjoint trims them off."""

    def __init__(
        self, comm: Any, shape: Sequence[int], ends: Sequence[int], dtype: str, left: int, right: int
    ) -> None:
        sizes = [stop - start + left + right for start, stop in itertools.pairwise(ends)]
        longer = [sum(sizes[:rank]) for rank in range(len(ends))]
        codomain = cut((longer[-1], *shape[1:]), longer, dtype, "y")
        super().__init__(comm, al.Space(cut(shape, ends, dtype)), al.Space(codomain), 1)
        self.left, self.right = left, right

    def forward(self, x: Any) -> Any:
        y = np.zeros(self.shape_out(), x.dtype)
        y[self.left : y.shape[0] - self.right] = x
        return y

    def adjoint(self, y: Any) -> Any:
        return np.array(y[self.left : y.shape[0] - self.right])


class SliceToMinusZero(Trim):
    def adjoint(self, y: Any) -> Any:
        x = np.zeros(self.shape_in(), y.dtype)
        inner = y[self.left : -self.right]
        x[: len(inner)] += inner
        return x


def trims(draw: Any, ranks: int) -> Mapping[str, Any]:
    return {**with_cuts(draw, ranks), "left": draw(st.integers(0, 3)), "right": draw(st.integers(0, 3))}


def first_row(x: Any) -> Any:
    """A view of the first of the other dimensions' rows, of shape (longitudes, 1)."""
    return x[(slice(None), *(0 for _ in x.shape[1:]))][:, None]


class Pole(Operator):
    """The mean of the first of the last dimension's rows over all longitudes (the first dimension, cut)."""

    def __init__(self, comm: Any, shape: Sequence[int], ends: Sequence[int], dtype: str) -> None:
        x = cut(shape, ends, dtype)
        super().__init__(comm, al.Space(x), al.Space(copies((1,), comm.Get_size(), dtype, "invariant", "y")))
        self.longitudes = max(shape[0], 1)

    def forward(self, x: Any) -> Any:
        return self.all_sum(first_row(x).sum(0)) / self.longitudes

    def adjoint(self, y: Any) -> Any:
        x = np.zeros(self.shape_in(), y.dtype)
        first_row(x)[...] = y / self.longitudes
        return x


class MeanOfLocalLongitudes(Pole):
    def forward(self, x: Any) -> Any:
        return first_row(x).sum(0) / max(x.shape[0], 1)


def poles(draw: Any, ranks: int) -> Mapping[str, Any]:
    parameters = dict(with_cuts(draw, ranks))
    parameters["shape"] = tuple(max(side, 1) for side in parameters["shape"])
    parameters["ends"] = draw(al.strategies.cuts(parameters["shape"][0], ranks))
    return parameters


def polar_mean(x: Any, **_: Any) -> Any:
    return first_row(x).mean(0)


class SumOfACopyDiscarded(SumAlong):
    """Sums in place: right only where the copy in row-major order is no copy."""

    def forward(self, x: Any) -> Any:
        y = np.array(x, order="K")
        self.row.Allreduce(MPI.IN_PLACE, np.ascontiguousarray(y))
        return y * self.scale

    adjoint = forward


class HeadsForSequence(Operator):
    """All-to-all: from a tensor (batch, sequence, heads) cut along the sequence to one cut along the heads."""

    def __init__(self, comm: Any, batch: int, sequence: int, heads: int, dtype: str) -> None:
        size = comm.Get_size()
        shape, partition = (batch, sequence * size, heads * size), al.Partition((size,))
        domain = al.Space(al.Layout(shape, partition, axes=(None, 0, None)), dtype=dtype)
        codomain = al.Space(al.Layout(shape, partition, axes=(None, None, 0)), dtype=dtype, name="y")
        super().__init__(comm, domain, codomain, 1)
        self.sides = batch, sequence, heads

    def exchanged(self, blocks: Any) -> Any:
        received = np.empty_like(blocks)
        self.comm.Alltoall(blocks, received)
        return received

    def forward(self, x: Any) -> Any:
        batch, sequence, heads = self.sides
        blocks = np.ascontiguousarray(np.moveaxis(x.reshape(batch, sequence, self.size, heads), 2, 0))
        return self.merged(self.exchanged(blocks))

    def adjoint(self, y: Any) -> Any:
        batch, sequence, heads = self.sides
        received = self.exchanged(np.ascontiguousarray(self.split(y)))
        return np.moveaxis(received, 0, 2).reshape(batch, sequence, self.size * heads)

    def merged(self, blocks: Any) -> Any:
        """(P, batch, sequence, heads) to (batch, P * sequence, heads)."""
        batch, sequence, heads = self.sides
        return np.moveaxis(blocks, 0, 1).reshape(batch, self.size * sequence, heads)

    def split(self, y: Any) -> Any:
        """The inverse."""
        batch, sequence, heads = self.sides
        return np.moveaxis(y.reshape(batch, self.size, sequence, heads), 1, 0)


class RanksMergedInPlace(HeadsForSequence):
    def merged(self, blocks: Any) -> Any:
        batch, sequence, heads = self.sides
        return blocks.reshape(batch, self.size * sequence, heads)

    def split(self, y: Any) -> Any:
        return y.reshape(self.size, *self.sides)


def attention(draw: Any, ranks: int) -> Mapping[str, Any]:
    batch, sequence, heads = draw(al.strategies.shapes(3))
    return {"batch": batch, "sequence": sequence, "heads": heads, "dtype": draw(st.sampled_from(DTYPES))}


def same(x: Any, **_: Any) -> Any:
    return x


class SendsRawStorage(Ring):
    def packed(self, x: Any) -> Any:
        return x.ravel(order="K")


FAULTS = (
    recreated(
        "distdl-208",
        "padding forgotten on one rank",
        al.subject(OneRankForgetsPadding, reference=stencilled)(even_rows),
        "adjoint",
    ),
    recreated(
        "devito-2ebdecb04", "interior taken as x[n:-0]", al.subject(SliceToMinusZero)(trims), "adjoint"
    ),
    recreated(
        "torch-harmonics-74",
        "mean over the local longitudes",
        al.subject(MeanOfLocalLongitudes, reference=polar_mean)(poles),
        "adjoint",
    ),
    recreated(
        "megatron-5338",
        "sum of a contiguous copy discarded",
        al.subject(SumOfACopyDiscarded, reference=scaled)(on_grid),
        "adjoint",
    ),
    recreated(
        "deepspeed-5808",
        "rank axis merged without moving it",
        al.subject(RanksMergedInPlace, reference=same)(attention),
        "sequential",
    ),
    recreated(
        "pytorch-158903",
        "raw storage sent",
        al.subject(SendsRawStorage, reference=weighted)(on_ring),
        "adjoint",
    ),
    recreated(
        "dihydrogen-3aab1ea",
        "halos at the border keep old values",
        al.subject(BordersKeepTheirValues, reference=stencilled)(even_rows),
        "adjoint",
    ),
)

RIGHT = (
    al.subject(Stencil, reference=stencilled)(even_rows),
    al.subject(Trim)(trims),
    al.subject(Pole, reference=polar_mean)(poles),
    al.subject(HeadsForSequence, reference=same)(attention),
)
