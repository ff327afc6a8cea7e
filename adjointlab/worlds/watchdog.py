"""Watchdogs: they end a case that nothing else can, in which user code loops or sleeps without a call that could be cancelled.

A run has a time limit, and is ended in two steps. When the limit has passed, :class:`Overdue` is raised in the rank's own
thread. That ends a loop or (in a process of its own) a sleep as any exception would, so that the case is judged and shrunk
like any other. A rank that has not left a few seconds later sits in code that Python cannot interrupt, such as a call of MPI
that the guard does not know. Then the stacks of all threads are written, the case is put on disk by whichever process still
can, and the job is ended with exit code 3.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final

from adjointlab.worlds.call_sites import call_site_of_thread, is_lab, is_worlds

__all__ = [
    "Overdue",
    "OverdueReport",
    "RaisingWatchdog",
    "Watchdog",
    "overdue",
]

# Well above the patience of a single wait of MPI, which ends by itself and whose report says more.
_TIMES_PATIENCE: Final = 3.0
_SIMULATED_PATIENCE: Final = 10.0
_LIMIT_WHEN_SHRINKING: Final = 5.0
_SIGNAL: Final = signal.SIGUSR2

OverdueReport = Callable[[Any, str, str], str]
"""Stores the payload of a run as a failure, given a sentence about the rank that is overdue, and its stack.

Returns the text to print.
"""


class Overdue(Exception):
    """Raised in a rank that has not come back in time, and the outcome of its run."""


@dataclass
class Watchdog:
    """Limit on the time of a run, and the report when it does not end.

    `limit` is in seconds; by default it is three times the patience in force. `overdue_report` is set while a subject is
    checked, by the engine: worlds do not know how cases are stored.
    """

    limit: float | None = None
    stderr: int = 2  # a file descriptor, because pytest captures sys.stderr
    overdue_report: OverdueReport | None = None
    has_fired: bool = False

    def seconds(self, patience: float) -> float:
        """Limit in a world of that patience."""
        return _TIMES_PATIENCE * patience if self.limit is None else self.limit

    @property
    def seconds_in_simulation(self) -> float:
        """Limit where nothing waits for other processes."""
        limit = self.seconds(_SIMULATED_PATIENCE)
        # Once a case was overdue it is shrunk, and each smaller case that still is takes the whole limit.
        return min(limit, _LIMIT_WHEN_SHRINKING) if self.has_fired else limit

    @staticmethod
    def grace(limit: float) -> float:
        """Seconds between the exception and the end of the process."""
        return min(5.0, max(0.5, limit / 4))

    def say(self, text: str) -> None:
        """Print to the real standard error, whatever has become of it."""
        with suppress(OSError):
            os.write(self.stderr, text.encode(errors="replace"))

    def show_stacks(self, heading: str) -> None:
        """Print the stacks of all threads of this process."""
        self.say(f"\nadjointlab: {heading}\n")
        with suppress(OSError, ValueError):
            faulthandler.dump_traceback(self.stderr, all_threads=True)

    def report_overdue(self, who: str, limit: float, payload: object, thread: int) -> None:
        """Print the stacks and store the case, before the process is ended."""
        place = call_site_of_thread(thread)
        self.show_stacks(
            f"{who} has not come back within {limit:g} s, at {place}; the stacks of its threads:"
        )
        if self.overdue_report is not None:
            try:
                late = f"{who} did not come back within {limit:g} s, at {place}"
                self.say(f"\n{self.overdue_report(payload, late, stack_of_thread(thread))}\n")
            except Exception as problem:
                self.say(f"\nadjointlab: the case could not be stored: {type(problem).__name__}: {problem}\n")


def stack_of_thread(thread: int) -> str:
    """Lines of user code that a thread is in, the innermost last."""
    frame = sys._current_frames().get(thread)
    entries = () if frame is None else traceback.extract_stack(frame)
    # Further out than the world's own frames there is only what started the run.
    innermost_of_world = max((i for i, entry in enumerate(entries) if is_worlds(entry.filename)), default=-1)
    inner = entries[innermost_of_world + 1 :]
    shown = [entry for entry in inner if not is_lab(entry.filename)] or inner or entries
    return "".join(traceback.format_list(shown)).rstrip()


def overdue(limit: float, place: str) -> Overdue:
    """Exception for a rank that has exceeded `limit`, with its message."""
    return Overdue(f"did not come back within {limit:g} s, at {place}")


class RaisingWatchdog:
    """Thread that watches the main thread of one process of MPI.

    It raises there by a signal, whose handler Python runs in the main thread. Unlike PyThreadState_SetAsyncExc, as the
    simulated world uses it, that also ends a sleep and other calls of the system.

    `cancel_wait` tells the rank that its time is up, and returns True if it is in a wait, which it then leaves by itself.
    `end` ends the job; it is called from the watching thread.
    """

    def __init__(
        self, watchdog: Watchdog, rank: int, cancel_wait: Callable[[], bool], end: Callable[[], None]
    ) -> None:
        self.watchdog = watchdog
        self._cancel_wait = cancel_wait
        self._rank = rank
        self._end = end
        # The two threads share these without a lock: each is replaced as a whole.
        # Start, limit and payload of the run that is watched.
        self._watched: tuple[float, float, object] | None = None
        self._fired_for = 0.0  # the start of the run in which the exception was raised
        self._place = ""
        self._thread: threading.Thread | None = None
        self._main = threading.main_thread().ident or 0
        self._has_signal = False

    @contextmanager
    def signal_handler(self) -> Iterator[None]:
        """Context in which it can raise in the main thread, unless user code handles that signal itself."""
        is_main = threading.current_thread() is threading.main_thread()
        self._has_signal = is_main and signal.getsignal(_SIGNAL) is signal.SIG_DFL
        if self._has_signal:
            signal.signal(_SIGNAL, self._raise)
        try:
            yield
        finally:
            if self._has_signal:
                signal.signal(_SIGNAL, signal.SIG_DFL)
                self._has_signal = False

    @contextmanager
    def watch(self, payload: object, limit: float) -> Iterator[None]:
        """Context of a run of `payload` that may take `limit` seconds."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="adjointlab watchdog", daemon=True)
            self._thread.start()
        self._watched = (time.monotonic(), limit, payload)
        try:
            yield
        finally:
            self._watched = None

    def _watch(self) -> None:
        while True:
            watched = self._watched
            if watched is None:
                time.sleep(0.1)
                continue
            started, limit, payload = watched
            left = started + limit - time.monotonic()
            if left > 0:
                time.sleep(min(left, 0.1))
                continue
            if self._fired_for != started:
                self._fired_for = started
                # Before the signal: afterwards the main thread is in its handler.
                self._place = call_site_of_thread(self._main)
                if self._has_signal:
                    signal.pthread_kill(self._main, _SIGNAL)
            if left < -self.watchdog.grace(limit):
                self.watchdog.report_overdue(f"rank {self._rank}", limit, payload, self._main)
                self._end()
                return
            time.sleep(0.05)

    def _raise(self, signal_number: int, frame: FrameType | None) -> None:
        watched = self._watched
        # The run may have ended just before the signal came; and a wait ends better by itself, which tells what it is.
        if watched is not None and watched[0] == self._fired_for and not self._cancel_wait():
            raise overdue(watched[1], self._place)
