"""Call logs of collectives, one for each rank and communicator, and the statistics of a run.

During a run each rank keeps a log, which must be cheap. When the run has ended, the rank describes its latest calls in
plain data and sends them to the leader, which finds the first call that does not match: by the kind of collective, its root,
operation, datatype and number of elements, as far as MPI requires them to be equal on all ranks.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from types import CodeType
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from adjointlab import MPI as ours
from adjointlab.quantities import counted
from adjointlab.typing import Buffer
from adjointlab.worlds.applications import ApplicationMarks, crossed_collective
from adjointlab.worlds.arguments import REFUSALS, blocks
from adjointlab.worlds.arguments import elements as elements_of
from adjointlab.worlds.backward import BackwardPass
from adjointlab.worlds.call_sites import CallSite, came_back
from adjointlab.worlds.constants import is_in_place, op_name
from adjointlab.worlds.mpi.calls import by_name
from adjointlab.worlds.mpi.collectives import collective_kind
from adjointlab.worlds.mpi.message_log import MessageLogSummary
from adjointlab.worlds.parts import part_text

__all__ = [
    "DESCRIBED",
    "KEPT",
    "CallEntry",
    "CallLog",
    "CallLogSummary",
    "CallSignature",
    "CommKey",
    "Describer",
    "RunStatistics",
    "SignatureReader",
    "block_disagreement",
    "first_mismatch",
]

DESCRIBED: Final = 256
"""Number of latest calls of a log that are sent to the leader; of the earlier ones, only a checksum of their names."""

KEPT: Final = 8 * DESCRIBED
"""Length at which a log is cut to the latest calls: a run that trains a network is not bounded."""

CommKey: TypeAlias = tuple[tuple[int, ...], int]
"""Identifies a communicator in the same way on all its members: its ranks, and its serial number among communicators of these ranks."""


Counts: TypeAlias = tuple[int, ...] | int | None
"""Number of elements for each rank, or one number for every rank; None if the call has none, or if it is unknown."""


class CallSignature(NamedTuple):
    """A collective call as it is logged. Nothing is computed at this point, because most entries are never reported."""

    name: str
    root: int | None
    op: object
    dtype: object
    elements: Counts  # must be equal on all ranks: one number, or one for each rank
    code: CodeType
    instruction: int
    sent: Counts = None  # only for collectives with separate counts for each rank
    received: Counts = None


CallEntry: TypeAlias = (
    tuple[str, int | None, object, object, Counts, CodeType, int]
    | tuple[str, int | None, object, object, Counts, CodeType, int, Counts, Counts]
)
"""The fields of a signature. Calls append plain tuples, because making a named tuple takes ten times as long."""


class CallDescription(NamedTuple):
    """A collective call as plain data; a field is `None` if MPI does not require it to be equal, or if it is unknown."""

    name: str
    root: int | None
    op: str | None
    dtype: str | None
    elements: Counts
    where: str  # "file:line"
    is_lab: bool  # made by the lab, not by user code
    sent: Counts = None
    received: Counts = None
    came_back: str = ""  # for a call of the lab's: verb phrase for what the rank has done before
    application: int = 0  # number of applications of the operator under test that had ended before

    def __str__(self) -> str:
        if self.name.endswith(")"):
            return self.name  # calls that make communicators are logged with their arguments
        shown = [
            None if self.root is None else f"root={self.root}",
            self.op,
            None if self.elements is None else f"{self.elements} of {self.dtype}",
        ]
        return f"{self.name}({', '.join(filter(None, shown))})"

    def by_rank(self, rank: int) -> str:
        """Clause of a report: `rank` calls this collective."""
        if self.is_lab:
            # A line in the lab's own code would not help the user.
            return f"rank {rank} has {self.came_back or came_back(None)}"
        return f"rank {rank} calls {self} at {self.where}"

    def difference(self, other: CallDescription) -> str:
        """Message about the first difference that makes the two calls mismatched; empty if they match."""
        if self.name != other.name or self.is_lab != other.is_lab:
            return "they call different collectives"
        for what, one, another in (
            ("roots", self.root, other.root),
            ("operations", self.op, other.op),
            ("datatypes", self.dtype, other.dtype),
            ("numbers of elements", self.elements, other.elements),
        ):
            if one is not None and another is not None and one != another:
                return f"the {what} differ: {one} and {another}"
        return crossed_collective(self.application, other.application)


class Describer:
    """Turns logged calls into plain data; caches the call sites that it has looked up."""

    def __init__(self) -> None:
        # Keyed by identity, because functions with the same text in different files have equal code objects. The entry keeps
        # the code object alive, so that its id is not reused.
        self._sites: dict[tuple[int, int], tuple[CodeType, str, bool]] = {}

    def __call__(self, entry: CallEntry) -> CallDescription:
        call = CallSignature(*entry)
        key = (id(call.code), call.instruction)
        site = self._sites.get(key)
        if site is None:
            call_site = CallSite(call.code, call.instruction)
            site = self._sites[key] = (call.code, str(call_site), call_site.is_lab)
        return CallDescription(
            call.name,
            None if call.root is None else int(call.root),
            None if call.op is None else _operation(call.op),
            None if call.dtype is None else str(call.dtype),
            call.elements,
            *site[1:],
            call.sent,
            call.received,
        )


class CallLogSummary(NamedTuple):
    """One rank's log on one communicator: number of calls, checksum of the earlier ones, the latest ones."""

    calls: int
    checksum: int
    latest: tuple[CallDescription, ...]

    def call(self, index: int) -> CallDescription | None:
        """The call of that index, if it is one of the latest."""
        index -= self.calls - len(self.latest)
        return self.latest[index] if 0 <= index < len(self.latest) else None


class CallLog(list[CallEntry]):
    """The latest collectives that this rank called on one communicator in one run."""

    def __init__(self) -> None:
        super().__init__()
        self._marks = ApplicationMarks()
        self._forgotten = 0  # calls
        self._checksum = 0  # of their names

    @property
    def calls(self) -> int:
        """The number of calls, including those that have been dropped."""
        return self._forgotten + len(self)

    def append(self, entry: CallEntry) -> None:
        """Log a call."""
        super().append(entry)
        if len(self) >= KEPT:
            self._checksum = self._checksum_of_earlier()
            self._forgotten += len(self) - DESCRIBED
            del self[:-DESCRIBED]

    def mark(self, applications: int) -> None:
        """Record that so many applications of the operator under test have ended."""
        self._marks.mark(self.calls, applications)

    def _checksum_of_earlier(self) -> int:
        """Checksum of the names of all calls before the described ones; it does not depend on when the log was cut."""
        return zlib.crc32("".join(f"{entry[0]}," for entry in self[:-DESCRIBED]).encode(), self._checksum)

    def summary(
        self, describe: Describer, returns: Sequence[tuple[int, Callable[..., object]]] = ()
    ) -> CallLogSummary:
        """Plain data for the leader; `returns` has the functions of user code that have returned, each with the number of calls before."""
        first = max(0, self.calls - DESCRIBED)
        latest = [
            call._replace(
                came_back=_came_back_before(first + index, returns) if call.is_lab else "",
                application=self._marks.ended_before(first + index),
            )
            for index, call in enumerate(map(describe, self[-DESCRIBED:]))
        ]
        return CallLogSummary(self.calls, self._checksum_of_earlier(), tuple(latest))


def _came_back_before(index: int, returns: Sequence[tuple[int, Callable[..., object]]]) -> str:
    number = bisect_right(returns, index, key=lambda entry: entry[0])
    return came_back(returns[number - 1][1] if number else None)


@dataclass(frozen=True)
class RunStatistics:
    """Statistics of one rank in one run, for the leader."""

    sent: tuple[int, ...]  # messages, by rank of destination
    received: int
    logs: dict[CommKey, CallLogSummary]
    messages: dict[CommKey, MessageLogSummary]
    open_requests: tuple[str, ...]  # never completed
    misuses: tuple[str, ...]  # of the buffers of pending operations
    refused: tuple[str, ...]  # reasons for refusing calls that would bypass the run
    has_abandoned: bool  # a wait was abandoned, so a request may still be active
    was_polling: bool  # the rank was blocked in a loop of polls
    was_late: bool  # the rank was still at work when another one's patience ran out
    saw_mpi_error: bool  # the rank's exception is due to an error of MPI
    backward: BackwardPass | None = None  # the rank's latest


class Mismatch(NamedTuple):
    """The first call that does not match: its position in the logs, two ranks that made it, and the reason."""

    position: int
    rank: int
    other: int
    reason: str


def first_mismatch(logs: Mapping[int, CallLogSummary]) -> Mismatch | None:
    """Find the first mismatch in the logs of a communicator's members, which are given by rank."""
    (first, reference), *others = logs.items()
    found = []
    for rank, log in others:
        # Calls that only one of the two has made may still be matched: that is left to the diagnosis.
        for index in range(min(reference.calls, log.calls)):
            one, other = reference.call(index), log.call(index)
            if one is not None and other is not None and (reason := one.difference(other)):
                found.append(Mismatch(index, first, rank, reason))
                break
        else:
            # The checksums are comparable only if they cover the same number of calls.
            if reference.calls == log.calls and reference.checksum != log.checksum:
                reason = f"or later, more than {DESCRIBED} calls ago, they call different collectives"
                found.append(Mismatch(0, first, rank, reason))
    if not found:
        found = list(_mismatched_blocks(logs))
    return min(found, default=None)


def _mismatched_blocks(logs: Mapping[int, CallLogSummary]) -> Iterator[Mismatch]:
    """The first call in which a rank sends another one a different number of elements than it expects."""
    first = max(log.calls - len(log.latest) for log in logs.values())
    agreeing: set[object] = set()  # a cache, because the same calls are repeated often
    for index in range(first, max(log.calls for log in logs.values())):
        # If a rank has failed in a call, others may not have reached it.
        calls = [log.call(index) for log in logs.values()]
        key = tuple(call and (call.sent, call.received) for call in calls)
        if key in agreeing:
            continue
        if disagreement := block_disagreement(calls):
            sender, receiver, sent, expected = disagreement
            ranks = list(logs)
            reason = part_text(ranks[sender], ranks[receiver], counted(sent, "element"), str(expected))
            yield Mismatch(index, ranks[sender], ranks[receiver], reason)
            return
        agreeing.add(key)


def block_disagreement(calls: Sequence[CallDescription | None]) -> tuple[int, int, int, int] | None:
    """A sender, a receiver, and the different numbers of elements that the one sends and the other expects; None if there are none.

    `calls` are by rank; None for a rank that has not called.
    """
    made = {rank: call for rank, call in enumerate(calls) if call is not None}
    if all(call.received is None for call in made.values()) or all(
        call.sent is None for call in made.values()
    ):
        return None
    # Sends to self come last, because a report with two ranks says more.
    for sender, receiver in sorted(product(made, made), key=lambda pair: pair[0] == pair[1]):
        sent = _count_for(made[sender].sent, receiver)
        expected = _count_for(made[receiver].received, sender)
        if sent is not None and expected is not None and sent != expected:
            return sender, receiver, sent, expected
    return None


def _count_for(counts: Counts, rank: int) -> int | None:
    return counts[rank] if isinstance(counts, tuple) else counts


class SignatureReader:
    """Makes log entries for calls of `name` by `rank` of `size` ranks.

    The commonest form of a call has only NumPy arrays as arguments: `arrays` of them (-1 if this collective has no such form),
    `counted_array` is the index of the one whose elements count, and root and operation are the defaults. A
    caller that recognizes this form makes the entry itself.
    """

    def __init__(self, name: str, rank: int, size: int) -> None:
        self.kind = kind = collective_kind(name)
        self.name = name
        self.rank, self.size = rank, size
        self.default_root = 0 if "root" in kind.parameters else None
        self.default_op = ours.SUM if "op" in kind.parameters else None
        self.arrays, self.counted_array = -1, 0
        if kind.counted is not None:
            buffers = [parameter for parameter in kind.parameters if parameter.endswith("buf")]
            self.arrays, self.counted_array = len(buffers), buffers.index(kind.counted.buffer)

    def __call__(
        self, arguments: Sequence[Any], keywords: Mapping[str, Any], code: CodeType, instruction: int
    ) -> CallEntry:
        """Entry of the log for a call with these arguments at this place in user code."""
        given = by_name(self.kind.parameters, arguments, keywords)
        root, op = given.get("root", self.default_root), given.get("op", self.default_op)
        dtype: object = None
        count: Counts = None
        if (rule := self.kind.counted) is not None:
            dtype, count = _type_and_count(given.get(rule.buffer))
            if count is None and rule.in_place is not None:
                number = self.size if rule.is_per_rank else 1
                dtype, count = _type_and_count(given.get(rule.in_place), number)
                if isinstance(count, int) and rule.is_per_rank:
                    count //= self.size
        if (counts := given.get("recvcounts")) is not None:
            count = tuple(map(int, counts))
        if self.kind.has_blocks:
            dtype, sent, received = self._blocks(given)
            return self.name, root, op, dtype, count, code, instruction, sent, received
        return self.name, root, op, dtype, count, code, instruction

    def _blocks(self, given: Mapping[str, Any]) -> tuple[object, Counts, Counts]:
        """Datatype and counts of a collective that has separate counts for each rank."""
        kind, is_root = self.kind, given.get("root", 0) == self.rank
        dtype, sent = self._counts(given.get("sendbuf"), kind.sends_blocks)
        of_received, received = self._counts(given.get("recvbuf"), kind.receives_blocks)
        # Arguments that are significant only at the root may be anything elsewhere.
        if kind.only_root_sends and not is_root:
            dtype, sent = None, None
        if kind.only_root_receives and not is_root:
            of_received, received = None, None
        return (of_received if dtype is None else dtype), sent, received

    def _counts(self, spec: Buffer, has_blocks: bool) -> tuple[object, Counts]:
        if not has_blocks:
            return _type_and_count(spec)
        if is_in_place(spec):
            return None, None
        try:
            found = blocks(spec, self.size, writable=False)
        except REFUSALS:
            return None, None
        return found.array.dtype, tuple(found.counts)


def _type_and_count(spec: Buffer, blocks: int = 1) -> tuple[object, int | None]:
    """The datatype and number of elements of a buffer of so many blocks, if they can be determined without MPI."""
    if type(spec) is np.ndarray:
        return spec.dtype, spec.size
    if is_in_place(spec):
        return None, None
    try:
        found = elements_of(spec, writable=False, blocks=blocks)
    except REFUSALS:
        return None, None
    return found.array.dtype, found.array.size


def _operation(value: object) -> str:
    try:
        return op_name(value)
    except TypeError:
        return str(value)
