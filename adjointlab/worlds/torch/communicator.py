"""Stand-in for a communicator in a case of the torch world: rank, size, and collectives for objects of the lab itself."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple, NoReturn

import numpy as np

from adjointlab.MPI import SUM, Op
from adjointlab.worlds.local_calls import LocalCalls
from adjointlab.worlds.torch.store import Store
from adjointlab.worlds.torch.waits import CaseWaits

__all__ = ["WITHOUT_COMMUNICATOR", "CaseGroup", "TorchComm"]

WITHOUT_COMMUNICATOR = (
    "under torchrun there is no communicator, only the process groups of torch.distributed: run it under mpiexec, or on "
    "simulated ranks, without a launcher"
)


class CaseGroup(NamedTuple):
    """Arguments for making the real default process group of a case."""

    store: Store
    rank: int
    size: int
    backend: str
    timeout: timedelta
    waits: CaseWaits


class TorchComm(LocalCalls):
    """The ranks of a case, for the lab; `case_group` is for :func:`adjointlab.process_group`."""

    def __init__(self, case_group: CaseGroup) -> None:
        self.case_group = case_group
        self.rank, self.size = case_group.rank, case_group.size
        self._waits = case_group.waits
        self._name, self._attributes = "", {}

    def allgather(self, sendobj: object) -> list[Any]:
        return self._waits.allgather(sendobj, "allgather()")

    def gather(self, sendobj: object, root: int = 0) -> list[Any] | None:
        found = self.allgather(sendobj)
        return found if self.rank == root else None

    def bcast(self, obj: object, root: int = 0) -> Any:
        return self.allgather(obj)[root]

    def barrier(self) -> None:
        self.allgather(None)

    Barrier = barrier

    def allreduce(self, sendobj: Any, op: Op = SUM) -> Any:
        if op != SUM:
            self._refuse("allreduce of anything but a sum")
        first, *others = self.allgather(sendobj)
        return sum(others, first)

    def Allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        found = self.allgather(np.asarray(sendbuf))
        np.asarray(recvbuf).reshape(-1)[:] = np.concatenate([each.reshape(-1) for each in found])

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._refuse(name)

    def _refuse(self, name: str) -> NoReturn:
        raise AttributeError(f"{name}: {WITHOUT_COMMUNICATOR}")
