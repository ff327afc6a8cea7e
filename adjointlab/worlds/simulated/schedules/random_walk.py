"""Random schedules: a random rank at every turn, deviations by chance."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TypeVar

from adjointlab.worlds.simulated.schedules.strategy import Ready, ReadyRank, Strategy

__all__ = ["RandomWalk"]

T = TypeVar("T")
R = TypeVar("R", bound=ReadyRank)

_PREEMPTION_CHANCE = 0.25


class RandomWalk(Strategy):
    """Draws every decision from one stream.

    How often a run deviates is drawn once for each run, because some faults need many deviations and some need few.
    """

    orderly = False

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._chance = self._random.choice((0.25, 0.5, 1.0))

    def next(self, ready: Ready[R]) -> R:
        index = int(self._random.random() * len(ready))  # faster than randrange
        ready[index], ready[-1] = ready[-1], ready[index]  # cheaper than removing from the middle
        return ready.pop()

    def preempts(self, current: R, ready: Ready[R]) -> bool:
        return self._random.random() < _PREEMPTION_CHANCE

    def polled(self, current: ReadyRank) -> None:
        """Nothing: it may be drawn again at once, as any other."""

    def deviates(self) -> bool:
        return self._random.random() < self._chance

    def choose(self, options: Sequence[T]) -> T:
        return self._random.choice(options)
