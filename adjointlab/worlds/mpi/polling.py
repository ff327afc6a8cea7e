"""Waiting by polling: no call here blocks inside MPI, so every wait can be given up.

A process that waits polls MPI and, between polls, rests for longer and longer, so that the processor is free for the
ranks that it waits for. What it gives up is never freed, because MPI may still write there.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from time import perf_counter
from typing import Any, Final, TypeVar

from mpi4py import MPI

from adjointlab.worlds.interposition import own_handle

__all__ = ["ObjectChannel", "keep_alive", "poll_until", "processors", "rest", "yield_processor"]

T = TypeVar("T")

# Waits shorter than this only yield: a sleep costs about 60 microseconds at the least, more than most messages take.
_NO_SLEEP_BEFORE: Final = 1e-3
_SHORTEST_SLEEP: Final = 5e-5
# A peer's answer is noticed this late at the worst, and an idle process wakes up a thousand times a second.
_LONGEST_SLEEP: Final = 1e-3

#: Let another process have the processor, if one wants it.
yield_processor: Callable[[], None] = getattr(os, "sched_yield", lambda: time.sleep(0))


def processors() -> int:
    """Number of processors that this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)
    return (os.cpu_count() or 1) if allowed is None else len(allowed(0))


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


class ObjectChannel:
    """Pickled objects between all processes of a private copy of `comm`. Making one is collective.

    User code never sees this communicator, so it keeps working whatever becomes of those that user code works on.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.comm = own_handle(comm).Dup()
        self.rank = self.comm.rank
        self.size = self.comm.size
        self._sending: list[MPI.Request] = []

    def send(self, message: object, dest: int, tag: int) -> None:
        """Send without waiting; a large message goes out while this process polls for others."""
        request = self.comm.isend(message, dest, tag)
        if not request.Test():
            # Freeing the request would free the pickle that MPI has yet to send.
            self._sending.append(request)
            self.all_sent()

    def send_to_others(self, message: object, tag: int, size: int | None = None) -> None:
        """Send to every other rank (below `size`, where it is given)."""
        for rank in range(self.size if size is None else size):
            if rank != self.rank:
                self.send(message, rank, tag)

    def poll(self, source: int, tag: int) -> Any:
        """Return the next message, or None if none has arrived."""
        # MPI makes progress inside its own calls only: the first probe may do no more than let a message in, which the
        # second one then finds.
        message = self.comm.improbe(source, tag) or self.comm.improbe(source, tag)
        return None if message is None else message.recv()

    def receive(self, source: int, tag: int, between: Callable[[float], object]) -> Any:
        """Wait for the next message; `between` as for :func:`poll_until`."""
        # The matched message is waited for rather than its content, which may be false.
        return poll_until(lambda: self.comm.improbe(source, tag), between, polls=8).recv()

    def all_sent(self) -> bool:
        """Return True if all that was sent has gone out."""
        self._sending = [request for request in self._sending if not request.Test()]
        return not self._sending

    def flush(self) -> None:
        """Wait until all that was sent has gone out."""
        poll_until(self.all_sent, lambda waited: None, polls=1)

    def abandon_unsent(self) -> None:
        """Wait no longer for messages that nobody may ever receive."""
        for request in self._sending:
            keep_alive(request)
        self._sending = []
