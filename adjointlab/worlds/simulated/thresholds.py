"""Thresholds of garbage collection, in proportion to the ranks that are simulated.

Python begins a collection after a fixed number of new objects, and a full one visits all that there are. The objects of P ranks in
one process live until the run ends, as many for each rank and none of them garbage. With fixed thresholds P ranks would have P times as many
collections as one, each of up to P times as many objects.
"""

from __future__ import annotations

import gc
from contextlib import AbstractContextManager
from typing import Final

from adjointlab.worlds.thresholds import young_threshold

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


def _raised(times: int) -> AbstractContextManager[None]:
    return young_threshold(gc.get_threshold()[0] * times)
