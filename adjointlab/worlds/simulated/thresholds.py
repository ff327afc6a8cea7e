"""Thresholds of garbage collection, in proportion to the ranks that are simulated.

Python collects after a fixed number of new objects, and a full collection visits all that there are. Of P ranks in one process
the objects live until the run ends: the same number for each, none of them garbage. With fixed thresholds P times as many collections visit up to P times as many objects.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

__all__ = ["thresholds_for"]

_RANKS: Final = 16
"""Up to so many ranks the thresholds stay as they are."""


@contextmanager
def thresholds_for(ranks: int) -> Iterator[None]:
    """Context of a run of so many ranks, with P / 16 times as many new objects between two collections as before."""
    before = gc.get_threshold()
    during = (before[0] * max(1, ranks // _RANKS), *before[1:])
    gc.set_threshold(*during)
    try:
        yield
    finally:
        # What user code has set in the meantime stays.
        if gc.get_threshold() == during:
            gc.set_threshold(*before)
