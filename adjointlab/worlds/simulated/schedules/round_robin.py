"""Ranks in turn, everything at once: what most MPI libraries do most of the time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from adjointlab.worlds.simulated.schedules.strategy import Ready, ReadyRank, Strategy

__all__ = ["RoundRobin"]

T = TypeVar("T")
R = TypeVar("R", bound=ReadyRank)


class RoundRobin(Strategy):
    """Whoever has waited longest; no liberty is taken."""

    orderly = True

    def next(self, ready: Ready[R]) -> R:
        return ready.popleft()

    def preempts(self, current: R, ready: Ready[R]) -> bool:
        return False

    def polled(self, current: ReadyRank) -> None:
        """Its turn comes again after the others'."""

    def deviates(self) -> bool:
        return False

    def choose(self, options: Sequence[T]) -> T:
        return options[0]
