"""Garbage collections, held back while an exception is raised in another thread.

Python calls the functions in ``gc.callbacks`` in the thread whose allocation began a collection, and drops the exceptions that they raise.
An exception that is raised in that thread from outside comes at its next byte code, which after a collection is that of a callback
(Hypothesis has one): it would be lost, and the thread would go on.
"""

from __future__ import annotations

import gc
import time
from typing import Final

__all__ = ["HeldCollections"]

_MOST_SECONDS: Final = 1.0
"""A longer collection is waited for no more: its callback may take the exception."""


class HeldCollections:
    """Holds collections back between :meth:`hold` and :meth:`release`, unless nothing is collected anyway."""

    def __init__(self) -> None:
        self._are_held = False

    def hold(self) -> None:
        """Let no collection begin, and wait for the end of one that has begun. For the thread that is going to raise."""
        if self._are_held or not gc.isenabled():
            return
        self._are_held = True
        gc.disable()
        latest = time.monotonic() + _MOST_SECONDS
        while _one_is_under_way() and time.monotonic() < latest:
            time.sleep(0.001)

    def release(self) -> None:
        """Let collections begin again."""
        if self._are_held:
            self._are_held = False
            gc.enable()


def _one_is_under_way() -> bool:
    """True while another thread collects, or is in a callback: Python begins no second collection then, and calls nothing."""
    begun = []

    def note(phase: str, _: dict[str, int]) -> None:
        begun.append(phase)

    gc.callbacks.append(note)
    try:
        gc.collect(0)
    finally:
        gc.callbacks.remove(note)
    return not begun
