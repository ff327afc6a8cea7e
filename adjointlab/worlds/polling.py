"""Waiting by polling, so that every wait can be given up.

A process that waits polls and, between polls, rests for longer and longer, so that the processor is free for the ranks that it
waits for. What it gives up is never freed, because others may still write there.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from time import perf_counter
from typing import Any, Final, NamedTuple, Protocol, TypeVar

__all__ = ["RESTFUL", "Channel", "Pace", "Rests", "keep_alive", "poll_until", "yield_processor"]

T = TypeVar("T")

_SHORTEST_SLEEP: Final = 5e-5
# A peer's answer is noticed this late at the worst, and an idle process wakes up a thousand times a second.
_LONGEST_SLEEP: Final = 1e-3

#: Let another process have the processor, if one wants it.
yield_processor: Callable[[], None] = getattr(os, "sched_yield", lambda: time.sleep(0))


class Pace(NamedTuple):
    """Polling in a wait: without a rest for `before` seconds, and after each rest for `after` times as long.

    MPI moves messages within calls alone, and a large one in many pieces. With a rest after each piece 16 MiB take a thousand times as
    long as without any.
    """

    before: float
    after: float


#: For small messages. A sleep costs about 60 microseconds at the least, more than most messages take.
RESTFUL = Pace(1e-3, 0.0)


class Rests:
    """The rests of one wait, which begins now."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._started = perf_counter()
        self._next = self._started + pace.before

    @property
    def waited(self) -> float:
        """Seconds since the beginning of the wait."""
        return perf_counter() - self._started

    def rest(self) -> None:
        """Give the processor away for about a tenth of the time waited, unless the last rest was just now."""
        now = perf_counter()
        if now < self._next:
            return
        seconds = min(_LONGEST_SLEEP, max(_SHORTEST_SLEEP, (now - self._started) / 10))
        time.sleep(seconds)
        self._next = perf_counter() + self._pace.after * seconds


def poll_until(
    ready: Callable[[], T | None], between: Callable[[float], object], polls: int, pace: Pace = RESTFUL
) -> T:
    """Poll `ready` until it returns something true, and return that.

    After every `polls` attempts `between` is called with the seconds waited so far; it looks after everything else that
    may have happened, and ends the wait by raising. Then the process rests, if it is time to (:class:`Rests`).
    """
    rests = Rests(pace)
    while True:
        for _ in range(polls):
            if found := ready():
                return found
            yield_processor()
        between(rests.waited)
        rests.rest()


def keep_alive(thing: object) -> None:
    """Keep `thing` and what it refers to until the process has gone.

    MPI may write into the buffer of an abandoned receive until ``MPI_Finalize``, which mpi4py calls after Python has
    destroyed its objects. A global list would be emptied before; a reference count that is one too high is not.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


class Channel(Protocol):
    """Plain data between all processes of a job, apart from what user code sends. A wait is one for which `between` is called."""

    rank: int
    size: int

    def send(self, message: object, dest: int, tag: int) -> None:
        """Send without waiting."""

    def send_to_others(self, message: object, tag: int, size: int | None = None) -> None:
        """Send to every other rank (below `size`, where it is given)."""

    def poll(self, source: int, tag: int) -> Any:
        """Return the next message, or None if none has arrived."""

    def receive(self, source: int, tag: int, between: Callable[[float], object]) -> Any:
        """Wait for the next message; `between` as for :func:`poll_until`."""

    def all_sent(self) -> bool:
        """Return True if all that was sent has gone out."""

    def flush(self) -> None:
        """Wait until all that was sent has gone out."""

    def abandon_unsent(self) -> None:
        """Wait no longer for messages that nobody may ever receive."""

    def leave(self, patience: float) -> None:
        """Wait for rank 0 to be ready to leave, which has a report to print, unless the launcher waits for it anyway."""

    def end_job(self, code: int) -> None:
        """End all processes at once: some do not answer, so nobody could leave in order."""
