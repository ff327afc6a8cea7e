"""Faster garbage collection while cases run, by freezing the objects that existed before.

Torch and its modules are some hundred thousand objects, none of them garbage, and each full collection visits all of them. A
search itself makes enough objects for a full collection every few dozen cases.
"""

from __future__ import annotations

import gc
from types import TracebackType
from typing import Self

from adjointlab.worlds.collection_thresholds import are_set_aside

__all__ = ["FrozenObjects"]


class FrozenObjects:
    """Context in which, from :meth:`begin` on, garbage collections skip the objects that existed then.

    Cycles among objects that are made later are collected as usual. On exit the objects are unfrozen.
    """

    def __enter__(self) -> Self:
        self._has_begun = False
        return self

    def begin(self) -> None:
        """Freeze the existing objects; only the first call has an effect.

        Call it after the first run of cases: code that searches all objects in that run (interposition, and Hypothesis's registration of
        random generators) would not find frozen ones.
        """
        # Not if the program itself has frozen objects: the exit would unfreeze these as well.
        if not self._has_begun and not are_set_aside():
            self._has_begun = True
            gc.freeze()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._has_begun:
            gc.unfreeze()
