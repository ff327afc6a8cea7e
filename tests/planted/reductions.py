"""PlantedBug operator bugs: what a slip of the pen makes of a broadcast, a reduction, a gather or a ring."""

from __future__ import annotations

from typing import Any

import numpy as np

import adjointlab as al
from adjointlab import MPI
from tests.planted.bug import PlantedBug
from tests.planted.right_operators import (
    CopyToAll,
    GatherToAll,
    Ring,
    SumAlong,
    SumToRoot,
    on_grid,
    on_ring,
    scaled,
    unchanged,
    weighted,
    with_cuts,
    with_root,
)


class MissingSum(CopyToAll):
    def adjoint(self, y: Any) -> Any:
        return self.at_root(np.array(y))


class DoubledSum(SumToRoot):
    def forward(self, x: Any) -> Any:
        total = super().forward(x)
        return total + x if self.rank == self.root else total


class WrongRoot(CopyToAll):
    def adjoint(self, y: Any) -> Any:
        total = np.zeros(y.shape, y.dtype)
        self.comm.Reduce(np.ascontiguousarray(y), total, MPI.SUM, root=0)
        return self.at_root(total)


class ScaledByRanks(SumToRoot):
    def adjoint(self, y: Any) -> Any:
        return super().adjoint(y) * self.size


class UnevenShardDropped(GatherToAll):
    """Counts the ranks by the longest shard, which is right for even cuts."""

    def adjoint(self, y: Any) -> Any:
        rows = super().adjoint(y)
        filled = self.ends[-1] // max(max(self.sizes), 1)
        return rows if self.rank < filled else np.zeros_like(rows)


class TranspositionIgnored(SumAlong):
    """Takes the ranks that are summed from the grid, not from the transposed grid; its own adjoint, as before."""

    def group(self, partition: al.Partition) -> Any:
        place = self.grid.index(self.rank)
        return self.comm.Split(place[1 - self.along], place[self.along])


class MissingConjugate(Ring):
    def adjoint(self, y: Any) -> Any:
        return self.carry(self.weights() * y, self.shape_in(), -self.step)


class NarrowedDtype(SumAlong):
    def forward(self, x: Any) -> Any:
        narrow = np.complex64 if np.iscomplexobj(x) else np.float32
        return super().forward(x.astype(narrow)).astype(x.dtype)


class InputModified(Ring):
    def adjoint(self, y: Any) -> Any:
        y *= self.weights().conj()
        return self.carry(y, self.shape_in(), -self.step)


class StaleBuffer(CopyToAll):
    """Adds up in a buffer that it made once and never clears."""

    total: Any = None

    def adjoint(self, y: Any) -> Any:
        if self.total is None:
            self.total = np.zeros(y.shape, y.dtype)
        self.total += self.all_sum(y)
        return self.at_root(self.total.copy())


class ReturnsItsBuffer(SumAlong):
    """The next call overwrites what this one returned."""

    buffer: Any = None

    def forward(self, x: Any) -> Any:
        if self.buffer is None:
            self.buffer = np.empty(x.shape, x.dtype)
        self.buffer[...] = super().forward(x)
        return self.buffer


PLANTED = (
    PlantedBug(
        "missing sum in a broadcast's adjoint",
        al.subject(MissingSum, reference=unchanged)(with_root),
        "adjoint",
    ),
    PlantedBug("sum doubled", al.subject(DoubledSum, reference=unchanged)(with_root), "adjoint", 1),
    PlantedBug("wrong root", al.subject(WrongRoot, reference=unchanged)(with_root), "adjoint"),
    PlantedBug(
        "scaled by the number of ranks", al.subject(ScaledByRanks, reference=unchanged)(with_root), "adjoint"
    ),
    PlantedBug(
        "uneven shard dropped", al.subject(UnevenShardDropped, reference=unchanged)(with_cuts), "adjoint"
    ),
    PlantedBug(
        "transposed partition ignored",
        al.subject(TranspositionIgnored, reference=scaled)(on_grid),
        "sequential",
    ),
    PlantedBug("conjugate missing", al.subject(MissingConjugate, reference=weighted)(on_ring), "adjoint", 1),
    PlantedBug("dtype narrowed", al.subject(NarrowedDtype, reference=scaled)(on_grid), "adjoint", 1),
    PlantedBug("input modified", al.subject(InputModified, reference=weighted)(on_ring), "purity", 1),
    PlantedBug(
        "stale buffer reused", al.subject(StaleBuffer, reference=unchanged)(with_root), "reentrancy", 1
    ),
    PlantedBug(
        "returned buffer overwritten",
        al.subject(ReturnsItsBuffer, reference=scaled)(on_grid),
        "reentrancy",
        1,
    ),
)

RIGHT = tuple(
    al.subject(operator, reference=reference)(draws)
    for operator, reference, draws in (
        (CopyToAll, unchanged, with_root),
        (SumToRoot, unchanged, with_root),
        (SumAlong, scaled, on_grid),
        (GatherToAll, unchanged, with_cuts),
        (Ring, weighted, on_ring),
    )
)
