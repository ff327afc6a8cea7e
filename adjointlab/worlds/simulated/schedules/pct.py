"""Probabilistic concurrency testing: random priorities, and a few points at which they change.

The algorithm PCT of [Burckhardt10]. A fault of depth d needs d orderings between steps of different ranks. With n ranks and k
steps a run finds it with a probability of at least 1 / (n k**(d-1)), however many schedules there are: a rank that has to be
far behind stays so, which a random walk hardly ever brings about.

Here k, the number of calls of all ranks, is not known before the run. It is drawn among powers of two, at the price of a
factor that is the logarithm of its range.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TypeVar

from adjointlab.worlds.simulated.schedules.strategy import Ready, Strategy, Turn

__all__ = ["PriorityWalk"]

T = TypeVar("T")
R = TypeVar("R", bound=Turn)

_LOG_STEPS = (2, 12)


class PriorityWalk(Strategy):
    """The rank of the highest priority runs, at every step; at `depth` - 1 random steps the running one's is lowered."""

    orderly = False

    def __init__(self, seed: int, depth: int) -> None:
        self._random = Random(seed)
        self._chance = self._random.choice((0.0, 0.25, 0.5, 1.0))
        self._priorities: dict[
            int, float
        ] = {}  # by rank; drawn when first asked for, all above those of changes
        steps = 2 ** self._random.randint(*_LOG_STEPS)
        self._changes = {self._random.randint(1, steps): float(-number) for number in range(1, depth)}
        self._step = 0
        self._lowest = -float(depth)

    def next(self, ready: Ready[R]) -> R:
        first = max(ready, key=self._priority)
        ready.remove(first)
        return first

    def gives_way(self, current: R, ready: Ready[R]) -> bool:
        self._step += 1
        change = self._changes.get(self._step)
        if change is not None:
            self._priorities[current.rank] = change
        own = self._priority(current)
        return any(self._priority(other) > own for other in ready)

    def polled(self, current: Turn) -> None:
        """Behind all others, for what it waits for may have to come from them."""
        self._lowest -= 1
        self._priorities[current.rank] = self._lowest

    def taken(self) -> bool:
        return self._random.random() < self._chance

    def choose(self, options: Sequence[T]) -> T:
        return self._random.choice(options)

    def _priority(self, turn: Turn) -> float:
        known = self._priorities.get(turn.rank)
        if known is None:
            known = self._priorities[turn.rank] = self._random.random()
        return known
