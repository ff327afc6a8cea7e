"""Forced end of a process that was asked to end but cannot, because it is in a call that no exception can interrupt."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Final

from adjointlab.worlds.forks import forks_cut_off
from adjointlab.worlds.interrupts import ENDING

__all__ = ["Deadline"]

_SECONDS: Final = 3.0
"""Less than the 5 s after which most senders of SIGTERM send SIGKILL."""


class Deadline:
    """Context in which the process ends at most a few seconds after SIGINT, SIGTERM or SIGHUP.

    Python runs signal handlers in the main thread, between two bytecode instructions. So a separate thread reads from a pipe (the
    wakeup descriptor), to which signals are written whatever the main thread does. `before_end` is called with the signal before the
    process is ended; the exit code is 128 plus the number of the signal, as in shells. Contexts may be nested: the innermost counts.
    """

    def __init__(
        self, before_end: Callable[[int], None] = lambda number: None, seconds: float = _SECONDS
    ) -> None:
        self._before_end, self._seconds = before_end, seconds
        self._number = 0
        self._is_over = threading.Event()
        self._until_exit = ExitStack()
        self._outer = self._read = self._write = -1

    def __enter__(self) -> Deadline:
        if threading.current_thread() is threading.main_thread():
            self._read, self._write = os.pipe()
            os.set_blocking(self._write, False)
            self._outer = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
            self._until_exit.enter_context(forks_cut_off(self._forget))
            threading.Thread(target=self._watch, name="adjointlab deadline", daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._until_exit.close()
        if self._write < 0:
            return
        self._is_over.set()
        with suppress(ValueError, OSError):  # user code may have closed either
            signal.set_wakeup_fd(self._outer, warn_on_full_buffer=False)
        with suppress(OSError):
            os.close(self._write)
        if self._number and self._outer >= 0:
            with suppress(OSError):
                os.write(self._outer, bytes([self._number]))

    def _forget(self) -> None:
        """Detach a fork, which inherits the pipe but not the thread: its signals must not end the parent."""
        if self._write >= 0 and not self._is_over.is_set():
            signal.set_wakeup_fd(-1)
            # If the fork kept the pipe open, the parent's thread would wait for ever.
            for end in (self._read, self._write):
                with suppress(OSError):
                    os.close(end)
            self._write = -1

    def _watch(self) -> None:
        with suppress(OSError):
            while not self._number and (numbers := os.read(self._read, 64)):
                self._number = next((number for number in numbers if number in ENDING), 0)
        if self._number and not self._is_over.wait(self._seconds):
            try:
                self._before_end(self._number)
            finally:
                os._exit(128 + self._number)
        # Not earlier: later signals are written to the pipe too, and Python would report that nobody reads it.
        with suppress(OSError):
            os.close(self._read)
