"""One run of the simulated world: the state that its ranks share, and the diagnosis of faults.

A run in which no rank can proceed is diagnosed (:class:`Diagnosis`) as a deadlock, a livelock, or the failure of another rank.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from threading import get_ident
from typing import Any, Final, NoReturn

from adjointlab.typing import Status
from adjointlab.worlds.call_sites import SimulatedCall, came_back
from adjointlab.worlds.constants import fill_status, mark_cancelled
from adjointlab.worlds.diagnosis import (
    POLLING,
    UNBUFFERED_SENDS,
    cycle_line,
    heading,
    is_synchronous,
    waits_for_text,
)
from adjointlab.worlds.divergence import Divergences
from adjointlab.worlds.forks import forks_cut_off
from adjointlab.worlds.interposition import Interposition
from adjointlab.worlds.module_state import ModuleState
from adjointlab.worlds.process_group import process_groups_of
from adjointlab.worlds.randomness import GlobalStreams, RandomStreams
from adjointlab.worlds.run import (
    Blocked,
    Dead,
    Finding,
    FindingKind,
    Outcome,
    PeerFailed,
    Raised,
    Returned,
    Run,
)
from adjointlab.worlds.schedule import Schedule
from adjointlab.worlds.simulated.cached_properties import cached_properties_without_lock
from adjointlab.worlds.simulated.collectives import CollectiveCall, SharedCommunicator
from adjointlab.worlds.simulated.dual_levels import dual_levels_shared
from adjointlab.worlds.simulated.machine import Machine
from adjointlab.worlds.simulated.matching import Message, Receive, Send
from adjointlab.worlds.simulated.operations import Create, own_operation
from adjointlab.worlds.simulated.scheduler import IN_ANOTHER_THREAD, Pending, Scheduler, StuckHandler, Task
from adjointlab.worlds.simulated.schedules.replay import DecisionRecorder
from adjointlab.worlds.simulated.schedules.strategies import strategy_for
from adjointlab.worlds.simulated.schedules.strategy import Strategy
from adjointlab.worlds.simulated.topologies import Topology
from adjointlab.worlds.simulated.workers import WorkerPool

__all__ = ["Diagnosis", "Simulation"]

_FOR_OTHER_THREADS: Final = 0.2
"""Seconds to wait, before diagnosing a deadlock, for threads of user code that may call on behalf of a waiting rank."""


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
        self.divergences = Divergences()
        self.strategy: Strategy = self._recorder or strategy
        self.machine = Machine(size, self.strategy)
        self._diagnosis = Diagnosis(self)
        self.scheduler = Scheduler(
            size,
            pool,
            RandomStreams(streams, seed, size),
            self.strategy,
            self._diagnosis,
            lambda task: rank_main(self, task),
        )
        self.messaging: set[int] = set()  # ranks that have sent a message to another rank, or were sent one
        self.delayed: list[SimulatedCall] = []  # calls whose results were delayed as long as MPI allows
        self.open_requests: dict[int, Pending] = {}  # by id; started, but not completed by user code
        self._communicators: list[SharedCommunicator] = []
        # By rank, in order of creation; the inner dictionaries serve as ordered sets.
        self.unfreed: dict[int, dict[SharedCommunicator, None]] = {}
        self.everyone = self.new_shared(tuple(range(size)))
        self._group_creations: dict[tuple[SharedCommunicator, tuple[int, ...], int], SharedCommunicator] = {}
        self._module_state: ModuleState | None = None
        self.communicators: dict[int, object] = {}  # the run's communicator, by rank; each rank adds its own
        self.given: dict[tuple[SharedCommunicator, Hashable], object] = {}  # see Communicator.first_given
        self._threads_before = threading.enumerate()

    def new_shared(self, members: tuple[int, ...], topology: Topology | None = None) -> SharedCommunicator:
        """State for a new communicator of `members`, ranks of the run."""
        shared = SharedCommunicator(
            members, self.scheduler, self.strategy, self.findings, self.divergences, topology
        )
        self._communicators.append(shared)
        return shared

    def group_creation(
        self, parent: SharedCommunicator, members: tuple[int, ...], tag: int
    ) -> SharedCommunicator:
        """Internal communicator for calls of Create_group with `tag` by `members`, some of the ranks of `parent`.

        In MPI, calls with different tags or groups may proceed in any order, so each combination has its own.
        """
        key = (parent, members, tag)
        if key not in self._group_creations:
            self._group_creations[key] = self.new_shared(members)
        return self._group_creations[key]

    def separate(self, packages: Sequence[str]) -> ModuleState:
        """Give each rank separate module-level variables in these packages, from the first call on; return their state."""
        if self._module_state is None:
            self._module_state = ModuleState(packages)
            self.scheduler.streams.add(self._module_state)
        return self._module_state

    def run(self) -> Run:
        """Run all ranks to completion."""
        with (
            Interposition(self),
            process_groups_of(self, None),
            forks_cut_off(self._cut_off),
            cached_properties_without_lock(),
            dual_levels_shared(),
        ):
            outcomes = self.scheduler.run()
        # After a failure, leaks are consequences of it, and not reported.
        if not self.findings and all(isinstance(outcome, Returned) for outcome in outcomes):
            self._diagnosis.find_leaks()
        # Break reference cycles through this object.
        del self._diagnosis
        self.communicators.clear()
        decisions = "" if self._recorder is None else self._recorder.decisions
        communicating = self.messaging.union(
            *(each.callers for each in self._communicators if len(each.members) > 1)
        )
        return Run(
            outcomes,
            tuple(self.findings),
            tuple(self.scheduler.matched),
            decisions,
            frozenset(communicating),
            tuple(task.backward for task in self.scheduler.tasks),
            tuple(self.delayed),
        )

    def _cut_off(self) -> None:
        for task in self.scheduler.tasks:
            task.cancelled_as = task.cancelled_as or Dead("it is a child process")

    def is_called_from_other_threads(self) -> bool:
        """Return True if a thread started by user code in this run has called on behalf of a waiting rank; allow running threads some time."""
        own = {task.worker.thread for task in self.scheduler.tasks if task.worker is not None}
        until = time.monotonic() + _FOR_OTHER_THREADS
        while not self.scheduler.is_called_elsewhere and time.monotonic() < until:
            others = set(threading.enumerate()).difference(own, self._threads_before)
            # Dummies are threads of libraries, such as torch's autograd threads for devices.
            if all(isinstance(thread, threading._DummyThread) for thread in others):
                break
            time.sleep(_FOR_OTHER_THREADS / 20)
        return self.scheduler.is_called_elsewhere

    # Interface of interposition: CurrentRun

    def communicator(self) -> object:
        """The run's communicator for the rank of the calling thread."""
        worker = self.scheduler.current.worker
        if worker is None or worker.thread.ident != get_ident():
            self.refuse(
                "MPI.COMM_WORLD is used in a thread that user code has started, so its simulated rank is unknown. "
                "Communicate in the thread that calls the operator"
            )
        return self.communicators[self.scheduler.current.rank]

    def refuse(self, reason: str, kind: FindingKind = FindingKind.PAST_THE_RUN) -> NoReturn:
        """Raise, and record a finding, because user code that catches the exception would continue as if it were alone."""
        self.findings.append(Finding(kind, f"rank {self.scheduler.current.rank}: {reason}"))
        raise RuntimeError(reason)

    def operation(self, kind: Any, create: Create, function: Any, commute: bool) -> Any:
        """Make an operation for simulated ranks, which does not use one of mpi4py's slots."""
        return own_operation(kind, create, function, commute)

    def finish(self, pending: Pending, status: Status | None = None) -> Any:
        """Release the buffers of `pending`, which is done, to user code; return its result."""
        if misuse := pending.misuse():
            call, rank = pending.call, pending.task.rank
            text = f"rank {rank} {misuse} of {call} at {call.where} before it had completed"
            self.findings.append(Finding(FindingKind.BUFFER_MISUSED, text))
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
        """Unreceived messages, each with the rank that it was sent to."""
        for shared in self._communicators:
            for member, mailbox in zip(shared.members, shared.mailboxes, strict=True):
                for message in (*mailbox.arrived, *mailbox.matched):
                    yield member, message


LIVELOCK = 0.5
"""Seconds of fruitless polling, per polling rank, after which it counts as a livelock: loops that terminate rarely poll longer."""


class Diagnosis(StuckHandler):
    """Explains why ranks make no progress, and cancels them all; or reports leaks of a completed run."""

    def __init__(self, run: Simulation) -> None:
        self._run = run

    def on_deadlock(self, blocked: list[Task]) -> None:
        if not self._cancelled_for_a_failure(blocked):
            crossed = self._crossed_collectives(blocked)
            kind = FindingKind.DEADLOCK if crossed is None else FindingKind.MISMATCHED_COLLECTIVE
            lines = [] if crossed is None else [crossed]
            if self._run.is_called_from_other_threads():
                kind, lines = FindingKind.PAST_THE_RUN, [IN_ANOTHER_THREAD]
            self._run.findings.append(Finding(kind, "\n".join([*lines, *self._deadlock(blocked)])))
            self._cancel(blocked, _blocked)

    def on_livelock(self, stuck: list[Task], seconds: float) -> None:
        if not self._cancelled_for_a_failure(stuck) and seconds >= LIVELOCK:
            text = "\n".join([POLLING, *map(self._line, stuck), *self._run.divergences.lines()])
            self._run.findings.append(Finding(FindingKind.LIVELOCK, text))
            self._cancel(stuck, _blocked)

    def find_leaks(self) -> None:
        """Report unreceived messages, open requests and crossed applications of a completed run."""
        run = self._run
        run.scheduler.deliver_delayed()
        run.findings += run.scheduler.crossed
        for rank, message in run.unreceived():
            run.findings.append(
                Finding(FindingKind.MESSAGE_LEFT_OVER, f"rank {rank} never received {message}")
            )
        for pending in run.open_requests.values():
            text = f"rank {pending.task.rank} never completed {pending.call} at {pending.call.where}"
            run.findings.append(Finding(FindingKind.REQUEST_LEFT_OPEN, text))

    def _cancelled_for_a_failure(self, stuck: list[Task]) -> bool:
        """If some rank has failed, cancel the ranks that wait, and return True: their waits are consequences, not findings."""
        failed = tuple(
            task.rank
            for task in self._run.scheduler.tasks
            if isinstance(task.cancelled_as or task.outcome, Raised | Blocked)
        )
        if failed:
            self._cancel(
                stuck,
                lambda task: PeerFailed(str(task.call), _where(task), failed, came_back(task.returned_from)),
            )
        return bool(failed)

    def _cancel(self, tasks: list[Task], outcome: Callable[[Task], Outcome]) -> None:
        # Compute all outcomes first: they contain the ranks waited for, which change as soon as one of them is cancelled.
        outcomes = [outcome(task) for task in tasks]
        for task, its_outcome in zip(tasks, outcomes, strict=True):
            self._run.scheduler.cancel(task, its_outcome)

    def _deadlock(self, blocked: list[Task]) -> Iterator[str]:
        yield heading(len(blocked), len(self._run.scheduler.tasks))
        yield from map(self._line, blocked)
        yield from cycle_line({task.rank: _waits_for(task) for task in blocked})
        yield from (f"  rank {rank} has not received {message}" for rank, message in self._run.unreceived())
        waiting = [pending for task in blocked for pending in task.waiting if isinstance(pending, Send)]
        if any(not is_synchronous(pending.call.name) for pending in waiting):
            yield UNBUFFERED_SENDS
        yield from self._run.divergences.lines()

    def _crossed_collectives(self, blocked: list[Task]) -> str | None:
        """Describe two ranks that call the collectives of two communicators in different orders; None if there are none.

        Each waits for the other, in a collective that the other would call next.
        """
        calls: dict[int, CollectiveCall] = {
            task.rank: pending
            for task in blocked
            for pending in task.waiting
            if isinstance(pending, CollectiveCall)
        }
        for rank, call in calls.items():
            for other in call.waits_for():
                others_call = calls.get(other)
                if others_call is not None and rank in others_call.waits_for():
                    return (
                        f"rank {rank} and rank {other} call collectives of two communicators in different orders\n"
                        f"  rank {rank} is in one of {call.collective.shared}\n"
                        f"  rank {other} is in one of {others_call.collective.shared}"
                    )
        return None

    def _line(self, task: Task) -> str:
        """Report line: the current call of a rank, and the ranks and requests that it waits for."""
        ended = [each.outcome is not None for each in self._run.scheduler.tasks]
        is_lab = task.call is not None and task.call.is_lab
        doing = f"has {came_back(task.returned_from)}" if is_lab else f"in {task.call} at {_where(task)}"
        text = f"  rank {task.rank} {doing}{waits_for_text(_waits_for(task), ended)}"
        # A wait for requests does not show what they are, so the calls that started them are listed too.
        inner = {
            f"{pending.call} at {pending.call.where}"
            for pending in task.waiting
            if pending.call is not task.call and not pending.done
        }
        inner.discard(
            f"{task.call} at {_where(task)}"
        )  # a library started and awaited it in the same line of user code
        return text + "".join(f"\n    for {each}" for each in sorted(inner))


def _blocked(task: Task) -> Blocked:
    return Blocked(
        str(task.call),
        _where(task),
        _waits_for(task),
        came_back=came_back(task.returned_from),
        in_backward=task.call is not None and task.call.in_backward,
    )


def _where(task: Task) -> str:
    return "?" if task.call is None else task.call.where


def _waits_for(task: Task) -> tuple[int, ...]:
    """Ranks that `task` waits for, each once."""
    ranks: Iterable[int] = (rank for each in task.waiting if not each.done for rank in each.waits_for())
    return tuple(dict.fromkeys(ranks))
