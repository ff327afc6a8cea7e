"""Replay of the decisions of an earlier run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from adjointlab.worlds.schedule import DecisionKind, decode
from adjointlab.worlds.simulated.schedules.strategy import Ready, ReadyRank, Strategy

__all__ = ["Replay"]

T = TypeVar("T")
R = TypeVar("R", bound=ReadyRank)


class Replay(Strategy):
    """Decides as recorded, as long as the run asks what it asked then; from there on as `otherwise` does.

    A run of code that has been changed asks other questions, and must come to an end all the same.
    """

    orderly = False

    def __init__(self, decisions: str, otherwise: Strategy) -> None:
        self._recorded = decode(decisions)
        self._otherwise = otherwise
        self._position = 0
        self.left_at: int | None = None  # how many decisions were followed, once the run has left the record

    def next(self, ready: Ready[R]) -> R:
        if len(ready) == 1:
            return ready.popleft()
        rank = self._decision(DecisionKind.NEXT)
        for turn in ready if rank is not None else ():
            if turn.rank == rank:
                ready.remove(turn)
                return turn
        self._leave()
        return self._otherwise.next(ready)

    def preempts(self, current: R, ready: Ready[R]) -> bool:
        decision = self._decision(DecisionKind.PREEMPTION)
        return self._otherwise.preempts(current, ready) if decision is None else bool(decision)

    def polled(self, current: ReadyRank) -> None:
        self._otherwise.polled(current)

    def deviates(self) -> bool:
        decision = self._decision(DecisionKind.DEVIATION)
        return self._otherwise.deviates() if decision is None else bool(decision)

    def choose(self, options: Sequence[T]) -> T:
        decision = self._decision(DecisionKind.CHOICE)
        if decision is not None and decision < len(options):
            return options[decision]
        self._leave()
        return self._otherwise.choose(options)

    def _decision(self, kind: int) -> int | None:
        if self.left_at is None and self._position < len(self._recorded):
            its_kind, decision = self._recorded[self._position]
            if its_kind == kind:
                self._position += 1
                return decision
        self._leave()
        return None

    def _leave(self) -> None:
        if self.left_at is None:
            self.left_at = self._position
