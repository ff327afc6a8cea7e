"""Outputs that are not finite although the inputs were: named as such, before a check compares anything with them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adjointlab.checks.compare import Local, place
from adjointlab.checks.verdict import Verdict, incoherent
from adjointlab.core.space import Space

__all__ = ["not_finite", "place_not_finite", "returned_not_finite"]


def not_finite(direction: str, space: Space, local: Sequence[Local]) -> Verdict | None:
    """The verdict on an element of `space` that a direction returned, if a NaN or infinity is in it on some rank."""
    for rank, arrays in enumerate(local):
        if found := place_not_finite(space, arrays, rank):
            return returned_not_finite(direction, rank, *found)
    return None


def place_not_finite(space: Space, local: Local, rank: int) -> tuple[str, str] | None:
    """The first NaN or infinity among what `rank` holds of an element of `space`: its place, and which of the two."""
    for tensor, array in zip(space.tensors, local, strict=True):
        wrong = ~np.isfinite(array)
        if wrong.any():
            index = tuple(int(i) for i in np.argwhere(wrong)[0])
            return place(tensor, rank, index), "nan" if np.isnan(array[index]) else "inf"
    return None


def returned_not_finite(direction: str, rank: int, where: str, value: str) -> Verdict:
    """What all checks say of it."""
    return incoherent(
        f"{direction} returned {value} on rank {rank}",
        ("element", where),
        ("but", "all that it was given is finite"),
        # While a case shrinks, the rank may be another one.
        kind=f"{direction} is not finite",
    )
