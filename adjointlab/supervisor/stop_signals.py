"""Signals that ask the supervisor to end its job."""

from __future__ import annotations

import signal

__all__ = ["StopSignals"]


class StopSignals:
    """Counts SIGINT, SIGTERM and SIGHUP while it is entered, instead of raising: the first asks the job to end.

    A second one means at once.
    """

    def __init__(self) -> None:
        self.first = 0
        self.count = 0
        self._handlers: dict[int, signal._HANDLER] = {}
        self._wakeup = -1

    def __enter__(self) -> StopSignals:
        # The limits here are those of the job, not those of a command that does its work itself (adjointlab.worlds.deadline).
        self._wakeup = signal.set_wakeup_fd(-1)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self._handlers[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)

    def _receive(self, number: int, frame: object) -> None:
        self.first = self.first or number
        self.count += 1

    @property
    def exit_code(self) -> int:
        """The exit code of a program that the first signal has ended; 130 for Ctrl-C."""
        return 128 + self.first
