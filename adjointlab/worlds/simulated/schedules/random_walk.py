"""A random rank at every turn, and nondeterminism by chance."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TypeVar

from adjointlab.worlds.simulated.schedules.strategy import Ready, ReadyRank, Strategy

__all__ = ["RandomWalk"]

T = TypeVar("T")
R = TypeVar("R", bound=ReadyRank)

_GIVES_WAY = 0.25


class RandomWalk(Strategy):
    """Every choice is drawn from one stream; how often nondeterminism are taken is drawn once."""

    orderly = False

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._chance = self._random.choice((0.25, 0.5, 1.0))

    def next(self, ready: Ready[R]) -> R:
        index = int(self._random.random() * len(ready))
        ready[index], ready[-1] = ready[-1], ready[index]
        return ready.pop()

    def preempts(self, current: R, ready: Ready[R]) -> bool:
        return self._random.random() < _GIVES_WAY

    def polled(self, current: ReadyRank) -> None:
        """It may be taken again at once."""

    def deviates(self) -> bool:
        return self._random.random() < self._chance

    def choose(self, options: Sequence[T]) -> T:
        return self._random.choice(options)
