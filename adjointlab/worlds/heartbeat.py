"""Heartbeats: when and where each rank last executed Python code, for the report on a rank that no longer answers messages.

A rank that is stopped, or in a C call that holds the GIL, cannot be asked. So the watchdog's thread of every rank periodically
writes its place to memory that the ranks of one machine share. Ranks of other machines are not covered.
"""

from __future__ import annotations

import mmap
import os
import socket
import struct
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

__all__ = ["Heartbeats", "LastSeen"]

_SIZE: Final = 512
_TIME: Final = struct.Struct("d")  # of the monotonic clock, which the processes of a machine share

_STATES: Final = {
    "T": "is stopped by a signal",
    "t": "is stopped by a debugger",
    "Z": "has ended",
    "X": "has ended",
    "D": "waits for a disk",
    "R": "is busy in code that holds Python's lock",
    "S": "waits in code that holds Python's lock",
}


class LastSeen(NamedTuple):
    """The last heartbeat of a rank."""

    at: float
    place: str
    process: int

    def __str__(self) -> str:
        ago = time.monotonic() - self.at
        return f"{_state(self.process)}; it was last seen {ago:.0f} s ago, at {self.place}"


class Heartbeats:
    """The heartbeats of the ranks on this machine. The constructor is collective; `allgather` collects one object from each process."""

    def __init__(self, rank: int, allgather: Callable[[object], list[Any]]) -> None:
        path = ""
        with suppress(OSError):
            descriptor, path = tempfile.mkstemp(prefix="adjointlab-")
            os.ftruncate(descriptor, _SIZE)
            os.close(descriptor)
        host = socket.gethostname()
        known: list[tuple[str, int, str]] = allgather((host, os.getpid(), path))
        self._processes = [process for _, process, _ in known]
        self._of = {
            rank: memory
            for rank, (its_host, _, its_path) in enumerate(known)
            if its_host == host and (memory := _mapped(its_path)) is not None
        }
        self._own = self._of.get(rank)
        allgather(None)  # a barrier: after it, all have opened the files
        if path:
            Path(path).unlink(missing_ok=True)

    def beat(self, place: str) -> None:
        """Record that this rank is running, and where."""
        if self._own is not None:
            text = place.encode(errors="replace")[-(_SIZE - _TIME.size - 1) :] + b"\0"
            self._own[_TIME.size : _TIME.size + len(text)] = text
            _TIME.pack_into(self._own, 0, time.monotonic())

    def last_seen(self, rank: int) -> LastSeen | None:
        """The last heartbeat of `rank`; `None` if it is unknown."""
        memory = self._of.get(rank)
        at = 0.0 if memory is None else _TIME.unpack_from(memory)[0]
        if memory is None or not at:
            return None
        text = memory[_TIME.size :].partition(b"\0")[0].decode(errors="replace")
        return LastSeen(at, text, self._processes[rank])


def _mapped(path: str) -> mmap.mmap | None:
    """The memory map of a file; `None` if it cannot be opened on this machine."""
    try:
        with open(path, "r+b") as file:
            return mmap.mmap(file.fileno(), _SIZE)
    except (OSError, ValueError):
        return None


def _state(process: int) -> str:
    """Description of the state of a process on this machine."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
        state = text.rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return f"its process ({process}) is gone"
    return f"its process ({process}) {_STATES.get(state, f'is in state {state}')}"
