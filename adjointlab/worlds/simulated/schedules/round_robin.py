"""Ranks in turn and prompt delivery: what most MPI libraries do most of the time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from adjointlab.worlds.simulated.schedules.strategy import Ready, ReadyRank, Strategy

__all__ = ["RoundRobin"]

T = TypeVar("T")
R = TypeVar("R", bound=ReadyRank)


class RoundRobin(Strategy):
    """Runs the rank that has been ready for longest, and never deviates."""

    orderly = True

    def next(self, ready: Ready[R]) -> R:
        return ready.popleft()

    def preempts(self, current: R, ready: Ready[R]) -> bool:
        return False

    def polled(self, current: ReadyRank) -> None:
        """Nothing: its turn comes after the others'."""

    def deviates(self) -> bool:
        return False

    def choose(self, options: Sequence[T]) -> T:
        return options[0]
