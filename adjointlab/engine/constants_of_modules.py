"""Draws of Hypothesis that do not depend on which modules are installed where.

Since 6.131 Hypothesis draws some values among the constants that it finds in the source of *local* modules: those that are not
installed. One seed would then draw other cases in a checkout than from a wheel, and each command would leave the folder
``.hypothesis`` of those constants in its working directory. There is no setting for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from hypothesis.internal.conjecture import providers

from adjointlab.replacement import replaced

__all__ = ["without_constants_of_modules"]


@contextmanager
def without_constants_of_modules() -> Iterator[None]:
    """Context in which Hypothesis draws no constants of modules; without effect where it has changed how it does."""
    names = ("_get_local_constants", "_local_constants", "CONSTANTS_CACHE")
    if not all(hasattr(providers, name) for name in names):
        yield
        return
    module: Any = providers
    none = type(module._local_constants)()
    with (
        replaced(module, "_get_local_constants", lambda: none),
        replaced(module, "CONSTANTS_CACHE", _permitted()),
    ):
        yield


@cache
def _permitted() -> Any:
    """Hypothesis's cache of the constants that may be drawn within given limits, for all our draws, and for none of others'.

    It holds both kinds of constants. Made anew for each search it cost a twentieth of the time of all draws: a miss looks through
    all constants, and each pair of limits is one.
    """
    module: Any = providers
    return type(module.CONSTANTS_CACHE)(1024)
