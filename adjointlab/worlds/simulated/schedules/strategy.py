"""Interface of scheduling strategies, which choose the rank that runs next and resolve the nondeterminism that MPI allows.

The standard leaves open whether a send waits for its receive, when its buffer is read, when a receive buffer is filled, when
a test finds that a request is complete, or a probe that a message has arrived, how late a message arrives, and which sender a
wildcard receive matches. Most MPI libraries behave alike most of the time, so code that relies on that behaviour fails
elsewhere, or rarely. A strategy deviates from it on purpose.
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
"""The ranks that can run, in the order in which they became ready."""


class Strategy(Protocol):
    """Makes all free choices in one run."""

    orderly: bool
    """True if ranks run in turn and nothing ever deviates: then only :meth:`next` need be called, which saves time."""

    def next(self, ready: Ready[R]) -> R:
        """Choose the rank that runs next, remove it from `ready`, which is not empty, and return it."""

    def preempts(self, current: R, ready: Ready[R]) -> bool:
        """Return True to let other ranks run before the next call of `current`."""

    def polled(self, current: R) -> None:
        """Handle an unsuccessful poll of `current`, after which other ranks should run first."""

    def deviates(self) -> bool:
        """Return True to deviate at this point from prompt and orderly delivery."""

    def choose(self, options: Sequence[T]) -> T:
        """Return one of `options`, all of which are legal; there is at least one. The first is the usual one."""
