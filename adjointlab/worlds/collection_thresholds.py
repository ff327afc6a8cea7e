"""Thresholds of garbage collection: Python begins a collection after a fixed number of new objects, and a full collection visits all objects.

Imports and runs of many simulated ranks make long-lived objects, so with the thresholds of a small program they pay for collections that
find nothing. Each rank's objects live until the run ends: with fixed thresholds, P ranks in one process would cause P times as many
collections as one, each visiting up to P times as many objects.
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
"""The thresholds of a run are multiplied by the number of ranks divided by this, rounded down."""

_SMALL_RUNS: Final = 16
"""Factor on the threshold during many runs of small cases, whose collections find little and take 4% of the time."""

_OF_PYTHON: Final = 2_000
"""More objects than Python itself freezes at start-up: some hundreds in 3.12, none in 3.11 and 3.13."""


def are_set_aside() -> bool:
    """Return True if the program itself has called `gc.freeze`, which `gc.unfreeze` would undo."""
    return gc.get_freeze_count() > _OF_PYTHON


@contextmanager
def _young_threshold(objects: int) -> Iterator[None]:
    """Context in which a collection begins after `objects` new objects; 0 for never."""
    before = gc.get_threshold()
    during = (objects, *before[1:])
    gc.set_threshold(*during)
    try:
        yield
    finally:
        # A threshold that user code has set in the meantime stays.
        if gc.get_threshold() == during:
            gc.set_threshold(*before)


@contextmanager
def few_collections() -> Iterator[None]:
    """Context for imports, whose objects stay, in which young objects are collected rarely.

    Otherwise collections take a tenth to a fifth of the time of `import torch`. They are not disabled: a module may make gigabytes of garbage.
    """
    own = gc.get_threshold()[0]
    try:
        with _young_threshold(
            max(own, _YOUNG) if own else 0
        ):  # 0: the program has disabled automatic collection
            yield
    finally:
        # Move all objects to the old generation, or the next collections would visit them all. Not if the program itself has frozen
        # objects, which this would unfreeze.
        if not are_set_aside():
            gc.freeze()
            gc.unfreeze()


def thresholds_for(ranks: int) -> AbstractContextManager[None]:
    """Context of a run of P simulated ranks, in which the threshold is multiplied by P / 16 (rounded down), from 32 ranks on."""
    return _raised(max(1, ranks // _RANKS))


def thresholds_for_small_runs() -> AbstractContextManager[None]:
    """Context of many short runs of small cases."""
    return _raised(_SMALL_RUNS)


def _raised(times: int) -> AbstractContextManager[None]:
    return _young_threshold(gc.get_threshold()[0] * times)
