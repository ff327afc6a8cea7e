"""Standard output and error of a supervised job, passed on or held back."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
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
        self.lost = ""  # why standard output has not taken all, such as a full disk

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
            self._pass_on(data, is_error)

    def release_when_due(self) -> None:
        """Release what is held back, if `held_until` says so now."""
        if self._held_until is not None and self._held_until():
            self.release()

    def release(self) -> None:
        """Pass on what was held back, and from now on everything at once."""
        held, self._held, self._held_until = self._held, None, None
        for data, is_error in held or ():
            self._pass_on(data, is_error)

    def _pass_on(self, data: bytes, is_error: bool) -> None:
        stream = sys.stderr if is_error else sys.stdout
        try:
            stream.flush()
            while data:
                # Without the stream's buffer, which would try again later to write what could not be written.
                data = data[os.write(stream.fileno(), data) :]
        except (BrokenPipeError, AttributeError):
            # With the reader gone (`| head`), or without the stream, the job still goes on: its failures are stored on disk.
            return
        except OSError as error:
            if not is_error:
                self.lost = self.lost or error.strerror or str(error)
