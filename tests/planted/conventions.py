"""Conventions that look like faults: right once the local types are declared, so the lab stays silent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

import adjointlab as al
from adjointlab.engine.subject import Subject
from tests.planted.recreated.memory import Trim, even_rows, trims
from tests.planted.recreated.ranks import plain
from tests.planted.recreated.sums import BiasOnRankZero, affine, rows
from tests.planted.right_operators import DTYPES, Operator, copies, cut, unchanged, with_cuts


class Summed(Operator):
    """All-reduce whose backward pass is the identity: the result is one value, of which all ranks hold a copy."""

    kinds = ("partial", "invariant")

    def __init__(self, comm: Any, shape: Sequence[int], dtype: str) -> None:
        size = comm.Get_size()
        x, y = (copies(shape, size, dtype, kind, name) for kind, name in zip(self.kinds, "xy", strict=True))
        super().__init__(comm, al.Space(x), al.Space(y), size)

    def forward(self, x: Any) -> Any:
        return self.all_sum(x)

    def adjoint(self, y: Any) -> Any:
        return np.array(y)


class SummedBothWays(Summed):
    """All-reduce whose backward pass is an all-reduce: every rank's result is a value of its own."""

    kinds = ("varying", "varying")

    def adjoint(self, y: Any) -> Any:
        return self.all_sum(y)


class SummedForPartialGradients(SummedBothWays):
    """The same, as a map from summands to copies, whose cotangents are summands."""

    kinds = ("partial", "replicated")


class EntersParallelRegion(Summed):
    """The identity whose backward pass is an all-reduce."""

    kinds = ("invariant", "replicated")

    def forward(self, x: Any) -> Any:
        return np.array(x)

    def adjoint(self, y: Any) -> Any:
        return self.all_sum(y)


class GatheredForOneConsumer(Operator):
    """All-gather whose backward pass is a slice: what consumes the result is the same on all ranks."""

    def __init__(self, comm: Any, shape: Sequence[int], ends: Sequence[int], dtype: str) -> None:
        y = copies(shape, comm.Get_size(), dtype, "invariant", "y")
        super().__init__(comm, al.Space(cut(shape, ends, dtype)), al.Space(y), 1)
        self.mine = slice(ends[self.rank], ends[self.rank + 1])

    def forward(self, x: Any) -> Any:
        y = np.zeros(self.shape_out(), x.dtype)
        y[self.mine] = x
        return self.all_sum(y)

    def adjoint(self, y: Any) -> Any:
        return np.array(y[self.mine])


class BiasReducedLater(Operator):
    """y = x + b with x cut and b copied: the gradient of b is left in summands, which the optimiser adds up."""

    def __init__(self, comm: Any, shape: Sequence[int], ends: Sequence[int], dtype: str) -> None:
        b = copies(shape[1:], comm.Get_size(), dtype, "replicated", "b")
        x, y = cut(shape, ends, dtype), cut(shape, ends, dtype, "y")
        super().__init__(comm, al.Space(x, b), al.Space(y), shape[0] + 2)

    def forward(self, x: Any, b: Any) -> Any:
        return x + b

    def adjoint(self, y: Any) -> Any:
        return np.array(y), y.sum(0)


class TimesPOverP(Summed):
    """x * (P / P)."""

    kinds = ("varying", "varying")

    def forward(self, x: Any) -> Any:
        return x * (self.size / self.size)

    adjoint = forward


class Cropped(Trim):
    """A crop as a restriction: it forgets the margins, and its adjoint fills in zeros."""

    def __init__(self, comm: Any, **parameters: Any) -> None:
        super().__init__(comm, **parameters)
        self.domain, self.codomain = self.codomain, self.domain

    def forward(self, x: Any) -> Any:
        return np.array(x[self.left : x.shape[0] - self.right])

    def adjoint(self, y: Any) -> Any:
        x = np.zeros(self.shape_in(), y.dtype)
        x[self.left : x.shape[0] - self.right] = y
        return x


class MeanOfMeans(Operator):
    """The mean over all rows as the mean of the ranks' means: right, since all ranks have as many."""

    def __init__(self, comm: Any, rows: int, width: int, dtype: str) -> None:
        shape = (rows * comm.Get_size(), width)
        y = copies((width,), comm.Get_size(), dtype, "invariant", "y")
        super().__init__(comm, al.Space(cut(shape, range(0, shape[0] + 1, rows), dtype)), al.Space(y))

    def forward(self, x: Any) -> Any:
        return self.all_sum(x.mean(0)) / self.size

    def adjoint(self, y: Any) -> Any:
        rows, _ = self.shape_in()
        return np.repeat(y[None, :] / self.size / rows, rows, axis=0)


def biased(draw: Any, ranks: int) -> Mapping[str, Any]:
    shape = tuple(draw(al.strategies.shapes(draw(st.integers(2, 3)))))
    return {
        "shape": shape,
        "ends": draw(al.strategies.cuts(shape[0], ranks)),
        "dtype": draw(st.sampled_from(DTYPES)),
    }


def mean(x: Any, **_: Any) -> Any:
    return x.mean(0)


def plus(x: Any, b: Any, **_: Any) -> Any:
    return x + b


CONVENTIONS: tuple[tuple[str, Subject], ...] = (
    ("all-reduce with the identity as its backward pass", al.subject(Summed, reference=unchanged)(plain)),
    ("all-reduce with an all-reduce as its backward pass", al.subject(SummedBothWays)(plain)),
    (
        "the same from partial to replicated",
        al.subject(SummedForPartialGradients, reference=unchanged)(plain),
    ),
    (
        "identity with an all-reduce as its backward pass",
        al.subject(EntersParallelRegion, reference=unchanged)(plain),
    ),
    (
        "all-gather with a slice as its backward pass",
        al.subject(GatheredForOneConsumer, reference=unchanged)(with_cuts),
    ),
    ("bias added before the sum, on rank 0 alone", al.subject(BiasOnRankZero, reference=affine)(rows)),
    ("gradient of the bias left in summands", al.subject(BiasReducedLater, reference=plus)(biased)),
    ("x * (P / P)", al.subject(TimesPOverP)(plain)),
    ("a crop as a restriction", al.subject(Cropped)(trims)),
    ("mean of means on even shards", al.subject(MeanOfMeans, reference=mean)(even_rows)),
)
