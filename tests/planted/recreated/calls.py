"""State that is kept between calls, and collectives that do not meet (classes H and I)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

import adjointlab as al
from tests.planted.bug import recreated
from tests.planted.recreated.ranks import plain
from tests.planted.right_operators import (
    DTYPES,
    CopyToAll,
    Operator,
    Ring,
    SumAlong,
    copies,
    on_grid,
    on_ring,
    scaled,
    shapes,
    unchanged,
    weighted,
    with_root,
)


class RingOfBlocks(Operator):
    """y_r = sum_s (s+1) x_{r-s}: the blocks go round the ring, one step at a time."""

    def __init__(self, comm: Any, shape: Sequence[int], dtype: str) -> None:
        size = comm.Get_size()
        x, y = copies(shape, size, dtype, "varying"), copies(shape, size, dtype, "varying", "y")
        super().__init__(comm, al.Space(x), al.Space(y), size * (size + 1) // 2)

    def carry(self, block: Any, step: int) -> Any:
        received = np.empty_like(block)
        self.comm.Sendrecv(
            block, (self.rank + step) % self.size, 0, received, (self.rank - step) % self.size, 0
        )
        return received

    def accumulated(self, block: Any, step: int) -> Any:
        block = np.array(block, order="C")
        total = np.zeros_like(block)
        for factor in range(1, self.size + 1):
            total += factor * block
            block = self.carry(block, step)
        return total

    def forward(self, x: Any) -> Any:
        return self.accumulated(x, 1)

    def adjoint(self, y: Any) -> Any:
        return self.accumulated(y, -1)


class SavedBlockInEveryStep(RingOfBlocks):
    def adjoint(self, y: Any) -> Any:
        block = saved = np.array(y, order="C")
        total = np.zeros_like(block)
        for factor in range(1, self.size + 1):
            total += factor * saved
            block = self.carry(block, -1)
        return total


class SumsOnTheFirstCall(SumAlong):
    first = True

    def adjoint(self, y: Any) -> Any:
        first, self.first = self.first, False
        return super().adjoint(y) if first else np.array(y) * self.scale


class ClearsBySubtraction(SumAlong):
    total: Any = None

    def forward(self, x: Any) -> Any:
        if self.total is None:
            self.total = np.zeros(x.shape, x.dtype)
        self.total += -self.total
        self.total += super().forward(x)
        return self.total.copy()


class TwoCopies(Operator):
    """Two tensors of different shapes, copied from rank 0 to all by one stateful broadcast."""

    def __init__(self, comm: Any, mean: Sequence[int], scale: Sequence[int], dtype: str) -> None:
        domain, codomain = [], []
        for name, shape in (("m", mean), ("g", scale)):
            root = al.Layout(shape, al.Partition((1,)), axes=(None,) * len(shape))
            domain.append(al.Tensor(root, dtype, name=name))
            codomain.append(copies(shape, comm.Get_size(), dtype, "varying", f"{name}_copy"))
        super().__init__(comm, al.Space(*domain), al.Space(*codomain), comm.Get_size())

    def shape(self, position: int) -> tuple[int, ...]:
        return self.shape_out(position)

    def forward(self, *x: Any) -> Any:
        results = []
        for position, array in enumerate(x):
            y = np.zeros(self.shape(position), array.dtype)
            if self.rank == 0:
                y[...] = array
            self.comm.Bcast(y, 0)
            results.append(y)
        return tuple(results)

    def adjoint(self, *y: Any) -> Any:
        totals = [self.all_sum(array) for array in y]
        return tuple(
            t if self.rank == 0 else np.zeros(self.shape_in(i), t.dtype) for i, t in enumerate(totals)
        )


class RemembersTheFirstShape(TwoCopies):
    known: tuple[int, ...] | None = None

    def shape(self, position: int) -> tuple[int, ...]:
        if self.known is None:
            self.known = super().shape(position)
        return self.known


def pairs(draw: Any, ranks: int) -> Mapping[str, Any]:
    return {
        "mean": shapes(draw, (1, 2)),
        "scale": shapes(draw, (1, 2)),
        "dtype": draw(st.sampled_from(DTYPES)),
    }


class NeighbourGroups(Operator):
    """Every rank's summand and its next neighbour's, summed in groups of two, which overlap."""

    def __init__(self, comm: Any, shape: Sequence[int], dtype: str) -> None:
        size = comm.Get_size()
        x, y = copies(shape, size, dtype, "varying"), copies(shape, size, dtype, "varying", "y")
        super().__init__(comm, al.Space(x), al.Space(y), 5)
        everyone = comm.Get_group()
        self.pairs = {}
        for first in self.order([first for first in range(size - 1) if self.rank in (first, first + 1)]):
            self.pairs[first] = comm.Create_group(everyone.Incl([first, first + 1]), first)

    def order(self, mine: list[int]) -> list[int]:
        return mine

    def forward(self, x: Any) -> Any:
        y = np.array(x)
        for first in sorted(self.pairs):
            y += self.all_sum(x, self.pairs[first])
        return y

    adjoint = forward


class GroupsInOwnOrder(NeighbourGroups):
    """Ranks make the group they send to first: all wait in a circle but for the last."""

    def __init__(self, comm: Any, shape: Sequence[int], dtype: str) -> None:
        super().__init__(comm, shape, dtype)
        size = comm.Get_size()
        if size > 2:
            everyone = comm.Get_group()
            for first in (self.rank, (self.rank - 1) % size):
                comm.Create_group(everyone.Incl(sorted([first, (first + 1) % size])), size + first)


class TwoSums(Operator):
    """Two tensors of one shape, each summed over all ranks."""

    def __init__(self, comm: Any, shape: Sequence[int], dtype: str) -> None:
        size = comm.Get_size()
        domain = [copies(shape, size, dtype, "partial", name) for name in ("a", "b")]
        codomain = [copies(shape, size, dtype, "replicated", name) for name in ("sum_a", "sum_b")]
        super().__init__(comm, al.Space(*domain), al.Space(*codomain), size)

    def order(self) -> Sequence[int]:
        return 0, 1

    def forward(self, *x: Any) -> Any:
        results: dict[int, Any] = {}
        for position in self.order():
            results[position] = self.all_sum(x[position])
        return results[0], results[1]

    adjoint = forward


class OrderOfADictionary(TwoSums):
    def order(self) -> Sequence[int]:
        return (0, 1) if self.rank % 2 == 0 else (1, 0)


def both(a: Any, b: Any, **_: Any) -> Any:
    return a, b


FAULTS = (
    recreated(
        "diffusers-14265",
        "block of the first ring step in every step",
        al.subject(SavedBlockInEveryStep)(plain),
        "adjoint",
    ),
    recreated(
        "firedrake-4623",
        "adjoint sums on the first call alone",
        al.subject(SumsOnTheFirstCall, reference=scaled)(on_grid),
        "reentrancy",
    ),
    recreated(
        "horovod-3505",
        "buffer cleared by subtraction",
        al.subject(ClearsBySubtraction, reference=scaled)(on_grid),
        "reentrancy",
    ),
    recreated(
        "distdl-182",
        "one stateful layer in two roles",
        al.subject(RemembersTheFirstShape, reference=both)(pairs),
        "adjoint",
    ),
    recreated("distdl-87", "communicators made in own order", al.subject(GroupsInOwnOrder)(plain), "adjoint"),
    recreated(
        "apex-19",
        "sums in the order of a dictionary",
        al.subject(OrderOfADictionary, reference=both)(plain),
        "sequential",
    ),
)

RIGHT = (
    al.subject(RingOfBlocks)(plain),
    al.subject(TwoCopies, reference=both)(pairs),
    al.subject(NeighbourGroups)(plain),
    al.subject(TwoSums, reference=both)(plain),
    al.subject(CopyToAll, reference=unchanged)(with_root),
    al.subject(Ring, reference=weighted)(on_ring),
)
