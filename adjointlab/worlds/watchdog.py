"""Watchdogs: they end user code that loops or sleeps without making a call that could be cancelled.

They watch the runs of cases, the drawing of cases between them, and the import of a subject's module. The limit applies to time without progress
(:class:`~adjointlab.worlds.elapsed.Elapsed`): a rank exceeds it after that many seconds without a call on its communicator, or after
:data:`~adjointlab.worlds.elapsed.TIMES_IN_ALL` as many seconds in total, whatever calls it makes. Time in which the rank waited for a processor, was
stopped, or was in a debugger does not count; imports and compilations get the longer limit.

A rank that exceeds its limit is ended in two steps. First, :class:`Overdue` is raised in the rank's own
thread. That ends a loop or (in the main thread) a sleep as any exception would, so that the case is judged and shrunk
like any other. A rank that is still there a few seconds later is in code that Python cannot interrupt, such as a call of MPI
that the guard does not cover. Then the stacks of all threads are written, whichever process still can stores the case,
and the job is ended with exit code 3.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from itertools import takewhile
from types import FrameType
from typing import Any, Final

from adjointlab.worlds.call_sites import call_site_of_thread, frame_of_thread, is_lab, is_worlds
from adjointlab.worlds.elapsed import TIMES_IN_ALL, Elapsed, is_importlibs
from adjointlab.worlds.held_collections import HeldCollections

__all__ = [
    "DRAWING",
    "Overdue",
    "OverdueReport",
    "RaisingWatchdog",
    "Watchdog",
    "Watched",
    "overdue",
    "own_or_new",
    "stack_of_thread",
]

# Well above the patience of a single wait of MPI, which ends by itself and whose report says more.
_TIMES_PATIENCE: Final = 3.0
_SIMULATED_PATIENCE: Final = 10.0
_LIMIT_WHEN_SHRINKING: Final = 5.0
_TIMES_AT_IMPORT: Final = 10.0
_LEAST_OF_DRAWING: Final = 3.0
_SIGNAL: Final = signal.SIGUSR2

DRAWING: Final = "the strategy"
"""Grammatical subject of the message that a strategy does not return."""

_OUTSIDE: Final = "a place between two cases"

_SECONDS_BETWEEN_BEATS: Final = 0.5

OverdueReport = Callable[[Any, str, str], str]
"""Stores the payload of a run as a failure, given a sentence about the rank that is overdue, and its stack.

Returns the text to print.
"""


class Overdue(BaseException):
    """Raised in a rank that has exceeded its time limit; also the outcome of its run.

    A ``BaseException``, because user code that catches ``Exception`` must not swallow it.
    """


@dataclass
class Watchdog:
    """Time limit of a run, and the report made if the run exceeds it.

    `limit` is in seconds as :class:`~adjointlab.worlds.elapsed.Elapsed` counts them; by default it is three times the patience in force. The engine sets
    `overdue_report` while it checks a subject, because worlds do not know how cases are stored.
    """

    limit: float | None = None
    stderr: int = 2  # a file descriptor, because pytest captures sys.stderr
    overdue_report: OverdueReport | None = None
    has_fired: bool = False  # during the check of the current subject
    of_drawing: RaisingWatchdog | None = None  # watches the leader between two runs

    @classmethod
    def of_patience(cls, patience: float) -> Watchdog:
        """Watchdog with the limit that follows from `patience`, also for a simulated world; with the default patience, it adapts to hangs."""
        return cls() if patience == _SIMULATED_PATIENCE else cls(_TIMES_PATIENCE * patience)

    def seconds(self, patience: float) -> float:
        """Limit in a world of that patience."""
        return _TIMES_PATIENCE * patience if self.limit is None else self.limit

    @property
    def seconds_in_simulation(self) -> float:
        """Limit in the simulated world, where no rank waits for another process."""
        limit = self.seconds(_SIMULATED_PATIENCE)
        # An overdue case is shrunk, and each smaller case that is overdue as well takes the whole limit.
        return min(limit, _LIMIT_WHEN_SHRINKING) if self.has_fired else limit

    @property
    def seconds_of_drawing(self) -> float:
        """Limit for drawing, between two runs; Hypothesis itself needs some of it."""
        return max(_LEAST_OF_DRAWING, self.seconds(_SIMULATED_PATIENCE))

    @property
    def seconds_of_import(self) -> float:
        """Limit for imports, which precede the world."""
        return _TIMES_AT_IMPORT / TIMES_IN_ALL * self.seconds(_SIMULATED_PATIENCE)

    @contextmanager
    def drawing(self, raising: RaisingWatchdog) -> Iterator[None]:
        """Context in which `raising` watches this thread, except during runs, which are watched in other ways."""
        outer, self.of_drawing = self.of_drawing, raising
        try:
            with raising.watch(DRAWING, None, self.seconds_of_drawing):
                yield
        finally:
            self.of_drawing = outer

    def during_run(self) -> AbstractContextManager[None]:
        """Context of a run, in which no cases are drawn."""
        return nullcontext() if self.of_drawing is None else self.of_drawing.paused()

    @staticmethod
    def grace(limit: float) -> float:
        """Seconds between the exception and the end of the process."""
        # Generous, because on a busy machine the exception may come late, and what follows ends the whole process.
        return min(5.0, max(1.5, limit / 4))

    def say(self, text: str) -> None:
        """Print to the real standard error; ignore it if that cannot be written to."""
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
        self.show_stacks(f"{who} has not returned within {limit:g} s, at {place}; the stacks of its threads:")
        late = f"{who} did not return within {limit:g} s, at {place}"
        self.store_overdue(payload, late, stack_of_thread(thread))

    def store_overdue(self, payload: object, late: str, stack: str) -> None:
        """Store the case, and print where."""
        if self.overdue_report is not None:
            try:
                self.say(f"\n{self.overdue_report(payload, late, stack)}\n")
            except BaseException as problem:  # the process is to end whatever happens here
                reason = "".join(traceback.format_exception_only(problem))
                self.say(f"\nadjointlab: the case could not be stored: {reason}\n")


def stack_of_thread(thread: int) -> str:
    """Stack of user code in a thread, the innermost frame last."""
    frame = frame_of_thread(thread)
    entries = () if frame is None else traceback.extract_stack(frame)
    inner = entries[_number_of_outer(entries) :]
    shown = [entry for entry in inner if not is_lab(entry.filename)] or inner or entries
    return "".join(traceback.format_list(shown)).rstrip()


def _number_of_outer(entries: Sequence[traceback.FrameSummary]) -> int:
    """Number of outermost frames up to the last one of the world, or, during an import, up to the last one of the lab."""
    of_world = [number for number, entry in enumerate(entries, 1) if is_worlds(entry.filename)]
    before_import = takewhile(lambda numbered: not is_importlibs(numbered[1].filename), enumerate(entries, 1))
    importing = [number for number, entry in before_import if is_lab(entry.filename)]
    return max(of_world or importing, default=0)


def own_or_new(watchdog: Watchdog | None) -> Watchdog:
    """Return `watchdog`, or a new one for None. Raises `TypeError` for any other object."""
    if watchdog is not None and not isinstance(watchdog, Watchdog):
        raise TypeError(
            f"watchdog: {watchdog!r} is not a Watchdog; for a limit of 30 seconds give {Watchdog.__module__}.Watchdog(30)"
        )
    return Watchdog() if watchdog is None else watchdog


def overdue(limit: float, place: str) -> Overdue:
    """Exception for a rank that has exceeded `limit`, with its message."""
    return Overdue(f"did not return within {limit:g} s, at {place}")


@dataclass(eq=False)
class Watched:
    """Work of a thread that may become overdue."""

    who: str
    payload: object
    limit: float
    progress: Callable[[], object] = lambda: None
    thread: int = field(default_factory=threading.get_ident)
    native_thread: int = field(default_factory=threading.get_native_id)
    elapsed: Elapsed = field(default_factory=Elapsed)
    exceeded: float = 0.0  # the limit in seconds that was exceeded; 0 until then
    fired_at: float = 0.0
    place: str = ""
    stack: str = ""

    @property
    def has_fired(self) -> bool:
        return self.exceeded > 0

    def restarted(self) -> Watched:
        """A copy whose time starts now."""
        return Watched(self.who, self.payload, self.limit, self.progress, self.thread, self.native_thread)

    def overdue(self) -> Overdue:
        """The exception to raise, once the work is overdue."""
        return overdue(self.exceeded, self.place)

    def look(self) -> bool:
        """Update the elapsed time; return True if the work has become overdue since the last call."""
        self.elapsed.look(self.native_thread, self.progress())
        if self.has_fired or not (exceeded := self.elapsed.exceeded(self.limit, self.thread)):
            return False
        # Before the exception is raised: afterwards the thread is elsewhere.
        self.place, self.stack = call_site_of_thread(self.thread), stack_of_thread(self.thread)
        self.exceeded, self.fired_at = exceeded, self.elapsed.total
        return True

    def has_used_its_grace(self) -> bool:
        """Return True if the thread is still at work after the grace period that followed the exception."""
        return self.has_fired and self.elapsed.total - self.fired_at > Watchdog.grace(self.limit)


class RaisingWatchdog:
    """Thread that watches the main thread of one process: a rank of MPI, or the code that draws cases and imports modules.

    It raises there through a signal, whose handler Python runs in the main thread. Unlike PyThreadState_SetAsyncExc, which the
    simulated world uses, that also interrupts a sleep and other system calls.

    `cancel_wait` marks the rank's time as up, and returns True if the rank is in a wait, which then ends by itself.
    `end` ends the job. Both `end` and `beat`, which is called periodically, run in the watching thread.
    """

    def __init__(
        self,
        watchdog: Watchdog,
        end: Callable[[], None],
        cancel_wait: Callable[[], bool] = lambda: False,
        beat: Callable[[str], None] | None = None,
    ) -> None:
        self.watchdog = watchdog
        self._cancel_wait = cancel_wait
        self._end = end
        self._beat = beat
        # The two threads share this attribute without a lock: it is only ever replaced as a whole.
        self._watched: Watched | None = None
        self._thread: threading.Thread | None = None
        self._is_over = threading.Event()
        self._main = threading.main_thread().ident or 0
        self._has_signal = False
        self._collections = HeldCollections()

    @contextmanager
    def signal_handler(self) -> Iterator[None]:
        """Context in which the watchdog can raise in the main thread, unless user code handles that signal itself."""
        is_main = threading.current_thread() is threading.main_thread()
        before = signal.getsignal(_SIGNAL)
        # For example the watchdog of the command line, which is idle while the world's is active.
        is_ours = (getattr(before, "__module__", None) or "").startswith("adjointlab.")
        has_set = is_main and (before is signal.SIG_DFL or is_ours)
        outer, self._has_signal = self._has_signal, has_set
        if has_set:
            signal.signal(_SIGNAL, self._raise)
        try:
            yield
        finally:
            if has_set:
                signal.signal(_SIGNAL, before)
            self._has_signal = outer

    @contextmanager
    def watch(
        self, who: str, payload: object, limit: float, progress: Callable[[], object] = lambda: None
    ) -> Iterator[Watched]:
        """Context of work in the calling thread that may take `limit` seconds without progress. Suspends an outer one."""
        self.start()
        watched = Watched(who, payload, limit, progress)
        if self._beat is not None:
            self._beat("the beginning of the case")
        with self._watching(watched):
            yield watched

    def paused(self) -> AbstractContextManager[None]:
        """Context in which this watchdog is suspended."""
        return self._watching(None)

    @contextmanager
    def _watching(self, watched: Watched | None) -> Iterator[None]:
        outer, self._watched = self._watched, watched
        try:
            yield
        finally:
            self._collections.release()
            # The time of the outer one starts again: its earlier work was over when the inner one began.
            self._watched = None if outer is None else outer.restarted()

    def start(self) -> None:
        """Start the thread unless it is running."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="adjointlab watchdog", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._is_over.set()

    def _watch(self) -> None:
        next_beat = 0.0
        while not self._is_over.wait(0.05):
            watched = self._watched
            # Looking up the place is rate-limited, and omitted if nobody reads it: it makes a frame object for each thread of the
            # process, and there may be hundreds of simulated ranks.
            if self._beat is not None and time.monotonic() >= next_beat:
                self._beat(_OUTSIDE if watched is None else call_site_of_thread(watched.thread))
                next_beat = time.monotonic() + _SECONDS_BETWEEN_BEATS
            if watched is None:
                continue
            if watched.look():
                if self._has_signal and watched.thread == self._main:
                    self._collections.hold()
                    signal.pthread_kill(self._main, _SIGNAL)
            elif watched is self._watched and watched.has_used_its_grace():
                self.watchdog.report_overdue(watched.who, watched.exceeded, watched.payload, watched.thread)
                self._end()
                return

    def _raise(self, signal_number: int, frame: FrameType | None) -> None:
        watched = self._watched
        # The run may have ended just before the signal came. A wait is cancelled instead, because its report names the call.
        if watched is not None and watched.has_fired and not self._cancel_wait():
            raise watched.overdue()
