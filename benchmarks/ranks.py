"""Timings over the ranks of a job, or of a process that is alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from timing import interleaved

__all__ = ["Alone", "timed"]


class Alone:
    """The communicator of a process that is alone."""

    def Get_rank(self) -> int:
        return 0

    def Get_size(self) -> int:
        return 1

    def Barrier(self) -> None:
        pass

    def allreduce(self, value: float, operation: object = None) -> float:
        return value


def timed(comm: Any, calls: Mapping[str, Callable[[], object]], repeats: int = 10) -> dict[str, float]:
    """Seconds of the slowest rank for each, by the clock of the host."""
    for call in calls.values():
        call()  # makes the buffers, compiles the kernels
    taken = interleaved(calls, repeats, meet=comm.Barrier)
    return {name: max(each) for name, each in gathered(comm, taken).items()}


def gathered(comm: Any, taken: dict[str, float]) -> dict[str, list[float]]:
    everybody = [taken] if isinstance(comm, Alone) else comm.allgather(taken)
    return {name: [each[name] for each in everybody] for name in taken}
