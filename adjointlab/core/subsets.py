"""Subsets drawn from a seed, so that a case has the same one each time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

__all__ = ["subset"]

T = TypeVar("T")


def subset(entries: Sequence[T], seed: int, *, leaves_one: bool) -> list[T]:
    """Return at least one of `entries`, in any order; every size is equally likely. With `leaves_one`, at least one is left out."""
    generator = np.random.default_rng(seed)
    most = max(len(entries) - leaves_one, 0)
    size = int(generator.integers(min(1, most), most + 1))
    return [entries[number] for number in generator.permutation(len(entries))[:size]]
