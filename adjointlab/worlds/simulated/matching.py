"""Messages from rank to rank: which receive gets which message, and when its data are read and written.

Messages of one sender to one receiver on one communicator do not overtake each other (MPI 4.1, section 3.5). All else
is free, and the run's strategy decides (:mod:`adjointlab.worlds.schedules`): whether a send waits for its receive, when
its buffer is read, when the receive buffer is filled, which sender a wildcard receive hears first, and how late a
message for it arrives. So a message may be overtaken by what another rank sends because of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from adjointlab import MPI
from adjointlab.worlds.buffers import Elements, Flat
from adjointlab.worlds.simulated.calls import SimulatedCall
from adjointlab.worlds.simulated.payload import unpack
from adjointlab.worlds.simulated.scheduler import Pending, Scheduler, Task
from adjointlab.worlds.simulated.schedules.strategy import Strategy
from adjointlab.worlds.world import Blocked, Finding, Matched

__all__ = ["Mailbox", "Message", "Null", "ProbeWait", "Receive", "Send", "Wanted", "poison"]


class Message:
    """A message on its way: its data, or the buffer that they are still to be read from."""

    __slots__ = ("_borrowed", "call", "data", "datatype", "pickled", "sender", "sent", "source", "tag")

    def __init__(
        self, sender: Task, source: int, tag: int, content: Elements, pickled: bool, call: SimulatedCall
    ) -> None:
        self.sender = sender
        self.source = source  # rank in the communicator
        self.tag = tag
        self.datatype = content.datatype
        self.pickled = pickled  # an object's pickle rather than a buffer
        self.call = call
        self.sent: Send | None = None  # the send that waits for this message to be received
        self.data = content.array  # what the buffer holds now, until captured
        self._borrowed = True

    @property
    def nbytes(self) -> int:
        """The size of the message."""
        return int(self.data.nbytes)

    def capture(self) -> None:
        """Read the buffer now, because its owner is about to have it back."""
        if self._borrowed:
            self._borrowed = False
            self.data = self.data.copy()

    def delivered(self) -> None:
        """The data have been read."""
        self._borrowed = False

    def __str__(self) -> str:
        size = "object" if self.pickled else f"{self.data.size} x {self.datatype.numpy}"
        return f"{self.call} at {self.call.where} on rank {self.sender.rank}, {size}"


class Null(Pending):
    """A message from or to nobody: done at once."""

    __slots__ = ()

    def __init__(self, task: Task, call: SimulatedCall) -> None:
        super().__init__(task, call)
        self.done = True

    @property
    def envelope(self) -> tuple[int, int, int]:
        return MPI.PROC_NULL, MPI.ANY_TAG, 0


class Send(Pending):
    """A send; done when its buffer may be used again."""

    __slots__ = ("_buffer", "_dest", "_message", "_sent")

    def __init__(self, task: Task, call: SimulatedCall, message: Message, dest: int) -> None:
        super().__init__(task, call)
        self._message = message
        self._dest = dest  # in the run
        self._buffer: Flat | None = None
        self._sent = b""

    def watch(self) -> None:
        """Its owner goes on while it is under way: note what the buffer holds."""
        self._buffer = self._message.data
        self._sent = self._buffer.tobytes()

    def misuse(self) -> str:
        if self._buffer is None or self._buffer.tobytes() == self._sent:
            return ""
        return "changed the send buffer"

    def waits_for(self) -> tuple[int, ...]:
        return (self._dest,)

    def finish(self) -> Any:
        self._message.capture()


class Wanted(Pending):
    """What waits for a message of some source and tag."""

    __slots__ = ("_members", "source", "tag")

    def __init__(
        self, task: Task, call: SimulatedCall, source: int, tag: int, members: tuple[int, ...]
    ) -> None:
        super().__init__(task, call)
        self.source = source
        self.tag = tag
        self._members = members  # of the communicator: their ranks in the run

    def waits_for(self) -> tuple[int, ...]:
        if self.source == MPI.ANY_SOURCE:
            return tuple(rank for rank in self._members if rank != self.task.rank)
        return (self._members[self.source],)

    def accepts(self, message: Message) -> bool:
        """Whether `message` is one of those."""
        # What is cheap to compare comes first.
        return self.source in (message.source, MPI.ANY_SOURCE) and self.tag in (message.tag, MPI.ANY_TAG)


class ProbeWait(Wanted):
    """A probe; done when such a message is there."""

    __slots__ = ()


class Receive(Wanted):
    """A receive; done when it has its message."""

    __slots__ = ("_late", "_poisoned", "_saved", "_target", "message")

    def __init__(
        self,
        task: Task,
        call: SimulatedCall,
        source: int,
        tag: int,
        members: tuple[int, ...],
        target: Elements | None,
    ) -> None:
        super().__init__(task, call, source, tag, members)
        self.message: Message | None = None
        self._target = target  # None for an object
        self._late = False
        self._saved: Flat | None = None  # what the buffer held, where it is filled late
        self._poisoned = b""

    def delay(self) -> None:
        """Fill the buffer only when the owner completes the receive, and make it useless until then."""
        if self._target is not None:
            self._late = True
            self._saved = self._target.array.copy()
            poison(self._target.array)
            self._poisoned = self._target.array.tobytes()

    def misuse(self) -> str:
        if not self._late or self._target is None or self._target.array.tobytes() == self._poisoned:
            return ""
        return "wrote into the receive buffer"

    def take(self, message: Message) -> str | None:
        """`message` is for this receive; what is wrong with it, if anything."""
        self.message = message
        target = self._target
        if target is None:
            return None if message.pickled else "an array was sent, and an object is received"
        data = message.data
        octets = MPI.BYTE in (message.datatype, target.datatype)
        if message.pickled and target.array.dtype.itemsize > 1:
            return f"an object was sent, and {target.datatype.numpy} is received"
        if not octets and data.size and target.array.size and data.dtype != target.array.dtype:
            return f"{data.dtype} was sent, and {target.array.dtype} is received"
        if data.nbytes > target.array.nbytes:
            return f"{data.nbytes} bytes were sent, and the receive buffer holds {target.array.nbytes}"
        if not self._late:
            self._fill(target.array, message)
        return None

    def finish(self) -> Any:
        self.restore()
        if self.message is None:
            return None
        if self._target is None:
            return unpack(self.message.data)
        if self._late:
            self._fill(self._target.array, self.message)
        return None

    @property
    def envelope(self) -> tuple[int, int, int] | None:
        message = self.message
        return None if message is None else (message.source, message.tag, message.nbytes)

    def restore(self) -> None:
        """Undo :meth:`delay`."""
        if self._saved is not None and self._target is not None:
            self._target.array[:] = self._saved
            self._saved = None

    @staticmethod
    def _fill(target: Flat, message: Message) -> None:
        data = message.data
        if data.dtype == target.dtype:
            target[: data.size] = data
        else:
            target.view(np.uint8)[: data.nbytes] = data.view(np.uint8)
        message.delivered()


class Mailbox:
    """What has been sent to one rank of one communicator and what it has asked to receive."""

    __slots__ = ("_delayed", "_findings", "_nondeterminism", "_probes", "_receives", "_scheduler", "arrived")

    def __init__(self, scheduler: Scheduler, nondeterminism: Strategy, findings: list[Finding]) -> None:
        self._scheduler = scheduler
        self._nondeterminism = nondeterminism
        self._findings = findings
        self.arrived: list[Message] = []  # in the order of sending
        self._receives: list[Receive] = []  # in the order of posting
        self._probes: list[ProbeWait] = []
        self._delayed = False  # some of `arrived` are not there yet: receives and probes have not been asked

    def put(self, message: Message) -> None:
        """A message is sent."""
        self._scheduler.progress += 1
        if self._delayed:
            self.arrived.append(message)
            if not self._nondeterminism.taken():
                self.deliver_delayed()
            return
        for index, receive in enumerate(self._receives):
            if receive.accepts(message):
                if receive.source == MPI.ANY_SOURCE and self._nondeterminism.taken():
                    self._delay(message)
                    return
                del self._receives[index]
                self.deliver(receive, message)
                return
        self.arrived.append(message)
        self._show(message)

    def _delay(self, message: Message) -> None:
        """A wildcard receive may hear first what others send later. Once its owner asks, it is there."""
        self.arrived.append(message)
        self._delayed = True
        self._scheduler.delayed.append(self.deliver_delayed)

    def deliver_delayed(self) -> None:
        """Let all messages that were delayed arrive, in an order that keeps those of one sender in theirs."""
        if not self._delayed:
            return
        self._delayed = False
        for receive in list(self._receives):
            message = self._chosen(receive)
            if message is not None:
                self._receives.remove(receive)
                self.arrived.remove(message)
                self.deliver(receive, message)
        for message in list(self.arrived):
            self._show(message)

    def _show(self, message: Message) -> None:
        for probe in [probe for probe in self._probes if probe.accepts(message)]:
            self._probes.remove(probe)
            self._scheduler.complete(probe)

    def post(self, receive: Receive) -> None:
        """A receive is posted."""
        message = self.find(receive)
        if message is None:
            self._receives.append(receive)
            self._scheduler.progress += 1
        else:
            self.arrived.remove(message)
            self.deliver(receive, message)

    def withdraw(self, receive: Receive) -> bool:
        """Whether `receive` could still be cancelled."""
        self.deliver_delayed()
        if receive not in self._receives:
            return False
        self._receives.remove(receive)
        return True

    def watch(self, probe: ProbeWait) -> None:
        """`probe` waits for a message."""
        self._probes.append(probe)

    def find(self, wanted: Wanted) -> Message | None:
        """A message that `wanted` may be given next."""
        self.deliver_delayed()
        return self._chosen(wanted)

    def _chosen(self, wanted: Wanted) -> Message | None:
        if wanted.source == MPI.ANY_SOURCE and not self._nondeterminism.orderly:
            candidates = list(self._first_of_each_source(wanted))
            return self._nondeterminism.choose(candidates) if candidates else None
        return next((message for message in self.arrived if wanted.accepts(message)), None)

    def _first_of_each_source(self, wanted: Wanted) -> Iterator[Message]:
        seen = set()
        for message in self.arrived:
            if message.source not in seen and wanted.accepts(message):
                seen.add(message.source)
                yield message

    def deliver(self, receive: Receive, message: Message) -> None:
        """`receive` gets `message`."""
        wrong = receive.take(message)
        if wrong is not None:
            self._findings.append(
                Finding(
                    "mismatched message",
                    f"{wrong}\n  sent      {message}\n"
                    f"  received  {receive.call} at {receive.call.where} on rank {receive.task.rank}",
                )
            )
            sender = (message.sender.rank,)
            self._scheduler.cancel(receive.task, Blocked(str(receive.call), receive.call.where, sender))
        if message.sent is not None:
            self._scheduler.complete(message.sent)
        if wrong is None:
            if receive.source == MPI.ANY_SOURCE:
                matched = f"hears rank {message.sender.rank}"
                self._scheduler.matched.append(Matched(receive.task.rank, receive.call, matched))
            self._scheduler.complete(receive)


def poison(array: Flat) -> None:
    """Fill `array` with what no computation should use: NaN, or the largest pattern of bits but one."""
    if array.dtype.kind in "fc":
        array[...] = np.nan
    elif array.dtype.kind == "b":
        np.logical_not(array, out=array)
    else:
        array.view(np.uint8)[...] = 0x7F if array.dtype.kind == "i" else 0xFE
