"""What a scheduling strategy decides: who runs next, and which of the standard's nondeterminism a run takes.

The nondeterminism: whether a send waits for its receive, when its buffer is read, when a receive buffer is filled, when what
has happened shows, and which sender a wildcard receive hears first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol, TypeVar

__all__ = ["Ready", "ReadyRank", "Strategy"]

T = TypeVar("T")


class ReadyRank(Protocol):
    """A rank that can run."""

    @property
    def rank(self) -> int: ...


R = TypeVar("R", bound=ReadyRank)

Ready = deque[R]
"""The ranks that can run, in the order in which they became able to."""


class Strategy(Protocol):
    """Decides all that is free in one run."""

    orderly: bool
    """Whether ranks are taken in turn and no liberty ever is: then nothing but :meth:`next` need be asked."""

    def next(self, ready: Ready[R]) -> R:
        """Who runs next; removed from `ready`, which is not empty."""

    def preempts(self, current: R, ready: Ready[R]) -> bool:
        """Whether `current`, about to make a call, lets others run first."""

    def polled(self, current: R) -> None:
        """`current` has asked in vain, and the others come first."""

    def deviates(self) -> bool:
        """Whether to take the liberty that offers itself."""

    def choose(self, options: Sequence[T]) -> T:
        """One of `options`, all of which are legal and of which there is one at least."""
