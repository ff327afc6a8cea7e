"""What the ranks of one communicator share: their mailboxes, and the collectives in progress.

The n-th collective of one rank meets the n-th of every other; who arrives last computes for all. Ranks that meet in
different collectives, or with arguments that do not fit, are told so and called out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from adjointlab.worlds.simulated.calls import SimulatedCall
from adjointlab.worlds.simulated.collectives import Disagreement
from adjointlab.worlds.simulated.groups import Grid
from adjointlab.worlds.simulated.matching import Mailbox
from adjointlab.worlds.simulated.scheduler import Pending, Scheduler, Task
from adjointlab.worlds.simulated.schedules.strategy import Strategy
from adjointlab.worlds.world import Blocked, Cancelled, Finding

__all__ = ["Context", "Participation"]

AGREED = ("the root", "the operation", "the datatype", "the count or shape")


class Participation(Pending):
    """One rank's part in a collective; done when all have come."""

    __slots__ = ("_meeting", "entry")

    def __init__(self, task: Task, call: SimulatedCall, entry: Any, meeting: Meeting) -> None:
        super().__init__(task, call)
        self.entry = entry
        self._meeting = meeting

    @property
    def place(self) -> str:
        """The communicator, in words."""
        return self._meeting.place()

    def waits_for(self) -> tuple[int, ...]:
        meeting = self._meeting
        return tuple(
            member for member, part in zip(meeting.members, meeting.parts, strict=True) if part is None
        )

    def misuse(self) -> str:
        misuse: str = self.entry.misuse()
        return misuse

    def finish(self) -> Any:
        self._meeting.settle()
        return self.entry.finish()

    def __str__(self) -> str:
        return f"rank {self.task.rank} calls {self.call} at {self.call.where}"


class Meeting:
    """A collective in progress."""

    __slots__ = ("_due", "agreed", "by", "members", "missing", "parts", "place")

    def __init__(self, members: tuple[int, ...], place: Callable[[], str], first: Any, rank: int) -> None:
        self.members = members
        self.place = place
        self.parts: list[Participation | None] = [None] * len(members)
        self.missing = len(members)
        self._due: Callable[[], None] | None = None
        self.agreed = first.signature
        self.by = [rank] * len(first.signature)  # who said so first

    def join(self, rank: int, part: Participation) -> str | None:
        """`rank` has come; what it disagrees about, if anything, and `by` whom."""
        self.parts[rank] = part
        self.missing -= 1
        mine = part.entry.signature
        if mine == self.agreed:
            return None
        merged = list(self.agreed)
        for index, (theirs, own) in enumerate(zip(self.agreed, mine, strict=True)):
            if theirs is None:
                merged[index], self.by[index] = own, rank
            elif own is not None and own != theirs:
                self.by[0] = self.by[index]
                return f"{AGREED[index]} is {theirs} on one and {own} on the other"
        self.agreed = tuple(merged)
        return None

    def put_off(self, compute: Callable[[], None]) -> None:
        """`compute` when the first rank takes its result."""
        self._due = compute

    def settle(self) -> None:
        """Do now what was put off."""
        if self._due is not None:
            due, self._due = self._due, None
            due()


class Context:
    """The shared side of a communicator."""

    def __init__(
        self,
        members: tuple[int, ...],
        scheduler: Scheduler,
        nondeterminism: Strategy,
        findings: list[Finding],
        grid: Grid | None = None,
    ) -> None:
        self.members = members  # their ranks in the run, by their ranks here
        self.places = {member: rank for rank, member in enumerate(members)}
        self.grid = grid
        self.made: SimulatedCall | None = None  # by which line of user code
        self.mailboxes = [Mailbox(scheduler, nondeterminism, findings) for _ in members]
        self._scheduler = scheduler
        self._findings = findings
        self._nondeterminism = nondeterminism
        self._counts = [0] * len(members)  # of the collectives that each rank has called
        self._meetings: dict[int, Meeting] = {}

    @cached_property
    def name(self) -> str:
        """What a communicator is called in reports that its ranks have not named."""
        return "ranks " + " ".join(map(str, self.members))

    def __str__(self) -> str:
        made = "" if self.made is None else f", made at {self.made.where}"
        return f"the communicator of {self.name}{made}"

    def take_part(
        self, rank: int, task: Task, call: SimulatedCall, entry: Any, *, may_be_put_off: bool = False
    ) -> Participation:
        """`rank` calls a collective."""
        number = self._counts[rank]
        self._counts[rank] = number + 1
        self._scheduler.progress += 1
        meeting = self._meetings.get(number)
        if meeting is None:
            meeting = self._meetings[number] = Meeting(self.members, self.__str__, entry, rank)
        part = Participation(task, call, entry, meeting)
        first = next((other for other in meeting.parts if other is not None), part)
        different = meeting.join(rank, part)
        if first.entry.kind != entry.kind:
            self._clash(number, first, part, "they call different collectives")
        if different is not None:
            self._clash(number, meeting.parts[meeting.by[0]] or first, part, different)
        if meeting.missing == 0:
            del self._meetings[number]
            parts = [each for each in meeting.parts if each is not None]
            if may_be_put_off and self._nondeterminism.taken():
                meeting.put_off(lambda: self._compute(number, parts))
            else:
                self._compute(number, parts)
            for each in parts:
                self._scheduler.complete(each)
        return part

    def _compute(self, number: int, parts: list[Participation]) -> None:
        try:
            parts[0].entry.compute([part.entry for part in parts])
        except Disagreement as disagreement:
            one, other = disagreement.ranks
            self._clash(number, parts[one], parts[other], str(disagreement))

    def _clash(self, number: int, one: Participation, other: Participation, why: str) -> None:
        place = (
            "" if len(self.members) == len(self._scheduler.tasks) else f" of ranks {_listed(self.members)}"
        )
        self._findings.append(
            Finding("mismatched collective", f"in collective {number + 1}{place}, {why}\n  {one}\n  {other}")
        )
        for part, peer in ((one, other), (other, one)):
            self._scheduler.cancel(part.task, Blocked(str(part.call), part.call.where, (peer.task.rank,)))
        raise Cancelled


def _listed(ranks: tuple[int, ...]) -> str:
    return ", ".join(map(str, ranks))
