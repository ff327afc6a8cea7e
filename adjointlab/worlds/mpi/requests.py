"""Requests whose completion can be called off.

A guarded request *is* an mpi4py request (the same handle), so it may stand wherever user code hands requests to
mpi4py; and it is an :class:`adjointlab.MPI.Request`, so that the wait for several can be called off too.
"""

from __future__ import annotations

from typing import Any, Literal

from mpi4py import MPI

from adjointlab import MPI as ours
from adjointlab.worlds.constants import source as source_as_ours
from adjointlab.worlds.constants import tag as tag_as_ours
from adjointlab.worlds.mpi.calls import Call, Place, caller
from adjointlab.worlds.mpi.guard import Guard

__all__ = ["GuardedRequest", "ObjectReceive", "fill"]


def fill(status: Any, found: MPI.Status) -> None:
    """Copy what MPI found into the status that user code gave, if it gave one; ours or mpi4py's."""
    if status is None or status is found:
        return
    if isinstance(status, MPI.Status):
        status.Set_source(found.Get_source())
        status.Set_tag(found.Get_tag())
        status.Set_elements(MPI.BYTE, found.Get_count(MPI.BYTE))
    else:
        status.source = source_as_ours(found.Get_source())
        status.tag = tag_as_ours(found.Get_tag())
        status.nbytes = found.Get_count(MPI.BYTE)
        status.cancelled = found.Is_cancelled()


class GuardedRequest(ours.Request, MPI.Request):  # type: ignore[misc]
    """A request made on a guarded communicator."""

    call: Call
    guard: Guard
    cancelled: bool
    posted_at: Place

    def __new__(cls, inner: MPI.Request, call: Call, guard: Guard) -> GuardedRequest:
        self = super().__new__(cls, inner)
        self.call = call
        self.guard = guard
        self.cancelled = False
        self.posted_at = caller()
        guard.open[id(self)] = self
        return self

    @property
    def story(self) -> str:
        """What was asked, and where."""
        return f"{self.call} at {self.posted_at}"

    def is_complete(self) -> bool:
        """Whether user code has completed it (perhaps through mpi4py's own functions)."""
        return not self

    def Test(self, status: Any = None) -> bool:
        """Whether it is complete; gives way to other processes if not."""
        found = self._found(status)
        if not super().Test(found):
            self.guard.polled(self.call)
            return False
        self._complete(status, found)
        return True

    def Get_status(self, status: Any = None) -> bool:
        """Whether a test would complete it; gives way to other processes if not."""
        found = self._found(status)
        if not super().Get_status(found):
            self.guard.polled(self.call)
            return False
        if found is not None:
            fill(status, found)
        return True

    def Wait(self, status: Any = None) -> Literal[True]:
        """Wait until it is complete, another rank fails, or patience is exhausted."""
        if self:
            found = self._found(status)
            test = super().Test
            for _ in self.guard.quick:
                if test(found):
                    break
            else:
                self.guard.until(lambda: test(found), self.call)
            self._complete(status, found)
        else:
            super().Wait(self._found(status))
        return True

    def Cancel(self) -> None:
        """Cancel it (a wait or test must follow, as always)."""
        self.cancelled = True
        super().Cancel()

    def Free(self) -> None:
        """Let it complete unseen."""
        self.guard.open.pop(id(self), None)
        super().Free()

    def test(self, status: Any = None) -> tuple[bool, Any]:
        return self.Test(status), None

    def wait(self, status: Any = None) -> Any:
        self.Wait(status)
        return None

    def cancel(self) -> None:
        self.Cancel()

    def _found(self, status: Any) -> MPI.Status | None:
        if isinstance(status, MPI.Status):
            return status
        return None if status is None and not self.cancelled else MPI.Status()

    def _complete(self, status: Any, found: MPI.Status | None) -> None:
        self.guard.polls = 0
        self.guard.open.pop(id(self), None)
        if found is not None:
            if self.cancelled and found.Is_cancelled():
                self.guard.forget(self.call)
            fill(status, found)


class ObjectReceive(ours.Request):
    """An object being received: the result of ``irecv``.

    Its size is known only when it arrives, so it is matched by probing. Receives of one communicator are matched in
    the order in which they were posted, wherever their sources and tags overlap.
    """

    def __init__(self, comm: Any, source: int, tag: int, call: Call) -> None:
        self.comm = comm
        self.source = source
        self.tag = tag
        self.call = call
        self.guard: Guard = comm.guard
        self.message: MPI.Message | None = None
        self.envelope = MPI.Status()
        self.value: Any = None
        self.received = False  # `value` is there
        self.done = False  # user code has completed the request
        self.posted_at = caller()
        self.guard.open[id(self)] = self
        comm.posted.append(self)

    story = GuardedRequest.story

    def __bool__(self) -> bool:
        return not self.done

    def is_complete(self) -> bool:
        return self.done

    def overlaps(self, other: ObjectReceive) -> bool:
        """Whether one message could match both."""
        return _overlap(self.source, other.source, MPI.ANY_SOURCE) and _overlap(
            self.tag, other.tag, MPI.ANY_TAG
        )

    def Get_status(self, status: Any = None) -> bool:
        if not self.done and not self._arrived():
            self.guard.polled(self.call)
            return False
        fill(status, self.envelope)
        return True

    def Test(self, status: Any = None) -> bool:
        return self.Get_status(status) and self._complete()

    def Wait(self, status: Any = None) -> Literal[True]:
        if not self.done:
            self.guard.until(self._arrived, self.call)
        fill(status, self.envelope)
        return self._complete()

    def _complete(self) -> Literal[True]:
        self.guard.polls = 0
        self.done = True
        self.guard.open.pop(id(self), None)
        return True

    def test(self, status: Any = None) -> tuple[bool, Any]:
        return (True, self._handed_over()) if self.Test(status) else (False, None)

    def wait(self, status: Any = None) -> Any:
        self.Wait(status)
        return self._handed_over()

    def _handed_over(self) -> Any:
        """The object, once: a request that is complete has nothing to give."""
        value, self.value = self.value, None
        return value

    def Cancel(self) -> None:
        """Withdraw it, unless its message is here already."""
        if not self.done and self.message is None:
            self.comm.posted.remove(self)
            self.guard.forget(self.call)
            self.done = True

    cancel = Cancel

    def _arrived(self) -> bool:
        if self.received:
            return True
        blocked: list[ObjectReceive] = []
        for receive in list(self.comm.posted):
            if any(receive.overlaps(earlier) for earlier in blocked) or not receive._match():
                blocked.append(receive)
        if self.message is None:
            return False
        self.value = self.comm.unpack(self.message, self.envelope, self.call)
        self.received = True
        return True

    def _match(self) -> bool:
        self.message = self.comm.inner.Improbe(self.source, self.tag, self.envelope)
        if self.message is not None:
            self.comm.posted.remove(self)
        return self.message is not None


def _overlap(one: int, other: int, wildcard: int) -> bool:
    return one == other or wildcard in (one, other)
