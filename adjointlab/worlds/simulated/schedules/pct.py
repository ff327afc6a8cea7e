"""Probabilistic concurrency testing (PCT): random priorities, and a few points at which they change [Burckhardt10].

A fault of depth d needs d ordering constraints between steps of different ranks. With n ranks and k
steps, a run finds it with a probability of at least 1 / (n k**(d-1)), independently of the number of schedules. A random walk rarely
lets one rank run far ahead of another; here a rank of low priority stays behind until no other rank can run.

A step is an MPI call of a rank. Their number k is unknown before the run. It is drawn from powers of two, which
reduces the probability by a factor equal to the number of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TypeVar

from adjointlab.worlds.simulated.schedules.strategy import Ready, ReadyRank, Strategy

__all__ = ["PriorityWalk"]

T = TypeVar("T")
R = TypeVar("R", bound=ReadyRank)

_LOG_STEPS = (2, 12)  # from 4 calls to 4,096


class PriorityWalk(Strategy):
    """Runs the rank of the highest priority at every step; at `depth` - 1 random steps the running rank's priority is lowered."""

    orderly = False

    def __init__(self, seed: int, depth: int) -> None:
        self._random = Random(seed)
        self._chance = self._random.choice((0.0, 0.25, 0.5, 1.0))
        # By rank, drawn from [0, 1) when first needed. Lowered priorities are all smaller: -1, -2, ...
        self._priorities: dict[int, float] = {}
        steps = 2 ** self._random.randint(*_LOG_STEPS)
        self._changes = {self._random.randint(1, steps): float(-number) for number in range(1, depth)}
        self._step = 0
        self._lowest = -float(depth)

    def next(self, ready: Ready[R]) -> R:
        first = max(ready, key=self._priority)
        ready.remove(first)
        return first

    def preempts(self, current: R, ready: Ready[R]) -> bool:
        self._step += 1
        change = self._changes.get(self._step)
        if change is not None:
            self._priorities[current.rank] = change
        own = self._priority(current)
        return any(self._priority(other) > own for other in ready)

    def polled(self, current: ReadyRank) -> None:
        """Lower its priority below all others: otherwise a rank of high priority would poll for ever for messages that they must send."""
        self._lowest -= 1
        self._priorities[current.rank] = self._lowest

    def deviates(self) -> bool:
        return self._random.random() < self._chance

    def choose(self, options: Sequence[T]) -> T:
        return self._random.choice(options)

    def _priority(self, turn: ReadyRank) -> float:
        known = self._priorities.get(turn.rank)
        if known is None:
            known = self._priorities[turn.rank] = self._random.random()
        return known
