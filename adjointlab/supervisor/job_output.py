"""Forwards standard output and error of a supervised job, or holds them back."""

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

    A job that is restarted to shrink a failure repeats output of the earlier job. With
    `held_until`, its output is held back until that returns True, and dropped if the job dies first.
    """

    def __init__(self, held_until: Callable[[], bool] | None = None) -> None:
        self._held_until = held_until
        self._held: list[tuple[bytes, bool]] | None = None if held_until is None else []
        self._tail = b""
        self.lost = (
            ""  # error message if not all could be written to standard output, for example to a full disk
        )

    @property
    def tail(self) -> str:
        """The end of the standard error."""
        return self._tail.decode(errors="replace")

    def write(self, data: bytes, *, is_error: bool) -> None:
        """Handle `data` that the job has printed."""
        if is_error:
            self._tail = (self._tail + data)[-_TAIL:]
        if self._held is not None:
            self._held.append((data, is_error))
        else:
            self._pass_on(data, is_error)

    def release_when_due(self) -> None:
        """Release the output if `held_until` returns True now."""
        if self._held_until is not None and self._held_until():
            self.release()

    def release(self) -> None:
        """Pass on the output that was held back, and all later output at once."""
        held, self._held, self._held_until = self._held, None, None
        for data, is_error in held or ():
            self._pass_on(data, is_error)

    def _pass_on(self, data: bytes, is_error: bool) -> None:
        stream = sys.stderr if is_error else sys.stdout
        try:
            stream.flush()
            while data:
                # Bypasses the stream's buffer, which would later retry data that could not be written.
                data = data[os.write(stream.fileno(), data) :]
        except (BrokenPipeError, AttributeError):
            # If the reader is gone (`| head`), or there is no stream, the job continues: its failures are stored on disk.
            return
        except OSError as error:
            if not is_error:
                self.lost = self.lost or error.strerror or str(error)
