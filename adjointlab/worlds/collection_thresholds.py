"""Thresholds of garbage collection: Python begins a collection after a fixed number of new objects, and a full one visits all that there are.

Imports and runs of many simulated ranks make objects that stay, so with the thresholds of a small program they pay for collections that
find nothing. The objects of P ranks in one process live until the run ends, as many for each rank: with fixed thresholds P ranks would have
P times as many collections as one, each of up to P times as many objects.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final

__all__ = ["are_set_aside", "few_collections", "thresholds_for", "thresholds_for_small_runs"]

_YOUNG: Final = 50_000
"""New objects after which a collection begins while modules are imported."""

_RANKS: Final = 16
"""Number of ranks up to which the thresholds stay as they are."""

_SMALL_RUNS: Final = 16
"""A collection among runs of small cases begins after so many times as many new objects: it finds little, and takes 4% of their time."""

_OF_PYTHON: Final = 2_000
"""More objects than Python itself sets aside when it starts: some hundreds in 3.12, none in 3.11 and 3.13."""


def are_set_aside() -> bool:
    """Return True if the program has set objects aside from collections itself, which `gc.unfreeze` would bring back."""
    return gc.get_freeze_count() > _OF_PYTHON


@contextmanager
def _young_threshold(objects: int) -> Iterator[None]:
    """Context in which a collection begins after so many new objects; 0 for never."""
    before = gc.get_threshold()
    during = (objects, *before[1:])
    gc.set_threshold(*during)
    try:
        yield
    finally:
        # What user code has set in the meantime stays.
        if gc.get_threshold() == during:
            gc.set_threshold(*before)


@contextmanager
def few_collections() -> Iterator[None]:
    """While the block runs, young objects are collected seldom; for imports, whose objects stay.

    Else collections are a tenth to a fifth of the time of `import torch`. Not none at all: a module may make garbage by the gigabyte.
    """
    own = gc.get_threshold()[0]
    try:
        with _young_threshold(max(own, _YOUNG) if own else 0):  # 0: the program collects nothing by itself
            yield
    finally:
        # All objects count as old ones from now on, or the next collections would visit them all. Not where the program has set
        # objects aside itself, which this would bring back.
        if not are_set_aside():
            gc.freeze()
            gc.unfreeze()


def thresholds_for(ranks: int) -> AbstractContextManager[None]:
    """Context of a run of P simulated ranks: from 32 on, a collection begins after P / 16 times (rounded down) as many new objects as before it."""
    return _raised(max(1, ranks // _RANKS))


def thresholds_for_small_runs() -> AbstractContextManager[None]:
    """Context of many runs, each of a small case and soon over."""
    return _raised(_SMALL_RUNS)


def _raised(times: int) -> AbstractContextManager[None]:
    return _young_threshold(gc.get_threshold()[0] * times)
