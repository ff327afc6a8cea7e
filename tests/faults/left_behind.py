"""The processes that a job has left running."""

from __future__ import annotations

import os
import signal
from pathlib import Path

MARK = "ADJOINTLAB_FAULT"
"""A variable of the environment, by which the processes of a cell are known wherever they are."""


def left_in(folder: Path) -> list[str]:
    """The processes whose working directory is `folder` (on Linux)."""
    return list(processes_of(folder).values())


def processes_of(folder: Path, mark: str = "") -> dict[int, str]:
    """The processes whose working directory is `folder`, or whose environment has the `mark` (on Linux)."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_text().replace("\0", " ").strip()
            is_here = Path(os.readlink(process / "cwd")) == folder
            is_marked = mark and f"{MARK}={mark}".encode() in (process / "environ").read_bytes().split(b"\0")
            # A process that is ending has no memory any more, and so no command: it runs nothing, and is gone in a moment.
            if command and (is_here or is_marked):
                found[int(process.name)] = command
        except OSError:
            continue
    return found


def kill(process: int) -> None:
    """End a process, if it is still there."""
    try:
        os.kill(process, signal.SIGKILL)
    except OSError:
        return
