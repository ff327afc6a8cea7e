"""State that the ranks of one communicator share: their mailboxes, and the collectives in progress.

Collectives have no tags: the n-th collective that one rank calls on a communicator matches the n-th of every other rank
(MPI 4.1, section 6.1). So each rank's calls are counted, and a pending collective is found by its number::

    rank 0   Bcast  Reduce .           pending: 1 (rank 1 is missing), 2 (ranks 0 and 1 are)
    rank 1   Bcast  .      .
    rank 2   Bcast  Reduce Barrier     a non-blocking form: rank 2 need not have waited for number 1

The rank that arrives last computes for all. If two ranks call different collectives, or with arguments that do not fit,
that is reported at once, and both are cancelled.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from adjointlab.worlds.simulated.calls import SimulatedCall
from adjointlab.worlds.simulated.contribution import Contribution, Disagreement, Signature
from adjointlab.worlds.simulated.groups import Grid
from adjointlab.worlds.simulated.matching import Mailbox
from adjointlab.worlds.simulated.scheduler import Pending, Scheduler, Task
from adjointlab.worlds.simulated.schedules.strategy import Strategy
from adjointlab.worlds.world import Blocked, Cancelled, Finding

__all__ = ["CollectiveCall", "SharedCommunicator"]

_AGREED = Signature("the root", "the operation", "the datatype", "the count or shape")  # type: ignore[arg-type]


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
        collective = self.collective
        calls = zip(collective.shared.members, collective.calls, strict=True)
        return tuple(member for member, call in calls if call is None)

    def misuse(self) -> str:
        return self.contribution.misuse()

    def finish(self) -> Any:
        self.collective.compute_if_postponed()
        return self.contribution.finish()

    def __str__(self) -> str:
        return f"rank {self.task.rank} calls {self.call} at {self.call.where}"


class PendingCollective:
    """A collective that some ranks have called, and others have not."""

    __slots__ = ("_postponed", "agreed", "calls", "fits", "missing", "proposers", "shared")

    def __init__(self, shared: SharedCommunicator, first: Contribution, rank: int) -> None:
        self.shared = shared
        self.calls: list[CollectiveCall | None] = [None] * len(shared.members)
        self.missing = len(shared.members)
        self.fits = True  # no two calls contradict each other
        self.agreed = first.signature
        self.proposers = [rank] * len(first.signature)  # by field: the first rank that had a say
        self._postponed: Callable[[], None] | None = None

    def join(self, rank: int, call: CollectiveCall) -> tuple[int, str] | None:
        """Add the call of `rank`; return with which rank, and about what, it disagrees, or None."""
        self.calls[rank] = call
        self.missing -= 1
        own = call.contribution.signature
        if own == self.agreed:
            return None  # nearly always, and P ranks join: so no loop
        merged: list[Any] = list(self.agreed)
        for field, (agreed, value) in enumerate(zip(self.agreed, own, strict=True)):
            if agreed is None:
                merged[field], self.proposers[field] = value, rank
            elif value is not None and value != agreed:
                return self.proposers[field], f"{_AGREED[field]} is {agreed} on one and {value} on the other"
        self.agreed = Signature(*merged)
        return None

    def postpone(self, compute: Callable[[], None]) -> None:
        """Call `compute` only when the first rank takes its result."""
        self._postponed = compute

    def compute_if_postponed(self) -> None:
        """Call now what was postponed."""
        if self._postponed is not None:
            compute, self._postponed = self._postponed, None
            compute()


class SharedCommunicator:
    """State that the ranks of one communicator share. What one of them holds is a view of it, a ``Communicator``."""

    def __init__(
        self,
        members: tuple[int, ...],
        scheduler: Scheduler,
        strategy: Strategy,
        findings: list[Finding],
        grid: Grid | None = None,
    ) -> None:
        self.members = members  # their ranks in the run, by their ranks here
        self.ranks = {member: rank for rank, member in enumerate(members)}
        self.grid = grid
        self.made: SimulatedCall | None = None  # by which line of user code; None for the run's own
        self.mailboxes = [Mailbox(scheduler, strategy, findings) for _ in members]
        self._scheduler = scheduler
        self._findings = findings
        self._strategy = strategy
        self._counts = [0] * len(members)  # of the collectives that each rank has called
        self._pending: dict[int, PendingCollective] = {}  # by number, as the ranks count

    @cached_property
    def name(self) -> str:
        """Name in reports, until user code gives it another."""
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
        """Join the next collective of `rank`, and complete it if that was the last one missing.

        Of a non-blocking collective the result `may_be_postponed`: then it is computed when the first rank asks for it.
        """
        number = self._counts[rank]
        self._counts[rank] = number + 1
        self._scheduler.progress += 1
        collective = self._pending.get(number)
        if collective is None:
            collective = self._pending[number] = PendingCollective(self, contribution, rank)
        own = CollectiveCall(task, call, contribution, collective)
        first = next((other for other in collective.calls if other is not None), own)
        disagreement = collective.join(rank, own)
        fits = first.contribution.kind == contribution.kind and disagreement is None
        collective.fits = collective.fits and fits
        if first.contribution.kind != contribution.kind:
            self._mismatch(number, first, own, "they call different collectives")
        if disagreement is not None:
            other, reason = disagreement
            self._mismatch(number, collective.calls[other] or first, own, reason)
        if collective.missing == 0:
            del self._pending[number]
        # One that does not fit is never completed: who joined it rightly waits until it is told that its peers have failed.
        if collective.missing == 0 and collective.fits:
            calls = [each for each in collective.calls if each is not None]
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
            one, other = disagreement.ranks
            self._mismatch(number, calls[one], calls[other], str(disagreement))

    def _mismatch(self, number: int, one: CollectiveCall, other: CollectiveCall, reason: str) -> None:
        """Report that two calls do not match, and cancel both ranks."""
        is_of_all = len(self.members) == len(self._scheduler.tasks)
        where = "" if is_of_all else f" of ranks {', '.join(map(str, self.members))}"
        self._findings.append(
            Finding(
                "mismatched collective", f"in collective {number + 1}{where}, {reason}\n  {one}\n  {other}"
            )
        )
        for call, peer in ((one, other), (other, one)):
            blocked = Blocked(str(call.call), call.call.where, (peer.task.rank,))
            self._scheduler.cancel(call.task, blocked)
        # The running rank is the last to arrive, and need not be one of the two.
        raise Cancelled
