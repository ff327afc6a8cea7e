"""Operators that return a NaN or an infinity on their second rank alone, and meet the others in every call."""

from __future__ import annotations

from typing import Any

import numpy as np

import adjointlab as al
from tests.samples import RingShift, equal_blocks


class WaitsForAll(RingShift):
    """All ranks wait for each other in every call; `factors` multiply the results of forward and adjoint on rank 1."""

    factors = (1.0, 1.0)

    def shifted(self, x: Any, step: int) -> Any:
        self.comm.Barrier()
        result = super().shifted(x, step)
        with np.errstate(all="ignore"):
            return result * (self.factors[step < 0] if self.comm.Get_rank() == 1 else 1.0)


class NanForward(WaitsForAll):
    factors = (np.nan, 1.0)


class InfAdjoint(WaitsForAll):
    def adjoint(self, y: Any) -> Any:
        result = super().adjoint(y)
        return np.full_like(result, -np.inf) if self.comm.Get_rank() == 1 else result


class KeepsNan(RingShift):
    """Right, until it has seen a NaN once: it clears its memory by arithmetic."""

    def __init__(self, comm: Any, layout: al.Layout) -> None:
        super().__init__(comm, layout)
        self.kept: Any = 0.0

    def shifted(self, x: Any, step: int) -> Any:
        self.kept = self.kept * 0 + np.sum(x) * 0
        return super().shifted(x, step) + self.kept


class ReadsFreshMemory(RingShift):
    """Adds what lies in uninitialised memory."""

    def shifted(self, x: Any, step: int) -> Any:
        return super().shifted(x, step) + np.empty(x.shape, x.dtype)


class KeepsFreshMemory(RingShift):
    """Adds what lay in uninitialised memory when it was first called, or nothing."""

    kept: Any = None

    def shifted(self, x: Any, step: int) -> Any:
        if self.kept is None:
            self.kept = np.nan_to_num(np.empty(1, x.dtype)) * 0 + np.where(np.isnan(np.empty(1)), np.nan, 0.0)
        return super().shifted(x, step) + self.kept


nan_forward = al.subject(NanForward)(equal_blocks)
inf_adjoint = al.subject(InfAdjoint)(equal_blocks)
keeps_nan = al.subject(KeepsNan)(equal_blocks)
reads_fresh_memory = al.subject(ReadsFreshMemory)(equal_blocks)
keeps_fresh_memory = al.subject(KeepsFreshMemory)(equal_blocks)
