"""What a job says, passed on; held back while nobody needs to see it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Final

__all__ = ["Output"]

_TAIL: Final = 20_000
"""Bytes of standard error that are kept."""


class Output:
    """The standard output and error of a job.

    What a job says that is started again to make a failure smaller is its beginning once more. It is held back until
    the job has got further, and dropped if the job dies before.
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
        """The job has said `data`."""
        if is_error:
            self._tail = (self._tail + data)[-_TAIL:]
        if self._held is not None:
            self._held.append((data, is_error))
        else:
            _pass_on(data, is_error)

    def look(self) -> None:
        """Release what is held back, if it is time."""
        if self._held_until is not None and self._held_until():
            self.release()

    def release(self) -> None:
        """Pass on what was held back, and from now on everything at once."""
        held, self._held, self._held_until = self._held, None, None
        for data, is_error in held or ():
            _pass_on(data, is_error)


def _pass_on(data: bytes, is_error: bool) -> None:
    stream = sys.stderr if is_error else sys.stdout
    # Nobody may be listening any more; the job goes on.
    with suppress(BrokenPipeError):
        stream.buffer.write(data)
        stream.buffer.flush()
