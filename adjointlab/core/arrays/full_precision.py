"""Products of float32 that a device computes in float32: torch's convolutions take shorter factors unless they are told not to."""

from __future__ import annotations

import threading
from contextlib import suppress
from functools import cache
from typing import Any

from adjointlab.core.arrays.libraries import module

__all__ = ["FullPrecision", "full_precision"]


class FullPrecision:
    """Context in which torch's convolutions and products on devices do not round float32 to TF32, whose factors have 11 bits.

    The settings are the process's, and its ranks enter and leave at any time: the first one changes them, the last one puts them back.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._before: list[tuple[Any, bool]] = []

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                self._change()

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._put_back()

    def _change(self) -> None:
        backends: Any = module("torch").backends  # type: ignore[attr-defined]
        for settings in (backends.cudnn, backends.cuda.matmul):
            # Not where a program has set each operation's precision by torch's newer names, and so means it: this name raises then.
            with suppress(RuntimeError):
                self._before.append((settings, settings.allow_tf32))
                settings.allow_tf32 = False

    def _put_back(self) -> None:
        for settings, allowed in self._before:
            settings.allow_tf32 = allowed
        self._before.clear()


# One for a process, as its settings are.
@cache
def full_precision() -> FullPrecision:
    """Return the context of this process."""
    return FullPrecision()
