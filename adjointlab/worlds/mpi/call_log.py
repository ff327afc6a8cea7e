"""The collectives that each rank called on a communicator, in order, and what a run comes to in numbers.

Each rank keeps a log while a run goes on, which has to be cheap. When the run has ended, it describes its latest calls in
plain data and sends them to the leader, which finds the first call that does not match: the kind of collective, its root,
operation, datatype and number of elements, as far as MPI demands that they are equal on all ranks.
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
"""So many of a log's latest calls are sent to the leader; of those before, a checksum of their names."""

KEPT: Final = 8 * DESCRIBED
"""A log of so many calls is cut to the latest that may be described: a run that trains a network never ends by itself."""

CommKey: TypeAlias = tuple[tuple[int, ...], int]
"""A communicator, named alike by all its members: its ranks, and which one of these ranks it is."""


Counts: TypeAlias = tuple[int, ...] | int | None
"""Elements for each rank, or for whichever rank there is; None where there are none, or where they are not known."""


class CallSignature(NamedTuple):
    """A collective call as it is logged, from what is at hand: nothing is computed that no report may need."""

    name: str
    root: int | None
    op: object
    dtype: object
    elements: Counts  # that all ranks must have; of each rank, where the call has counts that must be equal
    code: CodeType
    instruction: int
    sent: Counts = None  # of the collectives with counts of their own for each rank
    received: Counts = None


CallEntry: TypeAlias = (
    tuple[str, int | None, object, object, Counts, CodeType, int]
    | tuple[str, int | None, object, object, Counts, CodeType, int, Counts, Counts]
)
"""A signature's fields: what calls append, because making a named tuple takes ten times as long as a bare one."""


class CallDescription(NamedTuple):
    """A collective call as plain data; `None` where MPI does not demand equality, or a value is not known."""

    name: str
    root: int | None
    op: str | None
    dtype: str | None
    elements: Counts
    where: str  # "file:line"
    is_lab: bool  # the lab makes it, not user code
    sent: Counts = None
    received: Counts = None
    came_back: str = ""  # what the rank has done before a call of the lab's
    application: int = 0  # of the operator under test, so many of which had ended before

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
        """The call in a sentence of a report."""
        if self.is_lab:
            # A line of the lab's own says nothing about the user's code.
            return f"rank {rank} has {self.came_back or came_back(None)}"
        return f"rank {rank} calls {self} at {self.where}"

    def difference(self, other: CallDescription) -> str:
        """Say in what the two do not match; empty where they may."""
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
    """Turns logged calls into plain data; remembers the call sites that it has looked up."""

    def __init__(self) -> None:
        # By identity, for two functions of the same text in different files have equal code objects. The code object is
        # kept with the entry, so that no other one takes over its identity.
        self._sites: dict[tuple[int, int], tuple[CodeType, str, bool]] = {}

    def __call__(self, entry: CallEntry) -> CallDescription:
        call = CallSignature(*entry)
        key = (id(call.code), call.instruction)
        site = self._sites.get(key)
        if site is None:
            noted = CallSite(call.code, call.instruction)
            site = self._sites[key] = (call.code, str(noted), noted.is_lab)
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
        """The number of calls, those too that are not kept."""
        return self._forgotten + len(self)

    def append(self, entry: CallEntry) -> None:
        """Log a call."""
        super().append(entry)
        if len(self) >= KEPT:
            self._checksum = self._checksum_of_earlier()
            self._forgotten += len(self) - DESCRIBED
            del self[:-DESCRIBED]

    def mark(self, applications: int) -> None:
        """Note that so many applications of the operator under test have ended."""
        self._marks.mark(self.calls, applications)

    def _checksum_of_earlier(self) -> int:
        """A checksum of the names of all calls but those that are described; the same wherever the log has been cut before."""
        return zlib.crc32("".join(f"{entry[0]}," for entry in self[:-DESCRIBED]).encode(), self._checksum)

    def summary(
        self, describe: Describer, returns: Sequence[tuple[int, Callable[..., object]]] = ()
    ) -> CallLogSummary:
        """Plain data for the leader; `returns` are the functions of user code that have returned, by the calls before."""
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
    """Counts of one rank in one run, for the leader."""

    sent: tuple[int, ...]  # messages, by rank of destination
    received: int
    logs: dict[CommKey, CallLogSummary]
    messages: dict[CommKey, MessageLogSummary]
    open_requests: tuple[str, ...]  # never completed
    misuses: tuple[str, ...]  # of the buffers of pending operations
    refused: tuple[str, ...]  # reasons for which user code was not let past the run
    has_abandoned: bool  # a wait was given up, so a request may still be active
    was_polling: bool  # the rank was blocked in a loop of polls
    was_late: bool  # the rank was still at work when another one lost its patience
    saw_mpi_error: bool  # what the rank raised comes from an error of MPI
    backward: BackwardPass | None = None  # the latest that the rank has begun


class Mismatch(NamedTuple):
    """The first call that does not match: its position in the logs, two ranks that made it, and why it does not."""

    position: int
    rank: int
    other: int
    reason: str


def first_mismatch(logs: Mapping[int, CallLogSummary]) -> Mismatch | None:
    """Compare the logs of a communicator's members, by rank."""
    (first, reference), *others = logs.items()
    found = []
    for rank, log in others:
        # What only one of the two has called yet may still be answered: that is for the diagnosis to judge.
        for index in range(min(reference.calls, log.calls)):
            one, other = reference.call(index), log.call(index)
            if one is not None and other is not None and (reason := one.difference(other)):
                found.append(Mismatch(index, first, rank, reason))
                break
        else:
            # The earlier calls can be compared only where the same number of them was summed up.
            if reference.calls == log.calls and reference.checksum != log.checksum:
                reason = f"or later, more than {DESCRIBED} calls ago, they call different collectives"
                found.append(Mismatch(0, first, rank, reason))
    if not found:
        found = list(_mismatched_blocks(logs))
    return min(found, default=None)


def _mismatched_blocks(logs: Mapping[int, CallLogSummary]) -> Iterator[Mismatch]:
    """The first call in which a rank sends another one a different number of elements than that expects."""
    first = max(log.calls - len(log.latest) for log in logs.values())
    agreeing: set[object] = set()  # the same calls are made again and again
    for index in range(first, max(log.calls for log in logs.values())):
        # Where a rank has failed in a call, others may not have come to it.
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
    """Two ranks the first of which sends the second another number of elements than that expects, and the two numbers.

    `calls` are by rank; None for a rank that has not called.
    """
    made = {rank: call for rank, call in enumerate(calls) if call is not None}
    if all(call.received is None for call in made.values()) or all(
        call.sent is None for call in made.values()
    ):
        return None
    # What a rank sends itself comes last, because two calls say more than one.
    for sender, receiver in sorted(product(made, made), key=lambda pair: pair[0] == pair[1]):
        sent = _count_for(made[sender].sent, receiver)
        expected = _count_for(made[receiver].received, sender)
        if sent is not None and expected is not None and sent != expected:
            return sender, receiver, sent, expected
    return None


def _count_for(counts: Counts, rank: int) -> int | None:
    return counts[rank] if isinstance(counts, tuple) else counts


class SignatureReader:
    """Reads what is logged of a call of `name` by `rank` of `size` ranks.

    The commonest form of a call has NumPy arrays and no other argument. It has `arrays` of them (-1: this collective has no
    such form), `counted_array` is the index of the one whose elements count, and root and operation are the defaults. A
    caller that finds this form logs it without asking the reader.
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
        """Datatype and counts of a collective that has counts of their own for each rank."""
        kind, is_root = self.kind, given.get("root", 0) == self.rank
        dtype, sent = self._counts(given.get("sendbuf"), kind.sends_blocks)
        of_received, received = self._counts(given.get("recvbuf"), kind.receives_blocks)
        # What only the root has counts there alone, and may be anything elsewhere.
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
    """The datatype and number of elements of a buffer of so many blocks, where they are known without MPI."""
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
