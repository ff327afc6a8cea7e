"""Ctrl-C, held back while processes talk to each other and let through where user code runs."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

__all__ = ["Interrupts"]


class Interrupts:
    """A context in which Ctrl-C is held back, but for the stretches between :meth:`allow` and :meth:`hold`.

    An interrupt that is still held back at the end is raised there. A second one is raised at once.
    """

    def __init__(self) -> None:
        self.pending = False
        self._held = True
        self._before: Any = None

    def __enter__(self) -> Interrupts:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._before = signal.signal(signal.SIGINT, self._receive)
        return self

    def __exit__(self, kind: object, exception: object, traceback: object) -> None:
        if self._before is not None:
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
        if self._held and not self.pending:
            self.pending = True
        else:
            self.pending = False
            raise KeyboardInterrupt
