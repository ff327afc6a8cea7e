"""Removal of the lock of cached properties, whose computation may wait for other ranks.

Up to Python 3.11, `functools.cached_property` holds a lock while it computes, one for all instances of a class [cpython-87634]. If a
property makes a communicator, rank 0 holds the lock and waits in `Dup`, and rank 1, which is another thread of the process, waits for
the lock, unknown to the scheduler. Real ranks have separate locks, and later Pythons have none.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any, Final

from adjointlab.replacement import replaced

__all__ = ["cached_properties_without_lock"]

_HAVE_LOCK: Final = hasattr(cached_property(len), "lock")


class _NoLock:
    """Descriptor that hides the locks of `cached_property` instances, including those made meanwhile."""

    def __get__(self, instance: object, owner: object = None) -> AbstractContextManager[None]:
        return nullcontext()

    def __set__(self, instance: Any, lock: object) -> None:
        vars(instance)["lock"] = lock


def cached_properties_without_lock() -> AbstractContextManager[None]:
    """Context in which cached properties are computed without a lock, which is safe because ranks run one at a time."""
    if not _HAVE_LOCK or "lock" in vars(cached_property):  # the second in a nested run
        return nullcontext()
    return replaced(cached_property, "lock", _NoLock())
