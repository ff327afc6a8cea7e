"""One run of the simulated world: what its ranks share, and what is found wrong with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from adjointlab.worlds.constants import fill_status, note_cancelled
from adjointlab.worlds.randomness import GlobalStreams, RandomStreams
from adjointlab.worlds.requests import Interposition
from adjointlab.worlds.schedule import Schedule
from adjointlab.worlds.simulated.context import Context
from adjointlab.worlds.simulated.diagnosis import Diagnosis
from adjointlab.worlds.simulated.groups import Grid
from adjointlab.worlds.simulated.matching import Receive
from adjointlab.worlds.simulated.scheduler import Pending, Scheduler, Task
from adjointlab.worlds.simulated.schedules.record import DecisionRecorder
from adjointlab.worlds.simulated.schedules.strategies import strategy_for
from adjointlab.worlds.simulated.schedules.strategy import Strategy
from adjointlab.worlds.simulated.threads import WorkerPool
from adjointlab.worlds.world import Finding, Outcome, Returned, Run

__all__ = ["Simulation"]


class Simulation:
    """A run on `size` ranks; `rank_main` is what each does."""

    def __init__(
        self,
        size: int,
        seed: int,
        schedule: Schedule | None,
        pool: WorkerPool,
        streams: GlobalStreams,
        rank_main: Callable[[Simulation, Task], Outcome],
    ) -> None:
        strategy = strategy_for(schedule or Schedule.of(seed))
        self._recorder = None if schedule is None or strategy.orderly else DecisionRecorder(strategy)
        self.findings: list[Finding] = []
        self.nondeterminism: Strategy = self._recorder or strategy
        self.scheduler = Scheduler(
            size,
            pool,
            RandomStreams(streams, seed, size),
            self.nondeterminism,
            Diagnosis(self),
            lambda task: rank_main(self, task),
        )
        self.open_requests: dict[int, Pending] = {}
        self.contexts: list[Context] = []
        self.unfreed: dict[int, dict[Context, None]] = {}  # by rank, in the order of their making
        self.everyone = self.new_context(tuple(range(size)))
        self._meeting_places: dict[Any, Context] = {}
        self.interposition = Interposition()

    def new_context(self, members: tuple[int, ...], grid: Grid | None = None) -> Context:
        """A new communicator of `members`, ranks of the run."""
        context = Context(members, self.scheduler, self.nondeterminism, self.findings, grid)
        self.contexts.append(context)
        return context

    def meeting_place(self, context: Context, members: tuple[int, ...], tag: int) -> Context:
        """Where `members`, only some of the ranks of `context`, meet to make a communicator."""
        key = (id(context), members, tag)
        if key not in self._meeting_places:
            self._meeting_places[key] = self.new_context(members)
        return self._meeting_places[key]

    def run(self) -> Run:
        """Run it to its end."""
        with self.interposition:
            outcomes = self.scheduler.run()
        if not self.findings and all(isinstance(outcome, Returned) for outcome in outcomes):
            self._look_around()
        decisions = "" if self._recorder is None else self._recorder.decisions
        return Run(outcomes, tuple(self.findings), tuple(self.scheduler.matched), decisions)

    def finish(self, pending: Pending, status: Any = None) -> Any:
        """Give the owner of `pending`, which has happened, its buffers back; the result."""
        if misuse := pending.misuse():
            call, rank = pending.call, pending.task.rank
            self.findings.append(
                Finding(
                    "buffer misused",
                    f"rank {rank} {misuse} of {call} at {call.where} before it had completed",
                )
            )
        result = pending.finish()
        if status is not None and pending.envelope is not None:
            fill_status(status, *pending.envelope)
        if isinstance(pending, Receive) and pending.message is None:
            note_cancelled(status)
        return result

    def cancel(self, pending: Pending) -> bool:
        """Whether `pending`, a receive, could be withdrawn."""
        return isinstance(pending, Receive) and any(
            mailbox.withdraw(pending) for context in self.contexts for mailbox in context.mailboxes
        )

    def _look_around(self) -> None:
        """Find what a run that went well has left behind."""
        self.scheduler.deliver_delayed()
        for context in self.contexts:
            for member, mailbox in zip(context.members, context.mailboxes, strict=True):
                for message in mailbox.arrived:
                    self.findings.append(
                        Finding("message left over", f"rank {member} never received {message}")
                    )
        for pending in self.open_requests.values():
            self.findings.append(
                Finding(
                    "request left open",
                    f"rank {pending.task.rank} never completed {pending.call} at {pending.call.where}",
                )
            )
