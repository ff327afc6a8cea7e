"""Requests of the simulated world."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from adjointlab import MPI
from adjointlab.typing import Status
from adjointlab.worlds.call_sites import SimulatedCall, call_here
from adjointlab.worlds.constants import fill_status
from adjointlab.worlds.run import Matched
from adjointlab.worlds.simulated.matching import Null
from adjointlab.worlds.simulated.scheduler import Pending
from adjointlab.worlds.simulated.simulation import Simulation

__all__ = ["SimulatedRequest"]


class SimulatedBatch(MPI.RequestBatch):
    """Simulated requests of one rank. A wait for several blocks once, so that the scheduler has all the operations waited for."""

    requests: Sequence[SimulatedRequest]

    def wait_all(self, name: str) -> None:
        _wait(self.requests, self._call(name))

    def wait_any(self, name: str) -> list[int]:
        _wait(self.requests, self._call(name), need=1)
        return self._ready()

    def test_all(self, name: str) -> bool:
        return _test(self.requests, name, all)

    def test_any(self, name: str) -> list[int]:
        return self._ready() if _test(self.requests, name, any) else []

    def choose(self, name: str, ready: list[int]) -> int:
        run = self.requests[0]._run
        index = run.strategy.choose(ready)
        matched = Matched(run.scheduler.current.rank, self._call(name), f"is told of request {index}")
        run.scheduler.matched.append(matched)
        return index

    def complete_all(self, statuses: Sequence[Status] | None) -> list[Any]:
        if statuses is None:  # the common case: saves two Python calls per request
            return [request._complete(None) for request in self.requests]
        return super().complete_all(statuses)

    def complete(self, index: int, status: Status | None) -> Any:
        return self.requests[index]._complete(status)

    def _call(self, name: str) -> SimulatedCall:
        return call_here(name, ("requests", len(self.requests)))

    def _ready(self) -> list[int]:
        pending = ((index, request._pending) for index, request in enumerate(self.requests))
        return [index for index, each in pending if each is not None and each.done]


class SimulatedRequest(MPI.Request):
    """A request with mpi4py's names.

    The buffers are released to user code when the request is completed, not when the message has been matched: so the run
    may read or write them at any time in between, as MPI may.
    """

    batch_type = SimulatedBatch

    def __init__(self, run: Simulation, pending: Pending) -> None:
        self._run = run
        self._pending: Pending | None = pending  # None once completed or freed
        # A test has failed although the request was ready, which may happen once.
        self._has_failed_late = False
        run.open_requests[id(pending)] = pending

    def __bool__(self) -> bool:
        return self._pending is not None

    def Wait(self, status: Status | None = None) -> bool:
        self.wait(status)
        return True

    def Test(self, status: Status | None = None) -> bool:
        return self.test(status)[0]

    def wait(self, status: Status | None = None) -> Any:
        """Wait until it is complete; return the object for an object receive, else None."""
        _wait([self], call_here("Wait"))
        return self._complete(status)

    def test(self, status: Status | None = None) -> tuple[bool, Any]:
        """Return True and the object received if it is complete, else False and None."""
        return (True, self._complete(status)) if _test([self], "Test", all) else (False, None)

    def Get_status(self, status: Status | None = None) -> bool:
        """Return True if a test would complete it now; the request stays active."""
        if not _test([self], "Get_status", all):
            return False
        envelope = None if self._pending is None else self._pending.envelope
        fill_status(status, *(envelope or (MPI.ANY_SOURCE, MPI.ANY_TAG, 0)))
        return True

    get_status = Get_status

    def Cancel(self) -> None:
        """Cancel a receive that has no message yet."""
        pending = self._pending
        if pending is not None and not pending.done and self._run.cancel(pending):
            self._run.scheduler.complete(pending)

    def Free(self) -> None:
        """Free the request; the operation completes unobserved."""
        if self._pending is not None:
            self._run.open_requests.pop(id(self._pending), None)
            self._pending = None

    cancel = Cancel

    def _complete(self, status: Status | None) -> Any:
        pending = self._pending
        if pending is None:
            fill_status(status, MPI.ANY_SOURCE, MPI.ANY_TAG, 0)
            return None
        self._pending = None
        self._run.open_requests.pop(id(pending), None)
        return self._run.finish(pending, status)


def _wait(requests: Sequence[SimulatedRequest], call: SimulatedCall, need: int | None = None) -> None:
    """Block until `need` (default: all) of the active `requests` are ready."""
    pending = [request._pending for request in requests if request._pending is not None]
    if pending:
        task, scheduler = pending[0].task, requests[0]._run.scheduler
        scheduler.enter(task)
        scheduler.wait(task, pending, call, need)


def _test(requests: Sequence[SimulatedRequest], name: str, which: Callable[[Iterable[bool]], bool]) -> bool:
    """Return True if `which` of the active `requests`, all or any, are ready; let other ranks run if not."""
    active = [request for request in requests if request._pending is not None]
    if not active:
        return True
    run = active[0]._run
    pending = [request._pending for request in active if request._pending is not None]
    run.scheduler.enter(pending[0].task)
    if which(each.done for each in pending):
        # MPI guarantees that a test succeeds eventually, not at once: so a run may let one fail that could
        # succeed. But only once, or a loop of tests might never end; and not if only PROC_NULL is involved.
        all_from_nobody = all(isinstance(each, Null) for each in pending)
        is_known = which(
            each._has_failed_late and each._pending is not None and each._pending.done for each in active
        )
        if is_known or active[0]._has_failed_late or all_from_nobody or not run.strategy.deviates():
            for request in active:
                # A request that was reported as complete stays so.
                request._has_failed_late |= request._pending is not None and request._pending.done
            return True
        active[0]._has_failed_late = True
    run.scheduler.polled(pending[0].task, call_here(name))
    return False
