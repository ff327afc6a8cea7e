"""Timings over the ranks of a job, or of a process that is alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from timing import interleaved

__all__ = ["Alone", "meet_asleep", "timed"]

_SECONDS_ASLEEP = 1e-3


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


def meet_asleep(comm: Any) -> None:
    """A barrier whose waiting ranks yield their processor to ranks that still compute; then all continue together.

    In MPI's own a rank polls without end: of 4 ranks on 2 cores, the 3 that wait would take half of the time of the one that does not.
    """
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(_SECONDS_ASLEEP)
    comm.Barrier()


def timed(comm: Any, calls: Mapping[str, Callable[[], object]], repeats: int = 10) -> dict[str, float]:
    """Seconds of the slowest rank for each, by the clock of the host."""
    for call in calls.values():
        call()  # makes the buffers, compiles the kernels
    taken = interleaved(calls, repeats, meet=comm.Barrier)
    return {name: max(each) for name, each in gathered(comm, taken).items()}


def gathered(comm: Any, taken: dict[str, float]) -> dict[str, list[float]]:
    everybody = [taken] if isinstance(comm, Alone) else comm.allgather(taken)
    return {name: [each[name] for each in everybody] for name in taken}
