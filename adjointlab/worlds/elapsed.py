"""Time as it counts towards the limit of a watchdog: without time spent waiting for a processor or in a debugger."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from adjointlab.worlds.call_sites import frame_of_thread

__all__ = ["TIMES_IN_ALL", "Elapsed", "is_importlibs"]

_LONGEST_STEP: Final = 1.0
"""Longest time between two updates, in seconds, that is counted: if more has passed, the process was stopped."""

TIMES_IN_ALL: Final = 4
"""A run that makes calls, imports modules or compiles may take this many times the limit."""


class Elapsed:
    """Seconds that count towards a limit: in total, and since the last progress.

    The time between two updates counts without the part in which the thread was runnable but had no processor, and for at most
    a second: so neither a busy machine nor a stopped process uses up the limit.
    """

    def __init__(
        self, now: Callable[[], float] = time.monotonic, delayed: Callable[[int], float] | None = None
    ) -> None:
        self.total = 0.0
        self.idle = 0.0
        self._now = now
        self._delayed_of = delayed or _seconds_without_processor
        self._last = now()
        # A native thread id, and the seconds that the thread has waited for a processor.
        self._delay = (0, 0.0)
        self._progress: object = None

    def look(self, native_thread: int, progress: object) -> None:
        """Count the time since the last call; a `progress` that differs from the last one resets the idle time."""
        now, delay = self._now(), self._delayed_of(native_thread)
        before, self._delay = self._delay, (native_thread, delay)
        waited = delay - before[1] if before[0] == native_thread else 0.0
        step = max(0.0, min(now - self._last - waited, _LONGEST_STEP))
        self._last = now
        self.total += step
        self.idle = 0.0 if progress != self._progress else self.idle + step
        self._progress = progress

    def exceeded(self, limit: float, thread: int) -> float:
        """The limit in seconds that has been exceeded; 0 if none has."""
        if self.idle < limit and self.total < TIMES_IN_ALL * limit:
            return 0.0
        is_debugged, is_preparing = _is_debugged_or_preparing(thread)
        if is_debugged:
            return 0.0
        if self.total >= TIMES_IN_ALL * limit:
            return TIMES_IN_ALL * limit
        return 0.0 if is_preparing else limit


def _seconds_without_processor(native_thread: int) -> float:
    """Seconds for which a thread was runnable but had no processor; 0 if the system does not report it."""
    try:
        # See "sched-stats" in the kernel's documentation. Throttling by a cgroup's quota is included.
        text = Path(f"/proc/self/task/{native_thread}/schedstat").read_text(encoding="ascii")
        return int(text.split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


_DEBUGGERS: Final = (os.sep + "bdb.py", os.sep + "pdb.py")
_DEBUGGER_PACKAGES: Final = (os.sep + "debugpy" + os.sep, os.sep + "pydevd", os.sep + "_pydev")
_COMPILERS: Final = tuple(
    os.sep + file.replace("/", os.sep)
    for file in (
        "utils/cpp_extension.py",
        "_dynamo/convert_frame.py",
        "_inductor/compile_fx.py",
        "numba/core/dispatcher.py",
    )
)
"""Files that are on a thread's stack while it compiles, but not while it runs compiled code."""
_IMPORTLIB: Final = "<frozen importlib"


def _is_debugged_or_preparing(thread: int) -> tuple[bool, bool]:
    """Return whether a thread is in a debugger, and whether it is importing or compiling, which takes long only once."""
    frame = frame_of_thread(thread)
    files = set()
    while frame is not None:
        files.add(frame.f_code.co_filename)
        frame = frame.f_back
    is_debugged = any(
        file.endswith(_DEBUGGERS) or any(each in file for each in _DEBUGGER_PACKAGES) for file in files
    )
    return is_debugged, any(is_importlibs(file) or file.endswith(_COMPILERS) for file in files)


def is_importlibs(filename: str) -> bool:
    """Return True for a file of Python's import system."""
    return filename.startswith(_IMPORTLIB)
