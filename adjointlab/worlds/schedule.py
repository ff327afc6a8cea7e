"""A schedule as data: with the body, the payload and the number of ranks it determines a simulated run.

Exactly one rank runs at a time, one strategy decides all that is free, and its decisions follow from its seed and the
questions so far: so the same schedule makes the same run. (User code may have nondeterminism of its own, such as the order
of a set of strings.) The record of decisions replays a run even where another version of the lab would draw other numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Literal, get_args

from adjointlab.worlds.decisions import decode

__all__ = ["Kind", "Schedule", "schedules_from"]

Kind = Literal["round-robin", "random", "pct"]

_KINDS = get_args(Kind)
_DEPTHS = (2, 3, 4)  # most faults need no more orderings than that [Burckhardt10]


@dataclass(frozen=True)
class Schedule:
    """A `strategy` with its `seed`, and its `depth` if it has one (pct); `decisions` as recorded are followed first."""

    strategy: Kind = "round-robin"
    seed: int = 0
    depth: int = 0
    decisions: str = ""

    def __post_init__(self) -> None:
        if self.strategy not in _KINDS:
            raise ValueError(f"strategy: {self.strategy!r} is not one of {', '.join(_KINDS)}")
        if (self.depth < 1) == (self.strategy == "pct"):
            raise ValueError(f"depth: at least 1 for pct, and 0 for any other, not {self.depth}")
        if self.decisions:
            decode(self.decisions)  # raises

    @staticmethod
    def of(seed: int) -> Schedule:
        """The schedule that a bare seed means: ranks in turn for 0, a random one for any other."""
        return Schedule("random", seed) if seed else Schedule()

    def __str__(self) -> str:
        if self.strategy == "round-robin":
            return "ranks in turn"
        depth = f", depth {self.depth}" if self.depth else ""
        return f"{self.strategy}{depth}, seed {self.seed}"


def schedules_from(seed: int, count: int) -> tuple[Schedule, ...]:
    """`count` schedules that follow from `seed`, the first of which is :meth:`Schedule.of` it.

    Then come, by turns, schedules of bounded depth and random ones.
    """
    return tuple(schedule for schedule, _ in zip(_endless(seed), range(count), strict=False))


def _endless(seed: int) -> Iterator[Schedule]:
    yield Schedule.of(seed)
    random = Random(seed)
    while True:
        yield Schedule("pct", random.randrange(1, 2**16), random.choice(_DEPTHS))
        yield Schedule("random", random.randrange(1, 2**16))
