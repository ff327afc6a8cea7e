"""Collectives of the simulated world: the matching of the ranks' calls.

Collectives have no tags: the n-th collective that one rank calls on a communicator matches the n-th of every other rank
(MPI 4.1, section 6.1). So each rank's calls are counted, and a pending collective is found by its number::

    rank 0   Bcast  Reduce .           pending: 1 (rank 1 is missing), 2 (ranks 0 and 1 are)
    rank 1   Bcast  .      .
    rank 2   Bcast  Reduce Barrier     a non-blocking form: rank 2 need not have waited for number 1

Each call brings a :class:`Contribution`: the arguments of its rank, and the computation. The rank that arrives last computes
for all. If two ranks call different collectives, or with incompatible arguments, that is reported at once, and both are
cancelled. The collectives themselves are in :mod:`~adjointlab.worlds.simulated.object_collectives` and
:mod:`~adjointlab.worlds.simulated.buffer_collectives`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from adjointlab import MPI
from adjointlab.typing import Communicator
from adjointlab.worlds.applications import crossed_collective
from adjointlab.worlds.call_sites import SimulatedCall, came_back
from adjointlab.worlds.constants import c_int
from adjointlab.worlds.divergence import Divergence, Divergences, Place
from adjointlab.worlds.parts import of_ranks, part_text
from adjointlab.worlds.run import Blocked, Finding, FindingKind, PeerFailed
from adjointlab.worlds.simulated.matching import Mailbox
from adjointlab.worlds.simulated.scheduler import Pending, Scheduler, Task
from adjointlab.worlds.simulated.schedules.strategy import Strategy
from adjointlab.worlds.simulated.topologies import Topology
from adjointlab.worlds.world import Cancelled

__all__ = [
    "CollectiveCall",
    "Contribution",
    "Disagreement",
    "SharedCommunicator",
    "Signature",
    "UnequalParts",
    "valid_root",
]


class Disagreement(Exception):
    """The arguments of two ranks are incompatible."""

    def __init__(self, one: int, other: int, reason: str) -> None:
        super().__init__(reason)
        self.ranks = one, other  # of the communicator

    def text(self, members: Sequence[int]) -> str:
        """The reason, in terms of the run's ranks `members`."""
        return str(self)


class UnequalParts(Disagreement):
    """A rank sends another one a block of a different size or type than it expects."""

    def __init__(self, sender: int, receiver: int, sent: str, expected: str) -> None:
        super().__init__(sender, receiver, part_text(sender, receiver, sent, expected))
        self._parts = sent, expected

    def text(self, members: Sequence[int]) -> str:
        sender, receiver = (members[rank] for rank in self.ranks)
        return part_text(sender, receiver, *self._parts)


class Signature(NamedTuple):
    """Arguments that all ranks must agree on; None if the argument of a rank is not significant."""

    root: int | None = None
    op: str | None = None
    datatype: str | None = None
    shape: object = None  # a count, counts, or the arguments of a new communicator


class Contribution:
    """Arguments of one rank, and the computation that the last rank to arrive performs for all."""

    __slots__ = ("compute", "group", "kind", "root", "signature")

    def __init__(self, kind: str, compute: Callable[[Sequence[Any]], None], signature: Signature) -> None:
        self.kind = kind  # equal for calls that match
        self.compute = compute  # takes the contributions of all ranks
        self.root = signature.root or 0
        self.signature = signature
        self.group: list[int] | None = None  # group argument, of calls that make a communicator from one

    def counts_text(self) -> str:
        """Describe the counts of a call with a block for each rank; empty for other calls."""
        return ""

    # For non-blocking collectives, whose buffers belong to the run until `finish`

    def watch(self) -> None:
        """Record the contents of the send buffer, so that :meth:`misuse` detects changes."""

    def hold(self) -> None:
        """Copy the send buffer now."""

    def delay(self) -> None:
        """Write the result to a temporary buffer, and poison the receive buffer until :meth:`finish`."""

    def misuse(self) -> str:
        """Describe misuse of the buffers by user code before :meth:`finish`; empty if there was none."""
        return ""

    def finish(self) -> Any:
        """Release the buffers to user code; return the call's result."""


def valid_root(comm: Communicator, root: int) -> int:
    """Return `root`; raise `adjointlab.MPI.Exception` if it is not a rank of `comm`."""
    if not 0 <= (root if type(root) is int else c_int(root)) < comm.size:
        raise MPI.Exception(
            f"Invalid root {c_int(root)}: must be nonnegative and less than {comm.size}", MPI.ERR_ROOT
        )
    return root


_AGREED: Final = ("the root", "the operation", "the datatype", "the count or shape")
"""Names of the fields of a signature in messages."""


class CollectiveCall(Pending):
    """Call of a collective by one rank; done when all ranks have called it."""

    __slots__ = ("collective", "contribution")

    def __init__(
        self, task: Task, call: SimulatedCall, contribution: Contribution, collective: PendingCollective
    ) -> None:
        super().__init__(task, call)
        self.contribution = contribution
        self.collective = collective

    def waits_for(self) -> tuple[int, ...]:
        calls = zip(self.collective.shared.members, self.collective.calls, strict=True)
        return tuple(member for member, call in calls if call is None)

    def misuse(self) -> str:
        return self.contribution.misuse()

    def finish(self) -> Any:
        self.collective.compute_if_postponed()
        return self.contribution.finish()

    def __str__(self) -> str:
        if self.call.is_lab:
            # A line in the lab's own code would not help the user.
            return f"rank {self.task.rank} has {came_back(self.task.returned_from)}"
        return f"rank {self.task.rank} calls {self.call} at {self.call.where}"


class PendingCollective:
    """A collective that some ranks have called, but not all."""

    __slots__ = (
        "_postponed",
        "agreed",
        "calls",
        "diverges",
        "first",
        "fits",
        "missing",
        "proposers",
        "shared",
    )

    def __init__(self, shared: SharedCommunicator, first: Contribution, rank: int) -> None:
        self.shared = shared
        self.calls: list[CollectiveCall | None] = [None] * len(shared.members)
        self.first: CollectiveCall | None = None  # of the lowest rank that has called it
        self.missing = len(shared.members)
        self.fits = True  # no two calls contradict each other
        self.diverges = False  # the ranks call from different places of user code
        self.agreed = first.signature
        self.proposers = [rank] * len(
            first.signature
        )  # by field: the first rank whose argument is significant
        self._postponed: Callable[[], None] | None = None

    def join(self, rank: int, call: CollectiveCall) -> tuple[int, str] | None:
        """Add the call of `rank`; return a rank that disagrees with it, and the reason, or None."""
        self.calls[rank] = call
        if self.first is None or rank < self.shared.ranks[self.first.task.rank]:
            self.first = call
        self.missing -= 1
        own = call.contribution.signature
        if own == self.agreed:
            return None  # the common case, kept short because every rank comes here
        merged: list[Any] = list(self.agreed)
        for field, (agreed, value) in enumerate(zip(self.agreed, own, strict=True)):
            if agreed is None:
                merged[field], self.proposers[field] = value, rank
            elif value is not None and value != agreed:
                return self.proposers[field], f"{_AGREED[field]} is {agreed} on one and {value} on the other"
        self.agreed = Signature(*merged)
        return None

    def forget_calls(self) -> None:
        """Drop the calls after the computation, because they refer to this object: breaks a reference cycle."""
        self.calls, self.first = [], None

    def postpone(self, compute: Callable[[], None]) -> None:
        """Call `compute` only when the first rank takes its result."""
        self._postponed = compute

    def compute_if_postponed(self) -> None:
        """Run the postponed computation, if any."""
        if self._postponed is not None:
            compute, self._postponed = self._postponed, None
            compute()


class SharedCommunicator:
    """State that the ranks of one communicator share. Each rank has a view of it, a ``Communicator``."""

    def __init__(
        self,
        members: tuple[int, ...],
        scheduler: Scheduler,
        strategy: Strategy,
        findings: list[Finding],
        divergences: Divergences,
        topology: Topology | None = None,
    ) -> None:
        self.members = members  # ranks in the run, by rank in this communicator
        self.ranks = {member: rank for rank, member in enumerate(members)}
        self.topology = topology
        self.made: SimulatedCall | None = None  # the call in user code; None for the run's own communicator
        self.mailboxes = [Mailbox(scheduler, strategy, findings) for _ in members]
        self._scheduler = scheduler
        self._findings = findings
        self._divergences = divergences
        self._strategy = strategy
        self._counts = [0] * len(members)  # number of collectives that each rank has called
        self.callers: set[int] = set()  # members whose user code has called a collective
        self._pending: dict[int, PendingCollective] = {}  # by number

    @cached_property
    def name(self) -> str:
        """Default name in reports."""
        return "ranks " + " ".join(map(str, self.members))

    def __str__(self) -> str:
        made = "" if self.made is None else f", made at {self.made.where}"
        return f"the communicator of {self.name}{made}"

    def call_collective(
        self,
        rank: int,
        task: Task,
        call: SimulatedCall,
        contribution: Contribution,
        *,
        may_be_postponed: bool = False,
    ) -> CollectiveCall:
        """Join the next collective of `rank`, and complete it if all other ranks have called it.

        The computation of a non-blocking collective `may_be_postponed` until the first rank takes its result.
        """
        number = self._counts[rank]
        self._counts[rank] = number + 1
        self._scheduler.note_event()
        if not call.is_lab:
            self.callers.add(self.members[rank])
        collective = self._pending.get(number)
        if collective is None:
            collective = self._pending[number] = PendingCollective(self, contribution, rank)
        own = CollectiveCall(task, call, contribution, collective)
        first = collective.first or own
        disagreement = collective.join(rank, own)
        collective.diverges = collective.diverges or not call.is_beside(first.call)
        if first.contribution.kind != contribution.kind:
            collective.fits = False
            self._mismatch(first, own, self._finding(number, first, own, "they call different collectives"))
        elif not self._scheduler.crossed and (
            crossed := crossed_collective(first.application, own.application)
        ):
            self._scheduler.crossed.append(self._finding(number, first, own, crossed))
        if disagreement is not None:
            collective.fits = False
            other, reason = disagreement
            one = collective.calls[other] or first
            self._mismatch(one, own, self._finding(number, one, own, reason))
        # A mismatched collective is never completed: ranks that have called it correctly wait until they are cancelled.
        if collective.fits and not collective.missing:
            del self._pending[number]
            calls = [each for each in collective.calls if each is not None]
            if collective.diverges:
                self._note_divergence(number, calls)
            if may_be_postponed and self._strategy.deviates():
                collective.postpone(lambda: self._compute(number, calls))
            else:
                self._compute(number, calls)
            for each in calls:
                self._scheduler.complete(each)
        return own

    def _compute(self, number: int, calls: list[CollectiveCall]) -> None:
        try:
            calls[0].contribution.compute([call.contribution for call in calls])
        except Disagreement as disagreement:
            one, other = (calls[rank] for rank in disagreement.ranks)
            counts = {rank: calls[rank].contribution.counts_text() for rank in disagreement.ranks}
            finding = self._finding(number, one, other, disagreement.text(self.members), counts)
            self._mismatch(one, other, finding)
        calls[0].collective.forget_calls()

    def _note_divergence(self, number: int, calls: list[CollectiveCall]) -> None:
        is_of_passes = any(each.call.in_backward != calls[0].call.in_backward for each in calls)
        if self._divergences.wants(of_passes=is_of_passes) and not any(each.call.is_lab for each in calls):
            made = {each.task.rank: each.call for each in calls}  # not the contributions, which have buffers
            self._divergences.note(
                Divergence(
                    number,
                    self._of_ranks,
                    lambda: {rank: Place(call.where, call.in_backward) for rank, call in made.items()},
                    is_of_passes,
                )
            )

    @property
    def _of_ranks(self) -> str:
        return of_ranks(self.members, len(self._scheduler.tasks))

    def _finding(
        self,
        number: int,
        one: CollectiveCall,
        other: CollectiveCall,
        reason: str,
        counts: Mapping[int, str] = MappingProxyType({}),
    ) -> Finding:
        """Make the finding that two calls do not match; `counts` has a description of the counts of each rank."""
        called = [f"  {each}{counts.get(self.ranks[each.task.rank], '')}" for each in (one, other)]
        lines = [
            f"in collective {number + 1}{self._of_ranks}, {reason}",
            *dict.fromkeys(
                called
            ),  # once if the two are the same call, with a mismatched block from the rank to itself
            *self._divergences.lines(),
        ]
        return Finding(FindingKind.MISMATCHED_COLLECTIVE, "\n".join(lines))

    def _mismatch(self, one: CollectiveCall, other: CollectiveCall, finding: Finding) -> None:
        """Report that two calls do not match, and cancel both ranks."""
        self._findings.append(finding)
        for call, peer in ((one, other), (other, one)):
            blocked = Blocked(
                str(call.call),
                call.call.where,
                (peer.task.rank,),
                came_back=came_back(call.task.returned_from),
                in_backward=call.call.in_backward,
            )
            self._scheduler.cancel(call.task, blocked)
        # The running rank computes, and may be neither of the two. Its call cannot complete either.
        running = self._scheduler.current
        own = one.collective.calls[self.ranks[running.rank]]
        if own is not None:
            peers = tuple(sorted({one.task.rank, other.task.rank}))
            self._scheduler.cancel(
                running, PeerFailed(str(own.call), own.call.where, peers, came_back(running.returned_from))
            )
        raise Cancelled
