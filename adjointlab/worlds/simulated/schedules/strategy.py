"""Questions that a scheduling strategy decides: which rank runs next, and how a run uses the freedom that MPI leaves.

The standard leaves open whether a send waits for its receive, when its buffer is read, when a receive buffer is filled, when
a test finds that a request is complete, or a probe that a message is there, how late a message arrives, and which sender a
wildcard receive matches. Most MPI libraries do most of this in the same way most of the time, so code that relies on it fails
elsewhere, or rarely. A strategy deviates from that usual way on purpose.
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
    """True if ranks run in turn and nothing ever deviates: then nothing but :meth:`next` need be asked, which saves time."""

    def next(self, ready: Ready[R]) -> R:
        """Remove from `ready`, which is not empty, the rank that runs next, and return it."""

    def preempts(self, current: R, ready: Ready[R]) -> bool:
        """Return True to let others run before `current` makes the call that it is about to make."""

    def polled(self, current: R) -> None:
        """Take note that `current` has polled in vain, so that the others come first."""

    def deviates(self) -> bool:
        """Return True to deviate, here and now, from prompt and orderly delivery."""

    def choose(self, options: Sequence[T]) -> T:
        """Return one of `options`, which are not empty and all legal. The first is the usual one."""
