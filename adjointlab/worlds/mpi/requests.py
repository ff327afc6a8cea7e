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
from adjointlab.worlds.mpi.message_log import OBJECT, MessageLog, ReceiveEntry, set_envelope
from adjointlab.worlds.object_room import ObjectRoom
from adjointlab.worlds.polling import keep_alive

__all__ = ["GuardedRequest", "ObjectReceive", "ReceiveQueue", "fill"]


def fill(status: Status | None, found: MPI.Status) -> None:
    """Copy what MPI found into the status that user code gave, if it gave one; ours or mpi4py's."""
    if status is not None and status is not found:
        fill_status(status, as_source(found.Get_source()), as_tag(found.Get_tag()), found.Get_count(MPI.BYTE))
        if found.Is_cancelled():
            mark_cancelled(status)


class _OpenRequest(ours.Request):
    """A request that user code has started; the guard knows it until user code has completed it."""

    call: GuardedCall
    guard: Guard
    posted_at: CallSite
    watch: BufferWatch | None = None

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


class GuardedRequest(_OpenRequest, MPI.Request):  # type: ignore[misc] # both have a Waitall of their own
    """A request of MPI made on a guarded communicator."""

    cancelled: bool
    entry: ReceiveEntry | None
    _needs_status: bool  # to know what a receive by wildcard has received

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

    def Test(self, status: Status | None = None) -> bool:
        """Return True if it is complete; if not, yield to other processes."""
        found = self._status_of_mpi(status)
        try:
            is_complete = super().Test(found)
        except MPI.Exception:
            set_envelope(self.entry, found)  # a message that is too long has been received
            raise
        if not is_complete:
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
        found, test = self._status_of_mpi(status), super().Test
        if not self:
            return super().Wait(found)
        try:
            for _ in self.guard.quick_polls:
                if test(found):
                    break
            else:
                # Unlike Guard.wait, this does not keep the request when the wait is revoked: it is still an open
                # request of the guard, which keeps those at the end of the run.
                self.guard.wait_until(lambda: test(found), self.call)
        except MPI.Exception:
            set_envelope(self.entry, found)
            raise
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

    def test(self, status: Status | None = None) -> tuple[bool, None]:
        return self.Test(status), None

    def wait(self, status: Status | None = None) -> None:
        self.Wait(status)

    cancel = Cancel

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


class ReceiveQueue:
    """The object receives of one communicator that have no message yet, in the order in which they were posted.

    The size of a pickle is known only when it arrives, so ``irecv`` posts nothing in MPI: its message is found by probing.
    Then it is for this queue to match as MPI would: of two receives that could match the same message, the one that was
    posted first gets it. While this rank waits for whatever else, the guard has the queue look for messages: the sender of one
    may wait for its receive to begin, and may be this rank.
    """

    def __init__(self, inner: MPI.Intracomm, guard: Guard, messages: MessageLog) -> None:
        self.inner = inner
        self._messages = messages
        self.guard = guard
        self.waiting: list[ObjectReceive] = []

    def match(self) -> None:
        """Give each message that has arrived to the first receive that it matches."""
        if not self.inner:  # a communicator that was freed meanwhile
            self.guard.receiving.pop(id(self), None)
            return
        unmatched: list[ObjectReceive] = []
        with_wildcards: list[ObjectReceive] = []
        envelopes: set[tuple[int, int]] = set()  # of the unmatched ones
        for receive in list(self.waiting):
            # A message may have come in since an earlier receive was probed for. It is that one's, next time. Without wildcards only
            # an equal envelope overlaps: programs have hundreds of open receives.
            if receive.has_wildcard:
                is_later = any(map(receive.overlaps, unmatched))
            else:
                is_later = receive.posted_for in envelopes or any(map(receive.overlaps, with_wildcards))
            if is_later or not self._probe(receive):
                unmatched.append(receive)
                envelopes.add(receive.posted_for)
                if receive.has_wildcard:
                    with_wildcards.append(receive)
        if not self.waiting:
            self.guard.receiving.pop(id(self), None)

    def _probe(self, receive: ObjectReceive) -> bool:
        # A matched probe takes the message out of the queue, so that no other probe finds it as well.
        receive.message = self.inner.Improbe(receive.source, receive.tag, receive.envelope)
        if receive.message is not None:
            self.waiting.remove(receive)
            receive.begin()
            found = receive.envelope
            size, room = found.Get_count(MPI.BYTE), receive.room.nbytes
            content = (OBJECT, size if room is None else room)
            self._messages.receive(
                found.Get_source(), found.Get_tag(), receive.call.name, content, *receive.posted_at
            )
        return receive.message is not None


class ObjectReceive(_OpenRequest):
    """An object being received: the result of ``irecv``."""

    def __init__(
        self, queue: ReceiveQueue, room: ObjectRoom, source: int, tag: int, call: GuardedCall
    ) -> None:
        self.queue = queue
        self.room = room
        self.source = source
        self.tag = tag
        self.call = call
        self.guard = queue.guard
        self.message: MPI.Message | None = None
        self.envelope = MPI.Status()
        self.pickled = bytearray()
        self.transfer: MPI.Request | None = None
        self.value: Any = None
        self.has_value = False
        self.is_done = False  # user code has completed the request
        self.posted_at = call_site()
        self.guard.open_requests[id(self)] = self
        queue.waiting.append(self)
        self.guard.receiving[id(queue)] = queue

    def __bool__(self) -> bool:
        return not self.is_done

    def begin(self) -> None:
        """Begin to receive the message that was found."""
        assert self.message is not None
        if self.message != MPI.MESSAGE_NO_PROC:  # from PROC_NULL there comes nothing: None
            self.pickled = bytearray(self.envelope.Get_count(MPI.BYTE))
            self.transfer = self.message.Irecv([self.pickled, MPI.BYTE])

    @property
    def posted_for(self) -> tuple[int, int]:
        """Source and tag, either of which may be a wildcard."""
        return self.source, self.tag

    @property
    def has_wildcard(self) -> bool:
        return self.source == MPI.ANY_SOURCE or self.tag == MPI.ANY_TAG

    def overlaps(self, other: ObjectReceive) -> bool:
        """Return True if one message could match both."""
        return all(
            one == another or wildcard in (one, another)
            for one, another, wildcard in (
                (self.source, other.source, MPI.ANY_SOURCE),
                (self.tag, other.tag, MPI.ANY_TAG),
            )
        )

    def Get_status(self, status: Status | None = None) -> bool:
        """Return True if a test would complete it; if not, yield to other processes."""
        if not self.is_done and not self._has_arrived():
            self.guard.poll_failed(self.call)
            return False
        fill(status, self.envelope)
        return True

    def Test(self, status: Status | None = None) -> bool:
        return self.Get_status(status) and self._complete()

    def Wait(self, status: Status | None = None) -> Literal[True]:
        if not self.is_done:
            self.guard.wait_until(self._has_arrived, self.call)
        fill(status, self.envelope)
        return self._complete()

    def _complete(self) -> Literal[True]:
        self.guard.failed_polls = 0
        self.is_done = True
        self.guard.open_requests.pop(id(self), None)
        return True

    def test(self, status: Status | None = None) -> tuple[bool, Any]:
        return (True, self._take_value()) if self.Test(status) else (False, None)

    def wait(self, status: Status | None = None) -> Any:
        self.Wait(status)
        return self._take_value()

    def Cancel(self) -> None:
        """Withdraw it, unless its message is here already."""
        if not self.is_done and self.message is None:
            self.queue.waiting.remove(self)
            self.guard.uncount(self.call)
            self.is_done = True
            self.envelope.Set_cancelled(True)

    cancel = Cancel

    def _take_value(self) -> Any:
        """Return the object, once: in mpi4py a second wait on a completed request returns None."""
        value, self.value = self.value, None
        return value

    def _has_arrived(self) -> bool:
        if self.has_value:
            return True
        self.queue.match()
        if self.message is None or (self.transfer is not None and not self.transfer.Test()):
            return False
        if self.transfer is not None:
            self.value = MPI.pickle.loads(self.pickled)
        self.has_value = True
        return True
