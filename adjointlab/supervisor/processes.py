"""The processes that descend from this one, and their end: none may outlive the job that it belongs to.

A launcher may put each rank into a session of its own (MPICH's does), so neither process groups nor sessions find them
all; parentage does, given that orphans become children of this process and not of the system's first.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

__all__ = ["adopt_orphans", "descendants", "die_with_parent", "end_all"]

_DEATH_OF_PARENT: Final = 1  # PR_SET_PDEATHSIG
_ADOPTS: Final = 36  # PR_SET_CHILD_SUBREAPER


def adopt_orphans() -> None:
    """From now on, a descendant whose parent dies becomes a child of this process (on Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_ADOPTS, 1)


def die_with_parent() -> None:
    """To be called in a child: have it told to end when this process dies, even by ``SIGKILL`` (on Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DEATH_OF_PARENT, signal.SIGTERM)


def descendants(root: int | None = None) -> list[int]:
    """The processes that descend from `root` (default: this process), parents before their children."""
    children: dict[int, list[int]] = {}
    for process, parent in _parents():
        children.setdefault(parent, []).append(process)
    found: list[int] = []
    front = [os.getpid() if root is None else root]
    while front:
        front = [child for parent in front for child in children.get(parent, ())]
        found += front
    return found


def end_all(spared: frozenset[int] = frozenset(), within: float = 10.0) -> bool:
    """Kill every descendant of this process but those of `spared`; whether none is left.

    A process that sits in an uninterruptible call outlives even this for a while; `within` seconds it gets.
    """
    started = time.monotonic()
    while left := [process for process in descendants() if process not in spared]:
        for process in left:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        _reap(spared)
        if time.monotonic() - started > within:
            return False
        time.sleep(0.01)
    return True


def _reap(spared: frozenset[int]) -> None:
    """Take leave of children that have died, so that they do not stand in the table of processes."""
    for process, parent in _parents():
        if parent == os.getpid() and process not in spared:
            with suppress(ChildProcessError):
                os.waitpid(process, os.WNOHANG)


def _parents() -> list[tuple[int, int]]:
    """Every process of the machine with its parent."""
    if sys.platform != "linux":
        listed = subprocess.run(
            ["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True
        ).stdout.split()
        pairs = zip(map(int, listed[::2]), map(int, listed[1::2]), strict=True)
        return list(pairs)
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # it has just gone
                # "PID (NAME) STATE PARENT ...", and the name may hold anything.
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                found.append((int(entry.name), int(fields[1])))
    return found
