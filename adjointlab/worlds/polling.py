"""Waiting by polling, so that every wait can be abandoned.

A waiting process polls and, between polls, sleeps for increasing periods, so that the processor is free for the ranks that it
waits for. Buffers of an abandoned wait are never freed, because others may still write there.
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
# The worst-case delay until a peer's answer is noticed. An idle process wakes up a thousand times a second.
_LONGEST_SLEEP: Final = 1e-3

#: Yield the processor to another process that is ready to run.
yield_processor: Callable[[], None] = getattr(os, "sched_yield", lambda: time.sleep(0))


class Pace(NamedTuple):
    """Rate of polling in a wait: without sleeping for `before` seconds, and after each sleep for `after` times its length.

    MPI makes progress only within calls, and moves a large message in many pieces. With a sleep after each piece, 16 MiB take a
    thousand times as long as without.
    """

    before: float
    after: float


#: For small messages. A sleep costs about 60 microseconds at the least, more than most messages take.
RESTFUL = Pace(1e-3, 0.0)


class Rests:
    """The sleeps of one wait, which begins when this object is made."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._started = perf_counter()
        self._next = self._started + pace.before

    @property
    def waited(self) -> float:
        """Seconds since the beginning of the wait."""
        return perf_counter() - self._started

    def rest(self) -> None:
        """Sleep for about a tenth of the time waited so far, unless the pace calls for more polls first."""
        now = perf_counter()
        if now < self._next:
            return
        seconds = min(_LONGEST_SLEEP, max(_SHORTEST_SLEEP, (now - self._started) / 10))
        time.sleep(seconds)
        self._next = perf_counter() + self._pace.after * seconds


def poll_until(
    ready: Callable[[], T | None], between: Callable[[float], object], polls: int, pace: Pace = RESTFUL
) -> T:
    """Poll `ready` until it returns a true value, and return that.

    After every `polls` attempts, `between` is called with the seconds waited so far; it handles all other events, and can end
    the wait by raising. Then the process sleeps, if the `pace` says so (:class:`Rests`).
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
    """Keep `thing` and everything that it refers to alive until the process has ended.

    MPI may write into the buffer of an abandoned receive until ``MPI_Finalize``, which mpi4py calls after Python has
    destroyed its objects. A global list would be cleared before that; an extra reference is never released.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


class Channel(Protocol):
    """Messages of plain data between all processes of a job, separate from those of user code."""

    rank: int
    size: int

    def send(self, message: object, dest: int, tag: int) -> None:
        """Send without waiting."""

    def send_to_others(self, message: object, tag: int, size: int | None = None) -> None:
        """Send to every other rank (below `size`, if it is given)."""

    def poll(self, source: int, tag: int) -> Any:
        """Return the next message, or None if none has arrived."""

    def receive(self, source: int, tag: int, between: Callable[[float], object]) -> Any:
        """Wait for the next message; `between` is called as by :func:`poll_until`."""

    def all_sent(self) -> bool:
        """Return True if all sends have completed."""

    def flush(self) -> None:
        """Wait until all sends have completed."""

    def abandon_unsent(self) -> None:
        """Stop waiting for sends that may never be received."""

    def leave(self, patience: float) -> None:
        """Wait until rank 0, which has a report to print, is ready to leave, unless the launcher waits for it anyway."""

    def end_job(self, code: int) -> None:
        """End all processes at once: since some do not answer, no rank could leave in order."""
