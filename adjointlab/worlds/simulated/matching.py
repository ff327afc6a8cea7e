"""Matching of point-to-point messages with receives, and the times at which their data are read and written.

Messages of one sender to one receiver on one communicator do not overtake each other [MPI41, section 3.5]. All other
nondeterminism is resolved by the run's strategy (:mod:`adjointlab.worlds.simulated.schedules.strategy`): whether a send
waits for its receive, when its buffer is read, when the receive buffer is filled, which sender a wildcard receive matches,
and how late a message for it arrives. So a message may be overtaken by a causally later one from another rank::

    rank 0   Send(to 2) ----------------------------.        delayed: rank 2's wildcard receive is posted,
             Send(to 1) ---.                        |        and yet does not match this message at once
    rank 1              Recv, Send(to 2) ------.    |
    rank 2   Recv(ANY_SOURCE)  <---------------'    |        matches the later message first
             Recv(ANY_SOURCE)  <--------------------'
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np

from adjointlab import MPI
from adjointlab.worlds.applications import crossed_message, of_another_application
from adjointlab.worlds.arguments import Elements, Flat
from adjointlab.worlds.call_sites import SimulatedCall
from adjointlab.worlds.object_room import ObjectRoom
from adjointlab.worlds.run import Blocked, Finding, FindingKind, Matched
from adjointlab.worlds.simulated.scheduler import Pending, Scheduler, Task
from adjointlab.worlds.simulated.schedules.strategy import Strategy

__all__ = [
    "Mailbox",
    "Message",
    "MessageWait",
    "Null",
    "PendingProbe",
    "Receive",
    "Send",
    "poison",
    "unpickle",
]


class Message:
    """A message that has been sent and not yet received."""

    __slots__ = (
        "_borrowed", "application", "call", "data", "datatype", "pickled", "sender", "sent", "source", "tag", "was_overlooked",
    )  # fmt: skip

    def __init__(
        self, sender: Task, source: int, tag: int, content: Elements, pickled: bool, call: SimulatedCall
    ) -> None:
        self.sender = sender
        self.application = sender.applications
        self.source = source  # the sender's rank in the communicator
        self.tag = tag
        self.datatype = content.datatype
        self.pickled = pickled  # True for a pickled object, False for a buffer
        self.call = call
        self.sent: Send | None = None  # the send, if it is done only when this message has been received
        self.data = content.array
        self.was_overlooked = False  # by a non-blocking probe
        self._borrowed = True  # `data` is the user's buffer, and not a copy of it

    @property
    def nbytes(self) -> int:
        """Size of the message."""
        return int(self.data.nbytes)

    def capture(self) -> None:
        """Copy the data, because the sender may reuse its buffer from now on."""
        if self._borrowed:
            self._borrowed = False
            self.data = self.data.copy()

    def mark_delivered(self) -> None:
        """Record that the data have been copied into the receive buffer, so that `capture` need not copy them."""
        self._borrowed = False

    def matched_by(self, wildcard: Pending) -> Matched:
        """Record of the match of this message with a receive or a probe of any source."""
        other = of_another_application(self.application, wildcard.application)
        what = f"receives from rank {self.sender.rank}{other}"
        return Matched(wildcard.task.rank, wildcard.call, what, self.sender.rank, crosses=bool(other))

    def __str__(self) -> str:
        size = "object" if self.pickled else f"{self.data.size} x {self.datatype.numpy}"
        return f"{self.call} at {self.call.where} on rank {self.sender.rank}, {size}"


class Null(Pending):
    """Send to or receive from `PROC_NULL`; done at once."""

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
        self._dest = dest  # rank in the run
        self._buffer: Flat | None = None
        self._sent = b""

    def watch(self) -> None:
        """Record the contents of the buffer, because user code continues before the send is complete."""
        self._buffer = self._message.data
        self._sent = self._buffer.tobytes()

    def misuse(self) -> str:
        if self._buffer is None or self._buffer.tobytes() == self._sent:
            return ""
        return "changed the send buffer"

    def waits_for(self) -> tuple[int, ...]:
        return (self._dest,)

    def finish(self) -> None:
        self._message.capture()


class MessageWait(Pending):
    """A wait for a message of some source and tag."""

    __slots__ = ("_members", "is_wildcard", "source", "tag")

    def __init__(
        self, task: Task, call: SimulatedCall, source: int, tag: int, members: tuple[int, ...]
    ) -> None:
        super().__init__(task, call)
        self.source = source
        self.is_wildcard = source == MPI.ANY_SOURCE
        self.tag = tag
        self._members = members  # ranks in the run of the communicator's members

    def waits_for(self) -> tuple[int, ...]:
        if self.is_wildcard:
            return tuple(rank for rank in self._members if rank != self.task.rank)
        return (self._members[self.source],)

    def accepts(self, message: Message) -> bool:
        """Return True if `message` matches."""
        # The rank is compared first, because the constant also equals mpi4py's, so that comparing with it is a Python call.
        return self.source in (message.source, MPI.ANY_SOURCE) and self.tag in (message.tag, MPI.ANY_TAG)


class PendingProbe(MessageWait):
    """A probe; done when a matching message has arrived."""

    __slots__ = ()


class Receive(MessageWait):
    """A receive; done when it has its message."""

    __slots__ = ("_late", "_poisoned", "_room", "_saved", "_target", "message")

    def __init__(
        self,
        task: Task,
        call: SimulatedCall,
        source: int,
        tag: int,
        members: tuple[int, ...],
        target: Elements | ObjectRoom,
    ) -> None:
        super().__init__(task, call, source, tag, members)
        self.message: Message | None = None
        self._room = target if isinstance(target, ObjectRoom) else None
        self._target = None if isinstance(target, ObjectRoom) else target  # None for an object
        self._late = False  # the buffer is filled by `finish`
        self._saved: Flat | None = None  # its original contents, if it is filled late
        self._poisoned = b""  # its contents until then

    def delay(self) -> None:
        """Fill the buffer only when user code completes the receive, and poison it until then."""
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
        """Receive `message`; return what is wrong with it, or None."""
        self.message = message
        target = self._target
        if target is None:
            assert self._room is not None
            # A message of bytes may be an object that user code has pickled once for several ranks.
            if not message.pickled and message.datatype is not MPI.BYTE:
                return "an array was sent, and an object is received"
            return self._room.overflow(message.nbytes) or None
        data = message.data
        is_bytes = MPI.BYTE in (message.datatype, target.datatype)
        if not is_bytes and data.size and target.array.size and data.dtype != target.array.dtype:
            sent = "an object" if message.pickled else data.dtype
            return f"{sent} was sent, and {target.array.dtype} is received"
        if data.nbytes > target.array.nbytes:
            return f"{data.nbytes} bytes were sent, and the receive buffer holds {target.array.nbytes}"
        if not self._late:
            self._fill(target.array, message)
        return None

    def finish(self) -> Any:
        # Restore the contents first: a message may be shorter than the buffer, and the rest must not stay poisoned.
        if self._saved is not None and self._target is not None:
            self._target.array[:] = self._saved
            self._saved = None
        if self.message is None:  # cancelled
            return None
        if self._target is None:
            return unpickle(self.message.data)
        if self._late:
            self._fill(self._target.array, self.message)
        return None

    @property
    def envelope(self) -> tuple[int, int, int] | None:
        message = self.message
        return None if message is None else (message.source, message.tag, message.nbytes)

    @staticmethod
    def _fill(target: Flat, message: Message) -> None:
        data = message.data
        if data.dtype == target.dtype:
            target[: data.size] = data
        else:
            target.view(np.uint8)[: data.nbytes] = data.view(np.uint8)
        message.mark_delivered()


class Mailbox:
    """Unreceived messages to one rank of one communicator, and its pending receives and probes.

    Invariant: unless messages are delayed, no message in `arrived` matches a receive in `_receives`, because both :meth:`put` and
    :meth:`post` look for a match first.
    """

    __slots__ = (
        "_delayed",
        "_findings",
        "_probes",
        "_receives",
        "_scheduler",
        "_strategy",
        "arrived",
        "matched",
    )

    def __init__(self, scheduler: Scheduler, strategy: Strategy, findings: list[Finding]) -> None:
        self._scheduler = scheduler
        self._strategy = strategy
        self._findings = findings
        self.arrived: list[Message] = []  # in the order of sending
        self.matched: list[Message] = []  # by Mprobe or Improbe; other receives cannot match these
        self._receives: list[Receive] = []  # in the order of posting, which is that of matching
        self._probes: list[PendingProbe] = []
        self._delayed = False  # some of `arrived` have not been matched with receives and probes yet

    def put(self, message: Message) -> None:
        """Add `message`, which was sent to this rank."""
        self._scheduler.note_event()
        if self._delayed:
            # After the delayed ones, because some may be from the same sender.
            self.arrived.append(message)
            if not self._strategy.deviates():
                self.deliver_delayed()
            return
        for index, receive in enumerate(self._receives):
            if receive.accepts(message):
                # Delay matters only for a wildcard: a receive from one source gets this message however late it arrives.
                if receive.is_wildcard and self._strategy.deviates():
                    self._delay(message)
                    return
                del self._receives[index]
                self.deliver(receive, message)
                return
        self.arrived.append(message)
        self._complete_probes(message)

    def has_shown(self, probe: PendingProbe) -> bool:
        """Return True if an earlier probe has found or overlooked a message that `probe` accepts: then `probe` must find one."""
        return any(message.was_overlooked and probe.accepts(message) for message in self.arrived)

    def match(self, message: Message) -> None:
        """Reserve a message that has arrived for the receive of the object that a probe has returned."""
        self.arrived.remove(message)
        self.matched.append(message)

    def _delay(self, message: Message) -> None:
        """Hold `message` back until its receiver looks for one, or until no rank can run without it."""
        self.arrived.append(message)
        self._delayed = True
        self._scheduler.delayed.append(self.deliver_delayed)

    def deliver_delayed(self) -> None:
        """Deliver all delayed messages, preserving the order of each sender."""
        if not self._delayed:
            return
        self._delayed = False
        for receive in list(self._receives):
            message = self._matching(receive)
            if message is not None:
                self._receives.remove(receive)
                self.arrived.remove(message)
                self.deliver(receive, message)
        for message in list(self.arrived):
            self._complete_probes(message)

    def _complete_probes(self, message: Message) -> None:
        for probe in [probe for probe in self._probes if probe.accepts(message)]:
            self._probes.remove(probe)
            self._scheduler.complete(probe)

    def post(self, receive: Receive) -> None:
        """Begin `receive`."""
        message = self.find(receive)
        if message is None:
            self._receives.append(receive)
            self._scheduler.note_event()
        else:
            self.arrived.remove(message)
            self.deliver(receive, message)

    def withdraw(self, receive: Receive) -> bool:
        """Cancel `receive`; return False if it has its message, or does not belong to this mailbox."""
        self.deliver_delayed()
        if receive not in self._receives:
            return False
        self._receives.remove(receive)
        return True

    def watch(self, probe: PendingProbe) -> None:
        """Complete `probe` as soon as a message arrives that it accepts."""
        self._probes.append(probe)

    def find(self, wait: MessageWait) -> Message | None:
        """Return a message that may match `wait` next."""
        self.deliver_delayed()
        return self._matching(wait)

    def _matching(self, wait: MessageWait) -> Message | None:
        if wait.is_wildcard and not self._strategy.orderly:
            candidates = list(self._first_of_each_source(wait))
            return self._strategy.choose(candidates) if candidates else None
        return next((message for message in self.arrived if wait.accepts(message)), None)

    def _first_of_each_source(self, wait: MessageWait) -> Iterator[Message]:
        sources = set()
        for message in self.arrived:
            if message.source not in sources and wait.accepts(message):
                sources.add(message.source)
                yield message

    def deliver(self, receive: Receive, message: Message) -> None:
        """Complete `receive` with `message`, and the send if it waits for that; a mismatch cancels the receiver."""
        wrong = receive.take(message)
        # Wildcards are exempt: their matches depend on the schedule, and whether the result depends on it is checked separately.
        if not (self._scheduler.crossed or receive.is_wildcard) and (
            crossed := crossed_message(message.application, receive.application)
        ):
            self._scheduler.crossed.append(_mismatch(crossed, message, receive))
        if wrong is not None:
            self._findings.append(_mismatch(wrong, message, receive))
            sender = (message.sender.rank,)
            self._scheduler.cancel(receive.task, Blocked(str(receive.call), receive.call.where, sender))
        # Even on a mismatch: the message is received, and otherwise the sender would seem to be part of a deadlock.
        if message.sent is not None:
            self._scheduler.complete(message.sent)
            message.sent = None  # the send refers to the message: breaks a reference cycle
        if wrong is None:
            if receive.is_wildcard:
                self._scheduler.matched.append(message.matched_by(receive))
            self._scheduler.complete(receive)


def _mismatch(reason: str, message: Message, receive: Receive) -> Finding:
    return Finding(
        FindingKind.MISMATCHED_MESSAGE,
        f"{reason}\n  sent      {message}\n"
        f"  received  {receive.call} at {receive.call.where} on rank {receive.task.rank}",
    )


def poison(array: Flat) -> None:
    """Fill `array` with values that show if they are read: NaN, or for integers large ones with a conspicuous pattern.

    (Booleans have no such value, so they are negated.)
    """
    if array.dtype.kind == "f":
        array[...] = np.nan
    elif array.dtype.kind == "c":
        # A real NaN would have the imaginary part zero, which is often the right value.
        array[...] = complex(np.nan, np.nan)
    elif array.dtype.kind == "b":
        np.logical_not(array, out=array)
    else:
        array.view(np.uint8)[...] = 0x7F if array.dtype.kind == "i" else 0xFE


def unpickle(payload: Any) -> Any:
    """Object that was pickled by another rank, hence in this process."""
    return pickle.loads(payload)  # noqa: S301
