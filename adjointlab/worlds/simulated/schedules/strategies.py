"""Makes the strategy for a schedule; and the two simplest strategies, round-robin and random walk."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TypeVar

from adjointlab.worlds.schedule import Schedule
from adjointlab.worlds.simulated.schedules.pct import PriorityWalk
from adjointlab.worlds.simulated.schedules.replay import Replay
from adjointlab.worlds.simulated.schedules.strategy import Ready, ReadyRank, Strategy

__all__ = ["RandomWalk", "RoundRobin", "strategy_for"]

T = TypeVar("T")
R = TypeVar("R", bound=ReadyRank)

_PREEMPTION_CHANCE = 0.25


def strategy_for(schedule: Schedule) -> Strategy:
    """Return a strategy for one run under `schedule`; raises `ValueError` if its decisions are not a valid record."""
    strategy: Strategy = RoundRobin()
    if schedule.strategy == "pct":
        strategy = PriorityWalk(schedule.seed, schedule.depth)
    elif schedule.strategy == "random":
        strategy = RandomWalk(schedule.seed)
    return Replay(schedule.decisions, strategy) if schedule.decisions else strategy


class RoundRobin(Strategy):
    """Runs the rank that has been ready for longest, and never deviates: like most MPI libraries most of the time."""

    orderly = True

    def next(self, ready: Ready[R]) -> R:
        return ready.popleft()

    def preempts(self, current: R, ready: Ready[R]) -> bool:
        return False

    def polled(self, current: ReadyRank) -> None:
        """Do nothing: the other ranks run first anyway."""

    def deviates(self) -> bool:
        return False

    def choose(self, options: Sequence[T]) -> T:
        return options[0]


class RandomWalk(Strategy):
    """Draws every decision from one stream.

    The probability of deviations is drawn once for each run, because some faults need many deviations and some need few.
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
        """Do nothing: it may be drawn again at once, like any other rank."""

    def deviates(self) -> bool:
        return self._random.random() < self._chance

    def choose(self, options: Sequence[T]) -> T:
        return self._random.choice(options)
