"""Sizes that convolutions and pools have in each spatial dimension: given once for all of them, or one by one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import index
from typing import SupportsIndex

__all__ = ["Sides", "each", "times"]

Sides = SupportsIndex | Sequence[SupportsIndex]

_INTS = {1: "one int", 2: "two ints", 3: "three ints"}


def each(name: str, value: Sides, dims: int) -> tuple[int, ...]:
    """`value`, an integer of any library or a sequence of one or of `dims` of them, for each of `dims` dimensions.

    Raises `ValueError`, with torch's words, for anything else.
    """
    try:
        given = _integers(value)
    except TypeError:
        given = ()
    if len(given) not in (1, dims):
        raise ValueError(f"{name} must either be a single int, or a tuple of {_INTS[dims]}, not {value!r}")
    return given * dims if len(given) == 1 else given


def times(sides: Iterable[int], sign: str = "x") -> str:
    """Sides as torch prints them: 3x4, or 3 x 4."""
    return sign.join(map(str, sides))


def _integers(value: Sides) -> tuple[int, ...]:
    try:
        return (index(value),)  # type: ignore[arg-type]
    except TypeError:
        return tuple(map(index, value))  # type: ignore[arg-type]
