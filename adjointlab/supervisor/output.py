"""The output of a supervised job: passed on, or held back while it only repeats that of an earlier job."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Final

__all__ = ["Output"]

_TAIL: Final = 20_000
"""Bytes of standard error that are kept for the exit report."""


class Output:
    """Passes on standard output and error of a job.

    A job that is started again to shrink a failure prints once more what the job before it has printed. With
    `held_until`, its output is held back until that returns True, and dropped if the job dies first.
    """

    def __init__(self, held_until: Callable[[], bool] | None = None) -> None:
        self._held_until = held_until
        self._held: list[tuple[bytes, bool]] | None = None if held_until is None else []
        self._tail = b""

    @property
    def tail(self) -> str:
        """The end of the standard error."""
        return self._tail.decode(errors="replace")

    def write(self, data: bytes, *, is_error: bool) -> None:
        """Take `data` that the job has printed."""
        if is_error:
            self._tail = (self._tail + data)[-_TAIL:]
        if self._held is not None:
            self._held.append((data, is_error))
        else:
            _pass_on(data, is_error)

    def release_when_due(self) -> None:
        """Release what is held back, if `held_until` says so now."""
        if self._held_until is not None and self._held_until():
            self.release()

    def release(self) -> None:
        """Pass on what was held back, and from now on everything at once."""
        held, self._held, self._held_until = self._held, None, None
        for data, is_error in held or ():
            _pass_on(data, is_error)


def _pass_on(data: bytes, is_error: bool) -> None:
    stream = sys.stderr if is_error else sys.stdout
    # With the reader gone (`| head`) the job still goes on: its failures are stored on disk.
    with suppress(BrokenPipeError):
        stream.buffer.write(data)
        stream.buffer.flush()
