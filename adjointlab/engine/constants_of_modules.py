"""Draws of Hypothesis that do not depend on which modules are installed.

Since 6.131 Hypothesis draws some values from the constants in the source of *local* modules: those that are not installed. So
one seed would draw different cases in a checkout and from a wheel, and each command would leave a folder ``.hypothesis``
with those constants in its working directory. There is no setting for it.
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
    """Context in which Hypothesis draws no constants of modules; has no effect on versions that lack these internals."""
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
    """A separate cache, for our draws only, of the constants that Hypothesis may draw within given limits.

    It holds both kinds of constants. A new cache for each search took a twentieth of the time of all draws: a miss searches
    all constants, and each pair of limits is a miss at first.
    """
    module: Any = providers
    return type(module.CONSTANTS_CACHE)(1024)
