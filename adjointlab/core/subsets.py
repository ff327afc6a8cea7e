"""Subsets that follow from a number, so that a case has the same one each time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

__all__ = ["subset"]

T = TypeVar("T")


def subset(entries: Sequence[T], seed: int, *, leaves_one: bool) -> list[T]:
    """Return some of `entries`, one at least, in any order: every number of them is as likely. If it `leaves_one`, not all of them."""
    generator = np.random.default_rng(seed)
    most = max(len(entries) - leaves_one, 0)
    size = int(generator.integers(min(1, most), most + 1))
    return [entries[number] for number in generator.permutation(len(entries))[:size]]
