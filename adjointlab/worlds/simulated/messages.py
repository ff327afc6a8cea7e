"""Messages and probes of one rank over a simulated communicator: building blocks of the methods with mpi4py's names."""

from __future__ import annotations

from typing import Any

from adjointlab import MPI
from adjointlab.typing import Buffer, Status
from adjointlab.worlds.arguments import elements
from adjointlab.worlds.call_sites import SimulatedCall, call_here
from adjointlab.worlds.constants import as_source, as_tag, c_int, fill_status
from adjointlab.worlds.local_calls import LARGEST_TAG, LocalCalls
from adjointlab.worlds.object_room import ENOUGH, ObjectRoom
from adjointlab.worlds.simulated.collectives import SharedCommunicator
from adjointlab.worlds.simulated.matching import Message, Null, PendingProbe, Receive, Send
from adjointlab.worlds.simulated.requests import SimulatedRequest
from adjointlab.worlds.simulated.scheduler import Pending, Task
from adjointlab.worlds.simulated.simulation import Simulation

__all__ = ["MatchedMessage", "Messages", "legal_tag"]


class Messages(LocalCalls):
    """The part of one rank's view of a communicator that sends, receives and probes."""

    def __init__(self, run: Simulation, task: Task, shared: SharedCommunicator, rank: int) -> None:
        self._run = run
        self._scheduler = run.scheduler
        self._task = task
        self._shared = shared
        self._name = "" if shared is run.everyone else shared.name
        self._freed = False
        self._attributes = {}
        self._rank = rank
        self.size = len(shared.members)

    def _begin(self) -> None:
        self._refuse_freed()
        self._scheduler.enter(self._task)

    def _refuse_freed(self) -> None:
        if self._freed:
            raise MPI.Exception("Invalid communicator: it has been freed", MPI.ERR_COMM)

    def _call(self, name: str, *arguments: tuple[str, object]) -> SimulatedCall:
        return call_here(name, *arguments, *((("comm", self._name),) if self._name else ()))

    def _peer(self, value: int) -> int:
        peer = as_source(value if type(value) is int else c_int(value))
        if not 0 <= peer < self.size and peer not in (MPI.ANY_SOURCE, MPI.PROC_NULL):
            raise MPI.Exception(
                f"Invalid rank {c_int(value)}: must be nonnegative and less than {self.size}", MPI.ERR_RANK
            )
        return peer

    def _destination(self, value: int) -> int:
        if (dest := self._peer(value)) == MPI.ANY_SOURCE:
            raise MPI.Exception("Invalid rank ANY_SOURCE: a message is sent to one rank", MPI.ERR_RANK)
        return dest

    def _send(
        self,
        name: str,
        buf: Buffer,
        dest: int,
        tag: int,
        *,
        pickled: bool = False,
        synchronous: bool = False,
        buffered: bool = False,
        blocking: bool = True,
    ) -> Pending:
        """Start a send."""
        dest, tag = self._destination(dest), legal_tag(tag)
        call = self._call(name, ("dest", dest), ("tag", tag))
        self._begin()
        if dest == MPI.PROC_NULL:
            return Null(self._task, call)
        content = elements(buf, writable=False)
        message = Message(self._task, self._rank, tag, content, pickled, call)
        send = Send(self._task, call, message, self._shared.members[dest])
        if dest != self._rank:
            self._run.messaging.update((self._task.rank, self._shared.members[dest]))
        if not blocking and not pickled:
            send.watch()
        deviates = self._run.strategy.deviates
        # `late`: the buffer is read only when user code may use it again, or when the message is received.
        if synchronous or (not buffered and deviates()):
            message.sent = send  # done when the message is received
            late = blocking or deviates()
        else:
            send.done = True
            late = not blocking and deviates()
        self._shared.mailboxes[dest].put(message)
        if not late:
            message.capture()
        return send

    def _receive(
        self, name: str, buf: Buffer | ObjectRoom, source: int, tag: int, *, blocking: bool = True
    ) -> Pending:
        """Start a receive."""
        source, tag = self._peer(source), legal_tag(tag, is_receive=True)
        call = self._call(name, ("source", source), ("tag", tag))
        self._begin()
        if source == MPI.PROC_NULL:
            return Null(self._task, call)
        target = buf if isinstance(buf, ObjectRoom) else elements(buf, writable=True)
        receive = Receive(self._task, call, source, tag, self._shared.members, target)
        if not blocking and self._run.strategy.deviates():
            receive.delay()
            self._run.delayed.append(call)
        self._shared.mailboxes[self._rank].post(receive)
        return receive

    def _receive_matched(self, name: str, buf: Buffer | ObjectRoom, message: Message | None) -> Pending:
        """Start the receive of a message that Mprobe or Improbe has matched."""
        mailbox = self._shared.mailboxes[self._rank]
        if message is not None and message not in mailbox.matched:
            raise MPI.Exception("Invalid message: it has been received", MPI.ERR_OTHER)
        source, tag = (MPI.PROC_NULL, MPI.ANY_TAG) if message is None else (message.source, message.tag)
        call = self._call(name, ("source", source), ("tag", tag))
        self._begin()
        if message is None:
            return Null(self._task, call)
        target = buf if isinstance(buf, ObjectRoom) else elements(buf, writable=True)
        receive = Receive(self._task, call, source, tag, self._shared.members, target)
        mailbox.matched.remove(message)
        mailbox.deliver(receive, message)
        return receive

    def _complete(self, pending: Pending, status: Status | None = None, send: Pending | None = None) -> Any:
        """Wait for `pending`, and for the `send` started with it; return its result."""
        if send is not None:
            self._scheduler.wait(self._task, (pending, send), pending.call)
            send.finish()
        elif not pending.done:
            self._scheduler.wait(self._task, (pending,), pending.call)
        return self._run.finish(pending, status)

    def _request(self, pending: Pending) -> SimulatedRequest:
        return SimulatedRequest(self._run, pending)

    def _probe(self, name: str, source: int, tag: int) -> PendingProbe:
        source, tag = self._peer(source), legal_tag(tag, is_receive=True)
        call = self._call(name, ("source", source), ("tag", tag))
        self._begin()
        return PendingProbe(self._task, call, source, tag, self._shared.members)

    def _await_message(self, name: str, source: int, tag: int, status: Status | None) -> Message | None:
        probe = self._probe(name, source, tag)
        if probe.source == MPI.PROC_NULL:
            fill_status(status, MPI.PROC_NULL, MPI.ANY_TAG, 0)
            return None
        mailbox = self._shared.mailboxes[self._rank]
        if mailbox.find(probe) is None:
            mailbox.watch(probe)
            self._scheduler.wait(self._task, (probe,), probe.call)
        return self._report(probe, mailbox.find(probe), status)

    def _look_for_message(self, name: str, source: int, tag: int, status: Status | None) -> Message | None:
        probe = self._probe(name, source, tag)
        mailbox = self._shared.mailboxes[self._rank]
        message = mailbox.find(probe)
        if message is not None and not mailbox.has_shown(probe) and self._overlooks(message):
            message = None
        if message is None:
            self._scheduler.polled(self._task, probe.call)
        return self._report(probe, message, status)

    def _overlooks(self, message: Message) -> bool:
        """Return True if a non-blocking probe should miss a message that has arrived; each message is missed at most once.

        As for tests of requests, MPI guarantees that such probes find it eventually, but not at once.
        """
        if message.was_overlooked or message.source == self._rank or not self._run.strategy.deviates():
            return False
        message.was_overlooked = True
        return True

    def _report(self, probe: PendingProbe, message: Message | None, status: Status | None) -> Message | None:
        if message is not None:
            message.was_overlooked = True  # from now on every probe must find it
            if probe.is_wildcard:
                self._scheduler.matched.append(message.matched_by(probe))
            fill_status(status, message.source, message.tag, message.nbytes)
        return message

    def _match(self, message: Message | None) -> MatchedMessage:
        if message is not None:
            self._shared.mailboxes[self._rank].match(message)
        return MatchedMessage(self, message)


class MatchedMessage:
    """Message that `Mprobe` or `Improbe` has matched, to be received."""

    def __init__(self, comm: Messages, message: Message | None) -> None:
        self._comm = comm
        self._message = message  # None: from PROC_NULL

    def Recv(self, buf: Buffer, status: Status | None = None) -> None:
        self._comm._complete(self._receive("Recv", buf), status)

    def Irecv(self, buf: Buffer) -> SimulatedRequest:
        return self._comm._request(self._receive("Irecv", buf))

    def recv(self, status: Status | None = None) -> Any:
        return self._comm._complete(self._receive("recv", ENOUGH), status)

    def irecv(self) -> SimulatedRequest:
        return self._comm._request(self._receive("irecv", ENOUGH))

    def _receive(self, name: str, buf: Buffer | ObjectRoom) -> Pending:
        return self._comm._receive_matched(name, buf, self._message)


def legal_tag(value: int, *, is_receive: bool = False) -> int:
    """Return the tag `value`; raise `adjointlab.MPI.Exception` if it is not legal for a send, or for a receive if `is_receive`."""
    tag = as_tag(value if type(value) is int else c_int(value))
    if 0 <= tag <= LARGEST_TAG or (is_receive and tag == MPI.ANY_TAG):
        return tag
    allowed = f"from 0 to {LARGEST_TAG}{', or ANY_TAG' if is_receive else ''}"
    raise MPI.Exception(f"Invalid tag {c_int(value)}: must be {allowed}", MPI.ERR_TAG)
