"""What it means that nothing moves any more: deadlock, livelock, or the failure of another rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from adjointlab.worlds.simulated.context import Participation
from adjointlab.worlds.simulated.matching import Send
from adjointlab.worlds.simulated.scheduler import Strand
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

    def nobody_can_run(self, blocked: list[Strand]) -> None:
        """All ranks that are left wait for something that will not happen."""
        if not self._called_out_for_a_failure(blocked):
            crossed = self._crossed(blocked)
            kind = "deadlock" if crossed is None else "mismatched collective"
            lines = [] if crossed is None else [crossed]
            self._run.findings.append(Finding(kind, "\n".join([*lines, *self._deadlock(blocked)])))
            self._condemn(blocked, Blocked)

    def nobody_gets_on(self, stuck: list[Strand], seconds: float) -> None:
        """All ranks that are left ask again and again, or wait."""
        if not self._called_out_for_a_failure(stuck):
            if seconds < LIVELOCK:
                return
            lines = ["these ranks ask again and again, and nothing moves any more"]
            lines += [self._sitting(strand) for strand in stuck]
            self._run.findings.append(Finding("livelock", "\n".join(lines)))
            self._condemn(stuck, Blocked)

    def _called_out_for_a_failure(self, stuck: list[Strand]) -> bool:
        failed = tuple(
            strand.rank
            for strand in self._run.scheduler.strands
            if isinstance(strand.doom or strand.outcome, Raised | Blocked)
        )
        if failed:
            self._condemn(stuck, lambda call, where, _waits_for: PeerFailed(call, where, failed))
        return bool(failed)

    def _condemn(
        self, strands: list[Strand], outcome: Callable[[str, str, tuple[int, ...]], Outcome]
    ) -> None:
        # All outcomes first: they speak of what the ranks wait for, which calling one out may change.
        outcomes = [outcome(str(strand.call), _where(strand), _waits_for(strand)) for strand in strands]
        for strand, its_outcome in zip(strands, outcomes, strict=True):
            self._run.scheduler.condemn(strand, its_outcome)

    def _deadlock(self, blocked: list[Strand]) -> Iterator[str]:
        yield f"{len(blocked)} of {len(self._run.scheduler.strands)} ranks wait, and nobody can go on"
        for strand in blocked:
            yield self._sitting(strand)
        cycle = _cycle({strand.rank: _waits_for(strand) for strand in blocked})
        if cycle:
            yield "  cycle: " + " → ".join(f"rank {rank}" for rank in [*cycle, cycle[0]])
        for context in self._run.contexts:
            for member, mailbox in zip(context.members, context.mailboxes, strict=True):
                for message in mailbox.arrived:
                    yield f"  rank {member} has not received {message}"
        if any(isinstance(pending, Send) for strand in blocked for pending in strand.waiting):
            yield "  (a send may wait until it is received: MPI promises no buffering)"

    def _crossed(self, blocked: list[Strand]) -> str | None:
        """Two ranks that call the collectives of two communicators in different orders, if that is what it is."""
        parts = {
            strand.rank: part
            for strand in blocked
            for part in strand.waiting
            if isinstance(part, Participation)
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

    def _sitting(self, strand: Strand) -> str:
        strands = self._run.scheduler.strands
        waits_for = ", ".join(
            f"rank {rank}" + ("" if strands[rank].outcome is None else " (which has ended)")
            for rank in _waits_for(strand)
        )
        text = f"  rank {strand.rank} in {strand.call} at {_where(strand)}"
        if waits_for:
            text += f", waits for {waits_for}"
        inner = {
            f"{pending.call} at {pending.call.where}"
            for pending in strand.waiting
            if pending.call is not strand.call and not pending.done
        }
        return text + "".join(f"\n    for {each}" for each in sorted(inner))


def _where(strand: Strand) -> str:
    return "?" if strand.call is None else strand.call.where


def _waits_for(strand: Strand) -> tuple[int, ...]:
    """The ranks that `strand` waits for, each once."""
    return tuple(
        dict.fromkeys(rank for pending in strand.waiting if not pending.done for rank in pending.waits_for())
    )


def _cycle(graph: dict[int, tuple[int, ...]]) -> list[int]:
    """Ranks each of which waits for the next, and the last for the first; empty if there are none."""
    finished: set[int] = set()
    for start in graph:
        path = [start]
        branches = [iter(graph[start])]
        while branches:
            step = next(branches[-1], None)
            if step is None:
                finished.add(path.pop())
                branches.pop()
            elif step in path:
                return path[path.index(step) :]
            elif step in graph and step not in finished:
                path.append(step)
                branches.append(iter(graph[step]))
    return []
