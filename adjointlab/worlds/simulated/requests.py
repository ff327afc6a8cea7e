"""Requests of the simulated world."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from adjointlab import MPI
from adjointlab.worlds.constants import fill_status
from adjointlab.worlds.simulated.calls import SimulatedCall, call_here
from adjointlab.worlds.simulated.matching import Null
from adjointlab.worlds.simulated.scheduler import Pending
from adjointlab.worlds.simulated.simulation import Simulation
from adjointlab.worlds.world import Matched

__all__ = ["SimulatedRequest"]


class SimulatedRequest(MPI.Request):
    """A request under mpi4py's names. Completing it (not: its having happened) gives the buffers back."""

    def __init__(self, run: Simulation, pending: Pending) -> None:
        self._run = run
        self._pending: Pending | None = pending
        self._denied = False  # a test that may legally fail
        run.open_requests[id(pending)] = pending
        run.interposition.look()

    def __bool__(self) -> bool:
        return self._pending is not None

    def Wait(self, status: Any = None) -> bool:
        self.wait(status)
        return True

    def Test(self, status: Any = None) -> bool:
        return self.test(status)[0]

    def wait(self, status: Any = None) -> Any:
        """Wait for it: the object received, if it is a receive of one."""
        _wait([self], call_here("Wait"))
        return self._complete(status)

    def test(self, status: Any = None) -> tuple[bool, Any]:
        """Whether it is complete, and the object received."""
        if not _poll([self], "Test", all):
            return False, None
        return True, self._complete(status)

    def Cancel(self) -> None:
        """Withdraw a receive that has no message yet."""
        pending = self._pending
        if pending is not None and not pending.done and self._run.cancel(pending):
            self._run.scheduler.complete(pending)

    def Free(self) -> None:
        """Let it complete unseen."""
        if self._pending is not None:
            self._run.open_requests.pop(id(self._pending), None)
            self._pending = None

    cancel = Cancel

    @staticmethod
    def Waitall(requests: Sequence[Any], statuses: list[Any] | None = None) -> bool:
        _wait(requests, call_here("Waitall", ("requests", len(requests))))
        _complete_all(requests, statuses)
        return True

    @staticmethod
    def Testall(requests: Sequence[Any], statuses: list[Any] | None = None) -> bool:
        if not _poll(requests, "Testall", all):
            return False
        _complete_all(requests, statuses)
        return True

    @staticmethod
    def Waitany(requests: Sequence[Any], status: Any = None) -> int:
        return SimulatedRequest.waitany(requests, status)[0]

    @staticmethod
    def Testany(requests: Sequence[Any], status: Any = None) -> tuple[int, bool]:
        if not any(requests):
            return MPI.UNDEFINED, True
        if not _poll(requests, "Testany", any):
            return MPI.UNDEFINED, False
        index = _happened(requests)[0]
        requests[index]._complete(status)
        return index, True

    @staticmethod
    def Waitsome(requests: Sequence[Any], statuses: list[Any] | None = None) -> list[int] | None:
        if not any(requests):
            return None
        _wait(requests, call_here("Waitsome", ("requests", len(requests))), need=1)
        return _complete_some(requests, statuses)

    @staticmethod
    def Testsome(requests: Sequence[Any], statuses: list[Any] | None = None) -> list[int] | None:
        if not any(requests):
            return None
        return _complete_some(requests, statuses) if _poll(requests, "Testsome", any) else []

    @staticmethod
    def waitall(requests: Sequence[Any], statuses: list[Any] | None = None) -> list[Any]:
        _wait(requests, call_here("waitall", ("requests", len(requests))))
        return _complete_all(requests, statuses)

    @staticmethod
    def testall(requests: Sequence[Any], statuses: list[Any] | None = None) -> tuple[bool, list[Any] | None]:
        if not _poll(requests, "testall", all):
            return False, None
        return True, _complete_all(requests, statuses)

    @staticmethod
    def waitany(requests: Sequence[Any], status: Any = None) -> tuple[int, Any]:
        """Wait for one: its index and the object received."""
        if not any(requests):
            return MPI.UNDEFINED, None
        call = call_here("Waitany", ("requests", len(requests)))
        _wait(requests, call, need=1)
        run = requests[0]._run
        index = run.nondeterminism.choose(_happened(requests))
        run.scheduler.matched.append(Matched(run.scheduler.current.rank, call, f"is told of request {index}"))
        return index, requests[index]._complete(status)

    def _complete(self, status: Any) -> Any:
        pending = self._pending
        if pending is None:
            fill_status(status, MPI.ANY_SOURCE, MPI.ANY_TAG, 0)
            return None
        self._pending = None
        self._run.open_requests.pop(id(pending), None)
        return self._run.finish(pending, status)


def _wait(requests: Sequence[SimulatedRequest], call: SimulatedCall, need: int | None = None) -> None:
    pending = [request._pending for request in requests if request._pending is not None]
    if pending:
        task, scheduler = pending[0].task, requests[0]._run.scheduler
        scheduler.enter(task)
        scheduler.wait(task, pending, call, need)


def _poll(requests: Sequence[SimulatedRequest], name: str, which: Any) -> bool:
    """Whether all (or any) have happened; gives way to the other ranks if not."""
    active = [request for request in requests if request._pending is not None]
    if not active:
        return True
    run = active[0]._run
    pending = [request._pending for request in active if request._pending is not None]
    run.scheduler.enter(pending[0].task)
    if which(each.done for each in pending):
        # What has happened need not show at once, unless nobody is at the other end.
        nobody = all(isinstance(each, Null) for each in pending)
        if active[0]._denied or nobody or not run.nondeterminism.taken():
            return True
        active[0]._denied = True
    run.scheduler.polled(pending[0].task, call_here(name))
    return False


def _happened(requests: Sequence[SimulatedRequest]) -> list[int]:
    return [
        index
        for index, request in enumerate(requests)
        if request._pending is not None and request._pending.done
    ]


def _complete_all(requests: Sequence[SimulatedRequest], statuses: list[Any] | None) -> list[Any]:
    return [
        request._complete(statuses[index] if statuses is not None and index < len(statuses) else None)
        for index, request in enumerate(requests)
    ]


def _complete_some(requests: Sequence[SimulatedRequest], statuses: list[Any] | None) -> list[int]:
    happened = _happened(requests)
    _complete_all([requests[index] for index in happened], statuses)
    return happened
