"""One run of the simulated world: what its ranks share, and what is found wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from adjointlab.typing import Status
from adjointlab.worlds.constants import fill_status, mark_cancelled
from adjointlab.worlds.randomness import GlobalStreams, RandomStreams
from adjointlab.worlds.requests import Interposition
from adjointlab.worlds.schedule import Schedule
from adjointlab.worlds.simulated.diagnosis import Diagnosis
from adjointlab.worlds.simulated.groups import Grid
from adjointlab.worlds.simulated.matching import Message, Receive
from adjointlab.worlds.simulated.scheduler import Pending, Scheduler, Task
from adjointlab.worlds.simulated.schedules.record import DecisionRecorder
from adjointlab.worlds.simulated.schedules.strategies import strategy_for
from adjointlab.worlds.simulated.schedules.strategy import Strategy
from adjointlab.worlds.simulated.shared_communicator import SharedCommunicator
from adjointlab.worlds.simulated.threads import WorkerPool
from adjointlab.worlds.world import Finding, Outcome, Returned, Run

__all__ = ["Simulation"]


class Simulation:
    """A run on `size` ranks, each of which executes `rank_main`."""

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
        # Recorded only for callers that gave a schedule, since it costs time. Round-robin has nothing to record.
        self._recorder = None if schedule is None or strategy.orderly else DecisionRecorder(strategy)
        self.findings: list[Finding] = []
        self.strategy: Strategy = self._recorder or strategy
        self.scheduler = Scheduler(
            size,
            pool,
            RandomStreams(streams, seed, size),
            self.strategy,
            Diagnosis(self),
            lambda task: rank_main(self, task),
        )
        self.open_requests: dict[int, Pending] = {}  # by id; started and not completed by user code
        self._communicators: list[SharedCommunicator] = []
        # By rank, in the order of their making: a dictionary for want of an ordered set.
        self.unfreed: dict[int, dict[SharedCommunicator, None]] = {}
        self.everyone = self.new_shared(tuple(range(size)))
        self._group_creations: dict[tuple[SharedCommunicator, tuple[int, ...], int], SharedCommunicator] = {}
        self.interposition = Interposition()

    def new_shared(self, members: tuple[int, ...], grid: Grid | None = None) -> SharedCommunicator:
        """State for a new communicator of `members`, ranks of the run."""
        shared = SharedCommunicator(members, self.scheduler, self.strategy, self.findings, grid)
        self._communicators.append(shared)
        return shared

    def group_creation(
        self, parent: SharedCommunicator, members: tuple[int, ...], tag: int
    ) -> SharedCommunicator:
        """Communicator in which `members`, some of the ranks of `parent`, call Create_group with `tag`.

        User code does not see it. MPI lets calls with different tags or groups proceed in any order, so each has its own.
        """
        key = (parent, members, tag)
        if key not in self._group_creations:
            self._group_creations[key] = self.new_shared(members)
        return self._group_creations[key]

    def run(self) -> Run:
        """Run it to its end."""
        with self.interposition:
            outcomes = self.scheduler.run()
        # After a failure, what is left behind follows from it, and is not worth a finding.
        if not self.findings and all(isinstance(outcome, Returned) for outcome in outcomes):
            self._find_leaks()
        decisions = "" if self._recorder is None else self._recorder.decisions
        return Run(outcomes, tuple(self.findings), tuple(self.scheduler.matched), decisions)

    def finish(self, pending: Pending, status: Status | None = None) -> Any:
        """Give the buffers of `pending`, which is done, back to user code; return its result."""
        if misuse := pending.misuse():
            call, rank = pending.call, pending.task.rank
            text = f"rank {rank} {misuse} of {call} at {call.where} before it had completed"
            self.findings.append(Finding("buffer misused", text))
        result = pending.finish()
        if status is not None and pending.envelope is not None:
            fill_status(status, *pending.envelope)
        if isinstance(pending, Receive) and pending.message is None:
            mark_cancelled(status)
        return result

    def cancel(self, pending: Pending) -> bool:
        """Cancel a receive; return False if it has its message. (Sends are never cancelled, as MPI allows.)"""
        return isinstance(pending, Receive) and any(
            mailbox.withdraw(pending) for shared in self._communicators for mailbox in shared.mailboxes
        )

    def unreceived(self) -> Iterator[tuple[int, Message]]:
        """Messages that have arrived and were not received, each with the rank that it was sent to."""
        for shared in self._communicators:
            for member, mailbox in zip(shared.members, shared.mailboxes, strict=True):
                for message in mailbox.arrived:
                    yield member, message

    def _find_leaks(self) -> None:
        self.scheduler.deliver_delayed()
        for rank, message in self.unreceived():
            self.findings.append(Finding("message left over", f"rank {rank} never received {message}"))
        for pending in self.open_requests.values():
            text = f"rank {pending.task.rank} never completed {pending.call} at {pending.call.where}"
            self.findings.append(Finding("request left open", text))
