"""Probabilistic concurrency testing (PCT): random priorities, and a few points at which they change.

The algorithm PCT of [Burckhardt10]. A fault of depth d needs d orderings between steps of different ranks. With n ranks and k
steps a run finds it with a probability of at least 1 / (n k**(d-1)), however many schedules there are. A random walk hardly
ever lets one rank run far ahead of another; here a rank of low priority stays behind until it is the only one that can run.

The step of a rank is here its call of MPI. Their number k is not known before the run. It is drawn among powers of two, at the
price of a factor that is the logarithm of its range.
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
    """Runs the rank of the highest priority at every step; at `depth` - 1 random steps the running one's is lowered."""

    orderly = False

    def __init__(self, seed: int, depth: int) -> None:
        self._random = Random(seed)
        self._chance = self._random.choice((0.0, 0.25, 0.5, 1.0))
        # By rank, drawn from 0 to 1 when first asked for; those that ranks are lowered to are all below: -1, -2, ...
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
        """Lower its priority below all others': else a rank of high priority would poll for ever for what they must send."""
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
