"""Requests whose completion can be revoked.

A guarded request *is* an mpi4py request (the same handle), so it may stand wherever user code hands requests to mpi4py;
and it is an :class:`adjointlab.MPI.Request`, so that the wait for several can be revoked too.
"""

from __future__ import annotations

from typing import Any, Literal, NoReturn, Self

from mpi4py import MPI

from adjointlab import MPI as ours
from adjointlab.typing import Status
from adjointlab.worlds.call_sites import CallSite, call_site
from adjointlab.worlds.constants import as_source, as_tag, fill_status, mark_cancelled
from adjointlab.worlds.mpi.buffer_watch import BufferWatch
from adjointlab.worlds.mpi.calls import GuardedCall
from adjointlab.worlds.mpi.guard import Guard
from adjointlab.worlds.mpi.message_log import ReceiveEntry, set_envelope
from adjointlab.worlds.object_room import ObjectRoom
from adjointlab.worlds.polling import keep_alive

__all__ = ["GuardedRequest", "ObjectReceive", "fill"]


def fill(status: Status | None, found: MPI.Status) -> None:
    """Copy what MPI found into the status that user code gave, if it gave one; ours or mpi4py's."""
    if status is not None and status is not found:
        fill_status(status, as_source(found.Get_source()), as_tag(found.Get_tag()), found.Get_count(MPI.BYTE))
        if found.Is_cancelled():
            mark_cancelled(status)


class GuardedRequest(ours.Request, MPI.Request):  # type: ignore[misc] # both have a Waitall of their own
    """A request of MPI made on a guarded communicator; the guard knows it until user code has completed it."""

    call: GuardedCall
    guard: Guard
    posted_at: CallSite
    cancelled: bool
    watch: BufferWatch | None
    entry: ReceiveEntry | None
    _needs_status: bool  # to know what a receive by wildcard has received

    __eq__ = MPI.Request.__eq__

    def __new__(
        cls,
        inner: MPI.Request,
        call: GuardedCall,
        guard: Guard,
        watch: BufferWatch | None = None,
        entry: ReceiveEntry | None = None,
    ) -> Self:
        self = super().__new__(cls, inner)
        self.call = call
        self.guard = guard
        self.cancelled = False
        self.posted_at = call_site()
        self.watch = watch
        self.entry = entry
        self._needs_status = entry is not None and (entry[0] < 0 or entry[1] < 0)
        if watch is not None:
            watch.begin()
            if guard.open_requests:
                guard.note_misuse_by(watch, self.described)
        guard.open_requests[id(self)] = self
        return self

    def described(self) -> str:
        """The call that started it, and where."""
        return f"{self.call} at {self.posted_at}"

    def is_complete(self) -> bool:
        """Return True if user code has completed it, perhaps through mpi4py's own functions."""
        return not bool(self)

    def retire(self, reason: str) -> None:
        """Make every further call on it an error that says `reason`."""

        def refuse(*_: object) -> NoReturn:
            raise ours.Exception(f"this request cannot be used: {reason}", ours.ERR_OTHER)

        for name in ("Test", "test", "Wait", "wait", "Get_status", "Cancel", "cancel", "Free"):
            setattr(self, name, refuse)

    def Test(self, status: Status | None = None) -> bool:
        """Return True if it is complete; if not, yield to other processes."""
        found = self._status_of_mpi(status)
        if not self._test(found):
            self.guard.poll_failed(self.call)
            return False
        self._complete(status, found)
        return True

    def Get_status(self, status: Status | None = None) -> bool:
        """Return True if a test would complete it; if not, yield to other processes."""
        found = self._status_of_mpi(status)
        if not super().Get_status(found):
            self.guard.poll_failed(self.call)
            return False
        if found is not None:
            fill(status, found)
        return True

    def Wait(self, status: Status | None = None) -> Literal[True]:
        """Wait until it is complete, or the wait is revoked."""
        found, test = self._status_of_mpi(status), self._test
        if not self:
            return super(ours.Request, self).Wait(found)
        for _ in self.guard.quick_polls:
            if test(found):
                break
        else:
            # Unlike Guard.wait, this does not keep the request when the wait is revoked: it is still an open request of the
            # guard, which keeps those at the end of the run.
            self.guard.wait_until(lambda: test(found), self.call)
        self._complete(status, found)
        return True

    def Cancel(self) -> None:
        """Cancel it (a wait or test must follow, as always)."""
        self.cancelled = True
        super().Cancel()

    def Free(self) -> None:
        """Let it complete unseen."""
        self.guard.open_requests.pop(id(self), None)
        if not self.is_complete():
            # Nobody will know when MPI has done with the buffer. Memory that it writes into must not be given to others.
            keep_alive(self.call)
        super().Free()

    cancel = Cancel

    def _test(self, found: MPI.Status | None) -> bool:
        try:
            return self._test_of_mpi(found)
        except Exception:
            # A message that is too long, or is no pickle, has been received.
            set_envelope(self.entry, found)
            raise

    def _test_of_mpi(self, found: MPI.Status | None) -> bool:
        return super().Test(found)

    def _status_of_mpi(self, status: Status | None) -> MPI.Status | None:
        """Status to hand to MPI for user code's; a cancelled request needs one in any case."""
        if isinstance(status, MPI.Status):
            return status
        return MPI.Status() if status is not None or self.cancelled or self._needs_status else None

    def _complete(self, status: Status | None, found: MPI.Status | None) -> None:
        self.guard.failed_polls = 0
        self.guard.open_requests.pop(id(self), None)
        if self.watch is not None and (misuse := self.watch.misuse()):
            self.guard.note_misuse(misuse, self)
        if found is not None:
            set_envelope(self.entry, found)
            # MPI may have matched it before the cancellation took effect: then it counts as any other message.
            if self.cancelled and found.Is_cancelled():
                if self.entry is not None:
                    self.entry[0] = MPI.PROC_NULL
                self.guard.uncount(self.call)
            fill(status, found)


class ObjectReceive(GuardedRequest):
    """A receive of an object, which mpi4py unpickles from the buffer of its request."""

    _room: ObjectRoom
    _object: Any

    def __new__(
        cls, inner: MPI.Request, call: GuardedCall, guard: Guard, entry: ReceiveEntry | None, room: ObjectRoom
    ) -> Self:
        self = super().__new__(cls, inner, call, guard, entry=entry)
        self._needs_status = True
        self._room = room
        self._object = None
        return self

    def test(self, status: Status | None = None) -> tuple[bool, Any]:
        return (True, self._take()) if self.Test(status) else (False, None)

    def wait(self, status: Status | None = None) -> Any:
        self.Wait(status)
        return self._take()

    def _test_of_mpi(self, found: MPI.Status | None) -> bool:
        # Not MPI.Request.test, which in a run is the request's own, that comes here.
        is_complete, self._object = super(ours.Request, self).test(found)
        if found is not None and is_complete and self._room.overflow(found.Get_count(MPI.BYTE)):
            raise MPI.Exception(MPI.ERR_TRUNCATE)
        return is_complete

    def _take(self) -> Any:
        """Return the object, once: in mpi4py a second wait on a completed request returns None."""
        taken, self._object = self._object, None
        return taken
