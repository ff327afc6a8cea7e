"""The seconds that count for the limit of a watchdog: not those without a processor, nor in a debugger."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from adjointlab.worlds.call_sites import frame_of_thread

__all__ = ["TIMES_IN_ALL", "Elapsed", "is_importlibs"]

_LONGEST_STEP: Final = 1.0
"""Seconds between two looks at most: where more have passed, this process was stopped."""

TIMES_IN_ALL: Final = 4
"""A run that makes calls, imports modules or compiles may last so many times the limit."""


class Elapsed:
    """Seconds that count for a limit: in all, and since the last progress.

    A step between two looks counts without the seconds in which the thread could have run and had no processor, and never for
    more than a second: so neither a busy machine nor a process that was stopped brings the limit nearer.
    """

    def __init__(
        self, now: Callable[[], float] = time.monotonic, delayed: Callable[[int], float] | None = None
    ) -> None:
        self.total = 0.0
        self.idle = 0.0
        self._now = now
        self._delayed_of = delayed or _seconds_without_processor
        self._last = now()
        # A thread, and the seconds that it has waited for a processor.
        self._delay = (0, 0.0)
        self._progress: object = None

    def look(self, native_thread: int, progress: object) -> None:
        """Count the step since the last look; `progress` differs from that of then if there was any."""
        now, delay = self._now(), self._delayed_of(native_thread)
        before, self._delay = self._delay, (native_thread, delay)
        waited = delay - before[1] if before[0] == native_thread else 0.0
        step = max(0.0, min(now - self._last - waited, _LONGEST_STEP))
        self._last = now
        self.total += step
        self.idle = 0.0 if progress != self._progress else self.idle + step
        self._progress = progress

    def exceeded(self, limit: float, thread: int) -> float:
        """Seconds that are exceeded; 0 where none are."""
        if self.idle < limit and self.total < TIMES_IN_ALL * limit:
            return 0.0
        is_debugged, is_preparing = _is_debugged_or_preparing(thread)
        if is_debugged:
            return 0.0
        if self.total >= TIMES_IN_ALL * limit:
            return TIMES_IN_ALL * limit
        return 0.0 if is_preparing else limit


def _seconds_without_processor(native_thread: int) -> float:
    """Seconds for which a thread could have run and had no processor; 0 where the system does not say."""
    try:
        # See "sched-stats" in the documentation of the kernel; a cgroup's quota counts, too.
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
"""Files of which a thread has one on its stack while it compiles, and not while it runs what was compiled."""
_IMPORTLIB: Final = "<frozen importlib"


def _is_debugged_or_preparing(thread: int) -> tuple[bool, bool]:
    """Tell if a thread sits in a debugger, and if it imports or compiles, which takes long once."""
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
