"""Signals that ask the supervisor to end its job."""

from __future__ import annotations

import signal

__all__ = ["StopSignals"]


class StopSignals:
    """Context that counts SIGINT, SIGTERM and SIGHUP instead of raising: the first asks the job to end.

    A second one ends it at once.
    """

    def __init__(self) -> None:
        self.first = 0
        self.count = 0
        self._handlers: dict[int, signal._HANDLER] = {}
        self._wakeup = -1

    def __enter__(self) -> StopSignals:
        # Disables an outer Deadline (adjointlab.worlds.deadline): the grace periods here are those of the job.
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
        """The exit code of a program ended by the first signal; 130 for Ctrl-C."""
        return 128 + self.first
