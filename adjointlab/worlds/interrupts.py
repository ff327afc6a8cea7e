"""Ctrl-C, held back while processes talk to each other and let through where user code runs."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType
from typing import Any, ClassVar, Final

__all__ = ["Interrupts"]

_ECHO: Final = 1.0
"""Seconds in which one Ctrl-C may come again: from the terminal, and passed on by the launcher."""


class Interrupts:
    """A context in which Ctrl-C is held back, but for the stretches between :meth:`allow` and :meth:`hold`.

    An interrupt that is still held back at the end is raised there. A second one is raised at once, and then the
    processes are not of one mind (:attr:`is_forced`). Within a context another one is the same.
    """

    _outer: ClassVar[Interrupts | None] = None

    def __init__(self) -> None:
        self.pending = False
        self.is_forced = False
        self._held = True
        self._before: Any = None
        self._last = float("-inf")

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is not threading.main_thread():
            return self
        if Interrupts._outer is not None:
            return Interrupts._outer
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._before = signal.signal(signal.SIGINT, self._receive)
            Interrupts._outer = self
        return self

    def __exit__(self, kind: object, exception: object, traceback: object) -> None:
        if self._before is not None:
            Interrupts._outer = None
            signal.signal(signal.SIGINT, self._before)
        if self.pending and kind is None:
            raise KeyboardInterrupt

    def allow(self) -> None:
        """User code begins: raise what was held back."""
        self._held = False
        self.take()

    def hold(self) -> None:
        """User code has ended."""
        self._held = True

    def take(self) -> None:
        """Raise what was held back."""
        if self.pending:
            self.pending = False
            raise KeyboardInterrupt

    def _receive(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if now - self._last < _ECHO:
            return
        self._last = now
        if self._held and not self.pending:
            self.pending = True
        else:
            self.is_forced = self._held
            self.pending = False
            raise KeyboardInterrupt
