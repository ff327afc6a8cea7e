"""Sums left out of an adjoint, taken twice, or scaled (classes A and B)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from hypothesis import strategies as st

import adjointlab as al
from tests.planted.bug import recreated
from tests.planted.right_operators import (
    DTYPES,
    GatherToAll,
    Operator,
    SumAlong,
    copies,
    cut,
    on_grid,
    scaled,
    unchanged,
    with_cuts,
)


def weight(rows: int, columns: int) -> Any:
    """A fixed matrix of small integers without symmetry."""
    i, j = np.ogrid[:rows, :columns]
    return ((5 * i + 3 * j + i * j) % 7 - 3).astype(np.float64)


class ColumnParallel(Operator):
    """y = W x with the rows of W cut: every rank gives its part of y from all of x, which is the same on all ranks."""

    def __init__(self, comm: Any, inputs: int, ends: Any, dtype: str, kind: str, frozen: bool) -> None:
        size = comm.Get_size()
        whole = np.abs(weight(ends[-1], inputs))
        gain = int(max(whole.sum(0).max(initial=1), whole.sum(1).max(initial=1)))
        domain = al.Space(copies((inputs,), size, dtype, kind))
        super().__init__(comm, domain, al.Space(cut((ends[-1],), ends, dtype, "y")), gain)
        self.kind, self.frozen = kind, frozen
        self.W = weight(ends[-1], inputs)[ends[self.rank] : ends[self.rank + 1]].astype(dtype)

    def forward(self, x: Any) -> Any:
        return self.W @ x

    def adjoint(self, y: Any) -> Any:
        partial = self.W.T @ y
        return self.all_sum(partial) if self.kind == "invariant" else partial


def columns(draw: Any, ranks: int) -> Mapping[str, Any]:
    return {
        "inputs": draw(st.integers(1, 5)),
        "ends": draw(al.strategies.cuts(draw(st.integers(1, 6)), ranks)),
        "dtype": draw(st.sampled_from(DTYPES)),
        "kind": draw(st.sampled_from(("invariant", "replicated"))),
        "frozen": draw(st.booleans()),
    }


def product(x: Any, ends: Any, dtype: str, **_: Any) -> Any:
    return weight(ends[-1], x.shape[0]).astype(dtype) @ x


class GatherAdjointIsASlice(GatherToAll):
    def adjoint(self, y: Any) -> Any:
        return np.array(self.mine(y))


class FrozenWeightForgetsTheSum(ColumnParallel):
    def adjoint(self, y: Any) -> Any:
        return self.W.T @ y if self.frozen else super().adjoint(y)


class PartialCalledReplicated(ColumnParallel):
    def adjoint(self, y: Any) -> Any:
        return self.W.T @ y


class SumsByThePrimalsType(ColumnParallel):
    """Sums whatever is the same on all ranks, though the cotangent of a replicated tensor is partial."""

    def adjoint(self, y: Any) -> Any:
        return self.all_sum(self.W.T @ y)


class MeanOfGradients(Operator):
    """Gradients summed over the sequence dimension of a grid and averaged over its data dimension."""

    def __init__(self, comm: Any, grid: Any, shape: Any, dtype: str) -> None:
        layout = al.Layout(shape, al.Partition(grid), axes=(None,) * len(shape))
        spaces = [
            al.Space(layout, dtype=dtype, types=(kind, kind), name=name)
            for name, kind in (("x", "partial"), ("y", "replicated"))
        ]
        super().__init__(comm, *spaces)
        self.divisor = grid[0]

    def forward(self, x: Any) -> Any:
        return self.all_sum(x) / self.divisor

    def adjoint(self, y: Any) -> Any:
        return self.all_sum(y) / self.divisor


class MeanOverTheSequenceToo(MeanOfGradients):
    def __init__(self, comm: Any, **parameters: Any) -> None:
        super().__init__(comm, **parameters)
        self.divisor = comm.Get_size()


def meshes(draw: Any, ranks: int) -> Mapping[str, Any]:
    return {
        "grid": draw(
            st.sampled_from([(side, ranks // side) for side in range(1, ranks + 1) if ranks % side == 0])
        ),
        "shape": draw(al.strategies.shapes(draw(st.integers(1, 2)))),
        "dtype": draw(st.sampled_from(DTYPES)),
    }


def averaged(x: Any, grid: Any, **_: Any) -> Any:
    return x / grid[0]


class SummedTwice(SumAlong):
    """By the layer, and once more by the trainer."""

    def forward(self, x: Any) -> Any:
        return self.all_sum(super().forward(x), self.row)

    def adjoint(self, y: Any) -> Any:
        return self.all_sum(super().adjoint(y), self.row)


class RowParallel(Operator):
    """y = W x + b, linear in (x, b): the columns of W are cut and so is x; b and y are the same on all ranks."""

    def __init__(self, comm: Any, outputs: int, ends: Any, dtype: str) -> None:
        size = comm.Get_size()
        b = copies((outputs,), size, dtype, "invariant", "b")
        y = copies((outputs,), size, dtype, "invariant", "y")
        whole = np.abs(weight(outputs, ends[-1]))
        gain = int(max(whole.sum(0).max(initial=1), whole.sum(1).max(initial=1))) + size
        super().__init__(comm, al.Space(cut((ends[-1],), ends, dtype), b), al.Space(y), gain)
        self.W = weight(outputs, ends[-1])[:, ends[self.rank] : ends[self.rank + 1]].astype(dtype)

    def forward(self, x: Any, b: Any) -> Any:
        return self.all_sum(self.W @ x) + b

    def adjoint(self, y: Any) -> Any:
        return self.W.T @ y, np.array(y)


class BiasOnEveryRank(RowParallel):
    def forward(self, x: Any, b: Any) -> Any:
        return self.all_sum(self.W @ x + b)

    def adjoint(self, y: Any) -> Any:
        return self.W.T @ y, self.all_sum(y)


class BiasOnRankZero(RowParallel):
    """Right, and reported as a fault twice: the bias is added before the sum, but on one rank."""

    def forward(self, x: Any, b: Any) -> Any:
        return self.all_sum(self.W @ x + b * (self.rank == 0))


def rows(draw: Any, ranks: int) -> Mapping[str, Any]:
    return {
        "outputs": draw(st.integers(1, 5)),
        "ends": draw(al.strategies.cuts(draw(st.integers(1, 6)), ranks)),
        "dtype": draw(st.sampled_from(DTYPES)),
    }


def affine(x: Any, b: Any, ends: Any, dtype: str, **_: Any) -> Any:
    return weight(b.shape[0], ends[-1]).astype(dtype) @ x + b


class ScaleSkippedOnOneRank(SumAlong):
    def forward(self, x: Any) -> Any:
        return np.array(x) if self.size == 1 else super().forward(x)

    adjoint = forward


FAULTS = (
    recreated(
        "lightly-1528",
        "adjoint of an all-gather is a slice",
        al.subject(GatherAdjointIsASlice)(with_cuts),
        "adjoint",
    ),
    recreated(
        "megatron-5fffdfc73",
        "input gradient not summed where the weight is frozen",
        al.subject(FrozenWeightForgetsTheSum, reference=product)(columns),
        "adjoint",
    ),
    recreated(
        "torchtitan-1878",
        "partial gradient taken for a replicated one",
        al.subject(PartialCalledReplicated, reference=product)(columns),
        "adjoint",
    ),
    recreated(
        "deepspeed-5555",
        "gradients averaged over the sequence dimension too",
        al.subject(MeanOverTheSequenceToo, reference=averaged)(meshes),
        "sequential",
    ),
    recreated(
        "nnabla-1120",
        "gradients summed twice",
        al.subject(SummedTwice, reference=scaled)(on_grid),
        "sequential",
    ),
    recreated(
        "paddle-35186",
        "bias added on every rank",
        al.subject(BiasOnEveryRank, reference=affine)(rows),
        "sequential",
    ),
    recreated(
        "xla-9670",
        "scale skipped on one rank",
        al.subject(ScaleSkippedOnOneRank, reference=scaled)(on_grid),
        "sequential",
    ),
    recreated(
        "jax-0e68e5f40",
        "adjoint sums by the local type of the primal",
        al.subject(SumsByThePrimalsType, reference=product)(columns),
        "adjoint",
    ),
)

RIGHT = (
    al.subject(ColumnParallel, reference=product)(columns),
    al.subject(MeanOfGradients, reference=averaged)(meshes),
    al.subject(RowParallel, reference=affine)(rows),
    al.subject(BiasOnRankZero, reference=affine)(rows),
    al.subject(GatherToAll, reference=unchanged)(with_cuts),
)
