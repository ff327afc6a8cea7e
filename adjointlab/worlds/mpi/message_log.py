"""Logs of the messages that each rank sent and received on a communicator, and the search for the first mismatched pair.

MPI does not compare types or pickles: it moves bytes, and raises an error at most if there are too many. So each rank logs the type and
size of what it sends and of its receives; when the run has ended, the leader pairs them. Messages of one sender, tag and communicator do
not overtake each other (MPI 4.1, section 3.5), so the n-th message sent is the n-th received.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import CodeType
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from mpi4py import MPI

from adjointlab import MPI as ours
from adjointlab.typing import Buffer, Status
from adjointlab.worlds.applications import ApplicationMarks, crossed_message
from adjointlab.worlds.arguments import REFUSALS, elements
from adjointlab.worlds.call_sites import CallSite
from adjointlab.worlds.constants import as_source, as_tag
from adjointlab.worlds.object_room import ObjectRoom

__all__ = [
    "OBJECT",
    "MessageLog",
    "MessageLogSummary",
    "ReceiveEntry",
    "content_of",
    "message_mismatches",
    "set_envelope",
]

_LOGGED: Final = 1024
"""Number of messages to or from a rank that are compared on each communicator: the first ones of a run."""

Content: TypeAlias = tuple[object, int]
"""NumPy dtype (or one of the words below) and size in bytes."""

OBJECT: Final = "an object"
BYTES: Final = "bytes"
UNKNOWN: Final = "unknown"
"""Content that only the MPI library can interpret: not compared."""

SendEntry: TypeAlias = tuple[int, int, str, object, int, CodeType, int]
"""Destination, tag, call, content, code object and instruction. A plain tuple, because a named one takes ten times as long."""

ReceiveEntry: TypeAlias = list[Any]
"""As for a send, but with the source. Wildcards for source and tag are replaced when the message has been received."""


class MessageDescription(NamedTuple):
    """One side of a message as plain data."""

    name: str
    content: str
    itemsize: int
    nbytes: int
    where: str
    # Number of applications of the operator under test that had ended before; None for a wildcard receive.
    application: int | None


Described: TypeAlias = tuple[int, int, MessageDescription]
"""A message with its peer, a rank of the communicator, and its tag."""


class MessageLogSummary(NamedTuple):
    """One rank's messages on one communicator."""

    sent: tuple[Described, ...]
    received: tuple[Described, ...]  # up to the first whose source is unknown


def content_of(spec: Buffer) -> Content:
    """Datatype and size of a buffer."""
    if type(spec) is np.ndarray:
        return spec.dtype, spec.nbytes
    try:
        found = elements(spec, writable=False)
    except REFUSALS:
        return UNKNOWN, 0
    return (BYTES if found.datatype is ours.BYTE else found.array.dtype), found.array.nbytes


def set_envelope(entry: ReceiveEntry | None, status: Status | None) -> None:
    """Replace the wildcards of a receive by the source and tag in `status`."""
    if entry is not None and status is not None and (entry[0] < 0 or entry[1] < 0):
        entry[:2] = as_source(status.Get_source()), as_tag(status.Get_tag())


class MessageLog:
    """The messages that this rank sent and received on one communicator in one run."""

    def __init__(self) -> None:
        self._sent: list[SendEntry] = []
        self._received: list[ReceiveEntry] = []
        self._wildcards: set[int] = set()  # indices of wildcard receives in _received
        self._marks_sent, self._marks_received = ApplicationMarks(), ApplicationMarks()

    def mark(self, applications: int) -> None:
        """Record that so many applications of the operator under test have ended."""
        self._marks_sent.mark(len(self._sent), applications)
        self._marks_received.mark(len(self._received), applications)

    def send(
        self, dest: int, tag: int, name: str, content: Content, code: CodeType, instruction: int
    ) -> None:
        """Log a send."""
        if len(self._sent) < _LOGGED and dest != MPI.PROC_NULL:
            self._sent.append((dest, tag, name, *content, code, instruction))

    def receive(
        self, source: int, tag: int, name: str, content: Content, code: CodeType, instruction: int
    ) -> ReceiveEntry | None:
        """Log a receive; to be called in the order of posting. Returns its entry, whose source and tag are set on completion."""
        if len(self._received) >= _LOGGED or source == MPI.PROC_NULL:
            return None
        entry = [source, tag, name, *content, code, instruction]
        if source < 0:
            self._wildcards.add(len(self._received))
        self._received.append(entry)
        return entry

    def __bool__(self) -> bool:
        return bool(self._sent or self._received)

    def summary(self) -> MessageLogSummary:
        """Plain data for the leader."""
        described: dict[
            Any, MessageDescription
        ] = {}  # shares equal descriptions, so that each is pickled once
        received = []
        for index, entry in enumerate(self._received):
            of, its_tag, *rest = entry
            if of == MPI.PROC_NULL:  # cancelled
                continue
            if of < 0 or its_tag < 0:
                break
            ended = None if index in self._wildcards else self._marks_received.ended_before(index)
            received.append((of, its_tag, _described(rest, ended, described)))
        sent = [
            (dest, its_tag, _described(rest, self._marks_sent.ended_before(index), described))
            for index, (dest, its_tag, *rest) in enumerate(self._sent)
        ]
        return MessageLogSummary(tuple(sent), tuple(received))


def _described(
    rest: Sequence[Any], ended: int | None, known: dict[Any, MessageDescription]
) -> MessageDescription:
    name, content, nbytes, code, instruction = rest
    key = (name, content, nbytes, id(code), instruction, ended)
    if key not in known:
        itemsize, word = 1, str(content)
        if isinstance(content, np.dtype):
            itemsize = content.itemsize
            word = BYTES if content.kind in "SV" else content.name
        known[key] = MessageDescription(name, word, itemsize, nbytes, str(CallSite(code, instruction)), ended)
    return known[key]


def message_mismatches(
    logs: Mapping[int, MessageLogSummary], members: Sequence[int], *, crossed: bool
) -> Iterator[str]:
    """Describe the first message to each rank that does not match its receive; `logs` are by rank of the run.

    With `crossed`, a message received in another application of the operator than it was sent in is a mismatch too.
    """
    sent: dict[tuple[int, int, int], list[MessageDescription]] = {}
    for source, member in enumerate(members):
        for dest, tag, message in logs[member].sent if member in logs else ():
            sent.setdefault((source, dest, tag), []).append(message)
    for dest, member in enumerate(members):
        counts: dict[tuple[int, int], int] = {}
        for source, tag, receive in logs[member].received if member in logs else ():
            number = counts.get((source, tag), 0)
            counts[source, tag] = number + 1
            messages = sent.get((source, dest, tag), [])
            if number < len(messages) and (wrong := _difference(messages[number], receive, crossed)):
                message = messages[number]
                size = "object" if message.content == OBJECT else _size(message)
                yield (
                    f"{wrong}\n  sent      {message.name}(dest={dest}, tag={tag}) at {message.where} "
                    f"on rank {members[source]}, {size}\n"
                    f"  received  {receive.name}(source={source}, tag={tag}) at {receive.where} on rank {member}"
                )
                break  # later mismatches may be consequences of this one


def _size(message: MessageDescription) -> str:
    return f"{message.nbytes // message.itemsize} x {message.content}"


def _difference(sent: MessageDescription, received: MessageDescription, crossed: bool) -> str:
    """Message about how a send and its receive differ; empty if they match."""
    if crossed and (text := crossed_message(sent.application, received.application)):
        return text
    if UNKNOWN in (sent.content, received.content):
        return ""
    if received.content == OBJECT:
        if sent.content not in (OBJECT, BYTES):
            return "an array was sent, and an object is received"
        return ObjectRoom(received.nbytes).overflow(sent.nbytes)
    if sent.content == OBJECT:
        if received.itemsize > 1:
            return f"an object was sent, and {received.content} is received"
    elif (
        sent.content != received.content
        and BYTES not in (sent.content, received.content)
        and sent.nbytes
        and received.nbytes
    ):
        return f"{sent.content} was sent, and {received.content} is received"
    if sent.nbytes > received.nbytes:
        return f"{sent.nbytes} bytes were sent, and the receive buffer holds {received.nbytes}"
    return ""
