"""Thresholds of garbage collection, in proportion to the ranks that are simulated.

Python begins a collection after a fixed number of new objects, and a full one visits all that there are. The objects of P ranks in
one process live until the run ends, as many for each rank and none of them garbage. With fixed thresholds P ranks would have P times as many
collections as one, each of up to P times as many objects.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final

__all__ = ["thresholds_for", "thresholds_for_small_runs"]

_RANKS: Final = 16
"""Number of ranks up to which the thresholds stay as they are."""

_SMALL_RUNS: Final = 16
"""A collection among runs of small cases begins after so many times as many new objects: it finds little, and takes 4% of their time."""


def thresholds_for(ranks: int) -> AbstractContextManager[None]:
    """Context of a run of P ranks: from 32 on, a collection begins after P / 16 times (rounded down) as many new objects as before it."""
    return _raised(max(1, ranks // _RANKS))


def thresholds_for_small_runs() -> AbstractContextManager[None]:
    """Context of many runs, each of a small case and soon over."""
    return _raised(_SMALL_RUNS)


@contextmanager
def _raised(times: int) -> Iterator[None]:
    before = gc.get_threshold()
    during = (before[0] * times, *before[1:])
    gc.set_threshold(*during)
    try:
        yield
    finally:
        # What user code has set in the meantime stays.
        if gc.get_threshold() == during:
            gc.set_threshold(*before)
