"""Properties of pure data that are computed once for all who hold equal data.

Every rank describes the whole operator: partitions, layouts and spaces of P ranks. Where ranks are simulated, P of them
do so in one process, and what takes P steps must not be done by each.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, lru_cache
from typing import TypeVar

__all__ = ["shared_property"]

R = TypeVar("R")
S = TypeVar("S")


def shared_property(compute: Callable[[S], R]) -> cached_property[R]:
    """A property of an immutable, hashable object: kept in the object, and found again for others that equal it.

    So it must follow from what equality compares, and nobody may change it.
    """
    found = lru_cache(maxsize=64)(compute)
    return cached_property(found)
