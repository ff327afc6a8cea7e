"""Suspension of garbage collection while an exception is raised in another thread.

Python calls the functions in ``gc.callbacks`` in the thread whose allocation began a collection, and drops the exceptions that they raise.
An exception raised asynchronously in that thread is delivered at its next bytecode instruction, which during a collection belongs to a
callback (Hypothesis has one): it would be lost, and the thread would continue.
"""

from __future__ import annotations

import gc
import time
from typing import Final

__all__ = ["HeldCollections"]

_MOST_SECONDS: Final = 1.0
"""Longest wait for a running collection. After that, the exception may be lost in a callback."""


class HeldCollections:
    """Disables garbage collection between :meth:`hold` and :meth:`release`, unless it is disabled already."""

    def __init__(self) -> None:
        self._are_held = False

    def hold(self) -> None:
        """Prevent new collections, and wait for one that is running; called in the thread that is going to raise."""
        if self._are_held or not gc.isenabled():
            return
        self._are_held = True
        gc.disable()
        latest = time.monotonic() + _MOST_SECONDS
        while _one_is_under_way() and time.monotonic() < latest:
            time.sleep(0.001)

    def release(self) -> None:
        """Enable collections again."""
        if self._are_held:
            self._are_held = False
            gc.enable()


def _one_is_under_way() -> bool:
    """True while another thread runs a collection or its callbacks: then `gc.collect` does nothing, and calls no callback."""
    begun = []

    def note(phase: str, _: dict[str, int]) -> None:
        begun.append(phase)

    gc.callbacks.append(note)
    try:
        gc.collect(0)
    finally:
        gc.callbacks.remove(note)
    return not begun
