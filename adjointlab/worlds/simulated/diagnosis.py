"""Diagnosis of a simulated run that makes no progress: deadlock, livelock, or the failure of another rank."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from adjointlab.worlds.diagnosis import POLLING, UNBUFFERED_SENDS, cycle_line, heading, waits_for_text
from adjointlab.worlds.simulated.matching import Send
from adjointlab.worlds.simulated.scheduler import StuckHandler, Task
from adjointlab.worlds.simulated.shared_communicator import CollectiveCall
from adjointlab.worlds.world import Blocked, Finding, Outcome, PeerFailed, Raised

if TYPE_CHECKING:
    from adjointlab.worlds.simulated.simulation import Simulation

__all__ = ["Diagnosis"]

LIVELOCK = 0.5
"""Seconds of polling in vain, as a share of each polling rank: a loop with an end of its own seldom lasts longer."""


class Diagnosis(StuckHandler):
    """Explains why ranks make no progress, and cancels them all."""

    def __init__(self, run: Simulation) -> None:
        self._run = run

    def on_deadlock(self, blocked: list[Task]) -> None:
        if not self._cancelled_for_a_failure(blocked):
            crossed = self._crossed_collectives(blocked)
            kind = "deadlock" if crossed is None else "mismatched collective"
            lines = [] if crossed is None else [crossed]
            self._run.findings.append(Finding(kind, "\n".join([*lines, *self._deadlock(blocked)])))
            self._cancel(blocked, Blocked)

    def on_livelock(self, stuck: list[Task], seconds: float) -> None:
        if not self._cancelled_for_a_failure(stuck) and seconds >= LIVELOCK:
            text = "\n".join([POLLING, *map(self._line, stuck)])
            self._run.findings.append(Finding("livelock", text))
            self._cancel(stuck, Blocked)

    def _cancelled_for_a_failure(self, stuck: list[Task]) -> bool:
        """Cancel ranks that wait for others because some rank has failed: not their fault, and no finding."""
        failed = tuple(
            task.rank
            for task in self._run.scheduler.tasks
            if isinstance(task.cancelled_as or task.outcome, Raised | Blocked)
        )
        if failed:
            self._cancel(stuck, lambda call, where, _waits_for: PeerFailed(call, where, failed))
        return bool(failed)

    def _cancel(self, tasks: list[Task], outcome: Callable[[str, str, tuple[int, ...]], Outcome]) -> None:
        # All outcomes first: they say what the ranks wait for, which changes as soon as one of them is cancelled.
        outcomes = [outcome(str(task.call), _where(task), _waits_for(task)) for task in tasks]
        for task, its_outcome in zip(tasks, outcomes, strict=True):
            self._run.scheduler.cancel(task, its_outcome)

    def _deadlock(self, blocked: list[Task]) -> Iterator[str]:
        yield heading(len(blocked), len(self._run.scheduler.tasks))
        yield from map(self._line, blocked)
        yield from cycle_line({task.rank: _waits_for(task) for task in blocked})
        yield from (f"  rank {rank} has not received {message}" for rank, message in self._run.unreceived())
        if any(isinstance(pending, Send) for task in blocked for pending in task.waiting):
            yield UNBUFFERED_SENDS

    def _crossed_collectives(self, blocked: list[Task]) -> str | None:
        """Describe two ranks that call the collectives of two communicators in different orders, if there are two.

        Each then waits for the other, in a collective that the other would call next.
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
        """Describe where a rank is, and what it waits for."""
        ended = [each.outcome is not None for each in self._run.scheduler.tasks]
        text = f"  rank {task.rank} in {task.call} at {_where(task)}{waits_for_text(_waits_for(task), ended)}"
        # A wait for requests does not say what they are: so the calls that made them, too.
        inner = {
            f"{pending.call} at {pending.call.where}"
            for pending in task.waiting
            if pending.call is not task.call and not pending.done
        }
        return text + "".join(f"\n    for {each}" for each in sorted(inner))


def _where(task: Task) -> str:
    return "?" if task.call is None else task.call.where


def _waits_for(task: Task) -> tuple[int, ...]:
    """Ranks that `task` waits for, each once."""
    ranks: Iterable[int] = (rank for each in task.waiting if not each.done for rank in each.waits_for())
    return tuple(dict.fromkeys(ranks))
