"""Finds and kills the descendants of this process: none may outlive the job that it belongs to.

A launcher may put each rank into a separate session (MPICH's does), so neither process groups nor sessions contain them
all. Parentage does, provided that a process whose parent has died becomes a child of the supervisor rather than of
init; on Linux the supervisor requests that (:func:`adopt_orphans`).
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

__all__ = ["adopt_orphans", "descendants", "die_with_parent", "kill_descendants"]

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36

if sys.platform == "linux":
    # Loaded here and not in die_with_parent, which runs in a forked child: another thread may have held the loader's lock.
    _prctl = ctypes.CDLL(None).prctl


def adopt_orphans() -> None:
    """From now on, make a descendant whose parent dies a child of this process (on Linux)."""
    if sys.platform == "linux":
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """Called in a forked child: make it receive SIGTERM when this process dies, even by SIGKILL (on Linux)."""
    if sys.platform == "linux":
        _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def descendants(root: int | None = None) -> list[int]:
    """The processes that descend from `root` (default: this process), parents before their children."""
    children: dict[int, list[int]] = {}
    for process, parent in _parents():
        children.setdefault(parent, []).append(process)
    found: list[int] = []
    generation = [os.getpid() if root is None else root]
    while generation:
        generation = [child for parent in generation for child in children.get(parent, ())]
        found += generation
    return found


def kill_descendants(spared: frozenset[int], within: float = 10.0) -> int:
    """Kill every descendant of this process except `spared`; return the number of those that are left.

    Repeats, because a process may start another one after the listing. A process in an uninterruptible
    system call (a network file system that does not answer) survives even SIGKILL, and one of another user (by sudo)
    cannot be sent it, so this gives up after `within` seconds.
    """
    started = time.monotonic()
    while left := [process for process in descendants() if process not in spared]:
        for process in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        _reap(spared)
        if time.monotonic() - started > within:
            break
        time.sleep(0.01)
    return len(left)


def _reap(spared: frozenset[int]) -> None:
    """Reap children that have died: until then they are zombies, and count as descendants."""
    for process, parent in _parents():
        if parent == os.getpid() and process not in spared:
            with suppress(ChildProcessError):
                os.waitpid(process, os.WNOHANG)


def _parents() -> list[tuple[int, int]]:
    """Every process of the machine with its parent."""
    if sys.platform != "linux":
        return _listed_by_ps()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # it has just ended
                # "PID (NAME) STATE PARENT ...", and the name may hold blanks and parentheses.
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                found.append((int(entry.name), int(fields[1])))
    return found


def _listed_by_ps() -> list[tuple[int, int]]:
    command = ["ps", "-A", "-o", "pid=,ppid="]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as ps:
        numbers = [int(number) for number in ps.communicate()[0].split()]
    if ps.returncode:
        raise subprocess.CalledProcessError(ps.returncode, command)
    listed = zip(numbers[::2], numbers[1::2], strict=True)
    # ps lists itself as a child of this process, but has ended by now.
    return [(process, parent) for process, parent in listed if process != ps.pid]
