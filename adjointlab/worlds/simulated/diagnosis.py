"""What it means that nothing moves any more: deadlock, livelock, or the failure of another rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from adjointlab.worlds.diagnosis import POLLING, UNBUFFERED_SENDS, cycle_line, heading, waits_for_text
from adjointlab.worlds.simulated.context import Participation
from adjointlab.worlds.simulated.matching import Send
from adjointlab.worlds.simulated.scheduler import Task
from adjointlab.worlds.world import Blocked, Finding, Outcome, PeerFailed, Raised

if TYPE_CHECKING:
    from adjointlab.worlds.simulated.simulation import Simulation

__all__ = ["Diagnosis"]

LIVELOCK = 0.5
"""Seconds for which each rank must have asked in vain: a loop with an end of its own is seldom longer."""


class Diagnosis:
    """The judge of one run (see :class:`adjointlab.worlds.simulated.scheduler.Judge`)."""

    def __init__(self, run: Simulation) -> None:
        self._run = run

    def nobody_can_run(self, blocked: list[Task]) -> None:
        """All ranks that are left wait for something that will not happen."""
        if not self._called_out_for_a_failure(blocked):
            crossed = self._crossed(blocked)
            kind = "deadlock" if crossed is None else "mismatched collective"
            lines = [] if crossed is None else [crossed]
            self._run.findings.append(Finding(kind, "\n".join([*lines, *self._deadlock(blocked)])))
            self._cancel(blocked, Blocked)

    def nobody_gets_on(self, stuck: list[Task], seconds: float) -> None:
        """All ranks that are left ask again and again, or wait."""
        if not self._called_out_for_a_failure(stuck):
            if seconds < LIVELOCK:
                return
            lines = [POLLING]
            lines += [self._sitting(task) for task in stuck]
            self._run.findings.append(Finding("livelock", "\n".join(lines)))
            self._cancel(stuck, Blocked)

    def _called_out_for_a_failure(self, stuck: list[Task]) -> bool:
        failed = tuple(
            task.rank
            for task in self._run.scheduler.tasks
            if isinstance(task.cancelled_as or task.outcome, Raised | Blocked)
        )
        if failed:
            self._cancel(stuck, lambda call, where, _waits_for: PeerFailed(call, where, failed))
        return bool(failed)

    def _cancel(self, tasks: list[Task], outcome: Callable[[str, str, tuple[int, ...]], Outcome]) -> None:
        # All outcomes first: they speak of what the ranks wait for, which calling one out may change.
        outcomes = [outcome(str(task.call), _where(task), _waits_for(task)) for task in tasks]
        for task, its_outcome in zip(tasks, outcomes, strict=True):
            self._run.scheduler.cancel(task, its_outcome)

    def _deadlock(self, blocked: list[Task]) -> Iterator[str]:
        yield heading(len(blocked), len(self._run.scheduler.tasks))
        for task in blocked:
            yield self._sitting(task)
        yield from cycle_line({task.rank: _waits_for(task) for task in blocked})
        for context in self._run.contexts:
            for member, mailbox in zip(context.members, context.mailboxes, strict=True):
                for message in mailbox.arrived:
                    yield f"  rank {member} has not received {message}"
        if any(isinstance(pending, Send) for task in blocked for pending in task.waiting):
            yield UNBUFFERED_SENDS

    def _crossed(self, blocked: list[Task]) -> str | None:
        """Two ranks that call the collectives of two communicators in different orders, if that is what it is."""
        parts = {
            task.rank: part for task in blocked for part in task.waiting if isinstance(part, Participation)
        }
        for rank, mine in parts.items():
            for other in mine.waits_for():
                yours = parts.get(other)
                if yours is not None and rank in yours.waits_for():
                    return (
                        f"rank {rank} and rank {other} call collectives of two communicators in different orders\n"
                        f"  rank {rank} is in one of {mine.place}\n  rank {other} is in one of {yours.place}"
                    )
        return None

    def _sitting(self, task: Task) -> str:
        ended = [each.outcome is not None for each in self._run.scheduler.tasks]
        text = f"  rank {task.rank} in {task.call} at {_where(task)}{waits_for_text(_waits_for(task), ended)}"
        inner = {
            f"{pending.call} at {pending.call.where}"
            for pending in task.waiting
            if pending.call is not task.call and not pending.done
        }
        return text + "".join(f"\n    for {each}" for each in sorted(inner))


def _where(task: Task) -> str:
    return "?" if task.call is None else task.call.where


def _waits_for(task: Task) -> tuple[int, ...]:
    """The ranks that `task` waits for, each once."""
    return tuple(
        dict.fromkeys(rank for pending in task.waiting if not pending.done for rank in pending.waits_for())
    )
