"""Samples of which each run of the tests takes every other one, and a thorough one (``--thorough``) all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import pytest
from _pytest.mark import ParameterSet

__all__ = ["every_other"]

S = TypeVar("S")


def every_other(samples: Sequence[S], id_of: Callable[[S], str]) -> list[ParameterSet]:
    """Parameters of a test, every second of which is marked as thorough."""
    return [
        pytest.param(sample, id=id_of(sample), marks=[pytest.mark.thorough] if number % 2 else [])
        for number, sample in enumerate(samples)
    ]
