"""Garbage collection while cases run: what stands before them is not looked through again and again.

Torch and its modules are some hundred thousand objects, none of them garbage, and each full collection visits all of them. A
search makes enough objects of its own for a full collection every few dozen cases.
"""

from __future__ import annotations

import gc
from types import TracebackType
from typing import Self

from adjointlab.worlds.collection_thresholds import are_set_aside

__all__ = ["FrozenObjects"]


class FrozenObjects:
    """Context in which, from :meth:`begin` on, garbage collections leave out the objects that there were.

    Cycles among objects that are made later are collected as ever. At the end everything is as it was.
    """

    def __enter__(self) -> Self:
        self._has_begun = False
        return self

    def begin(self) -> None:
        """Set aside the objects that there are, at the first call.

        Not before the first run of cases: what looks through all objects then, interposition and Hypothesis's registration of random
        generators, would not find those that are set aside.
        """
        # Where the program has set objects aside itself, the end would bring back its own as well.
        if not self._has_begun and not are_set_aside():
            self._has_begun = True
            gc.freeze()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._has_begun:
            gc.unfreeze()
