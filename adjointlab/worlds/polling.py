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
from typing import Any, Final, Protocol, TypeVar

__all__ = ["Channel", "keep_alive", "poll_until", "rest", "yield_processor"]

T = TypeVar("T")

# Waits shorter than this only yield: a sleep costs about 60 microseconds at the least, more than most messages take.
_NO_SLEEP_BEFORE: Final = 1e-3
_SHORTEST_SLEEP: Final = 5e-5
# A peer's answer is noticed this late at the worst, and an idle process wakes up a thousand times a second.
_LONGEST_SLEEP: Final = 1e-3

#: Let another process have the processor, if one wants it.
yield_processor: Callable[[], None] = getattr(os, "sched_yield", lambda: time.sleep(0))


def poll_until(ready: Callable[[], T | None], between: Callable[[float], object], polls: int) -> T:
    """Poll `ready` until it returns something true, and return that.

    After every `polls` attempts `between` is called with the seconds waited so far; it looks after everything else that
    may have happened, and ends the wait by raising. Then the process rests.
    """
    started = perf_counter()
    while True:
        for _ in range(polls):
            if found := ready():
                return found
            yield_processor()
        waited = perf_counter() - started
        between(waited)
        rest(waited)


def rest(waited: float) -> None:
    """Give the processor away for about a tenth of the time waited; the first millisecond of a wait only yields."""
    if waited >= _NO_SLEEP_BEFORE:
        time.sleep(min(_LONGEST_SLEEP, max(_SHORTEST_SLEEP, waited / 10)))


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
