"""Thresholds of garbage collection, in proportion to the ranks that are simulated.

Python begins a collection after a fixed number of new objects, and a full one visits all that there are. The objects of P ranks in
one process live until the run ends, as many for each rank and none of them garbage. With fixed thresholds P ranks would have P times as many
collections as one, each of up to P times as many objects.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

__all__ = ["thresholds_for"]

_RANKS: Final = 16
"""Number of ranks up to which the thresholds stay as they are."""


@contextmanager
def thresholds_for(ranks: int) -> Iterator[None]:
    """Context of a run of P ranks: from 32 on, a collection begins after P / 16 times (rounded down) as many new objects as before it."""
    before = gc.get_threshold()
    during = (before[0] * max(1, ranks // _RANKS), *before[1:])
    gc.set_threshold(*during)
    try:
        yield
    finally:
        # What user code has set in the meantime stays.
        if gc.get_threshold() == during:
            gc.set_threshold(*before)
