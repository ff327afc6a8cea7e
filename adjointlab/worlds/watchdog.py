"""What ends a case that nothing else can: user code that loops or sleeps without a call that the lab could revoke.

A guarded wait ends by itself. Code outside it has a limit, in two steps. When the limit has passed, :class:`Overdue` is
raised in the rank's own thread, which ends a loop or (in a process of its own) a sleep as any exception would, so that the
case is judged and made smaller like any other. A rank that has not left a few seconds later sits in code that Python
cannot interrupt, such as a call of MPI that the guard does not know: then the stacks of all threads are written, the case is
put on disk by whoever can still do so, and the job is ended with exit code 3.
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
    "EXIT_CODE",
    "Overdue",
    "OverdueReport",
    "RaisingWatchdog",
    "Watchdog",
    "too_late",
]

EXIT_CODE: Final = 3

_TIMES_PATIENCE: Final = 3.0
_SIMULATED_PATIENCE: Final = 10.0
_SHORT: Final = 5.0
_SIGNAL: Final = signal.SIGUSR2

OverdueReport = Callable[[Any, str, str], str]
"""Puts the payload of a run on disk as a failure, with who was late and where, and the stack; what is to be printed."""


class Overdue(Exception):
    """Raised in a rank that has not come back in time."""


@dataclass
class Watchdog:
    """How long a run may take, and what is done when it does not end.

    `limit` in seconds; by default three times the patience in force. `overdue_report` is set while there is work.
    """

    limit: float | None = None
    stderr: int = 2  # the file descriptor for the stacks; not captured by whoever captures output
    overdue_report: OverdueReport | None = None
    has_barked: bool = False

    def seconds(self, patience: float) -> float:
        """The limit in a world of that patience."""
        return _TIMES_PATIENCE * patience if self.limit is None else self.limit

    @property
    def seconds_in_simulation(self) -> float:
        """The limit where nothing waits for other processes; less once it was needed, for the case will be made smaller."""
        limit = self.seconds(_SIMULATED_PATIENCE)
        return min(limit, _SHORT) if self.has_barked else limit

    @staticmethod
    def grace(limit: float) -> float:
        """The seconds between the exception and the end."""
        return min(5.0, max(0.5, limit / 4))

    def say(self, text: str) -> None:
        """Print to the real standard error."""
        with suppress(OSError):
            os.write(self.stderr, text.encode(errors="replace"))

    def show_stacks(self, heading: str) -> None:
        """Print the stacks of all threads of this process."""
        self.say(f"\nadjointlab: {heading}\n")
        with suppress(OSError, ValueError):
            faulthandler.dump_traceback(self.stderr, all_threads=True)

    def account(self, who: str, limit: float, payload: Any, thread: int) -> None:
        """Everything but the end: the stacks, and the case on disk."""
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
    """The lines of user code that a thread is in; the innermost last."""
    frame = sys._current_frames().get(thread)
    entries = () if frame is None else traceback.extract_stack(frame)
    # What is further out than the world's own frames has only started the run.
    first = max((place for place, entry in enumerate(entries) if is_worlds(entry.filename)), default=-1)
    inner = entries[first + 1 :]
    shown = [entry for entry in inner if not is_lab(entry.filename)] or inner or entries
    return "".join(traceback.format_list(shown)).rstrip()


def too_late(limit: float, place: str) -> Overdue:
    """What is raised."""
    return Overdue(f"did not come back within {limit:g} s, at {place}")


class RaisingWatchdog:
    """The thread that watches the main thread of one process of MPI."""

    def __init__(
        self, watchdog: Watchdog, rank: int, spare: Callable[[], bool], end: Callable[[], None]
    ) -> None:
        self.watchdog = watchdog
        self._spare = spare  # whether the rank waits for others, and leaves its wait by itself now
        self._rank = rank
        self._end = end
        self._watched: tuple[float, float, Any] | None = None  # since when, how long, what
        self._barked_at = 0.0  # the beginning of the run that was told that it is late
        self._place = ""
        self._thread: threading.Thread | None = None
        self._main = threading.main_thread().ident or 0
        self._has_signal = False

    @contextmanager
    def on_duty(self) -> Iterator[None]:
        """While the world is led: it can raise in the main thread."""
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
    def over(self, payload: Any, limit: float) -> Iterator[None]:
        """Watch what is done here."""
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
            since, limit, payload = watched
            left = since + limit - time.monotonic()
            if left > 0:
                time.sleep(min(left, 0.1))
                continue
            if self._barked_at != since:
                self._barked_at = since
                self._place = call_site_of_thread(self._main)
                if self._has_signal:
                    signal.pthread_kill(self._main, _SIGNAL)
            if left < -self.watchdog.grace(limit):
                self.watchdog.account(f"rank {self._rank}", limit, payload, self._main)
                self._end()
                return
            time.sleep(0.05)

    def _raise(self, number: int, frame: FrameType | None) -> None:
        watched = self._watched
        # It may have come just in time.
        if watched is not None and watched[0] == self._barked_at and not self._spare():
            raise too_late(watched[1], self._place)
