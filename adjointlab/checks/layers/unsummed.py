"""Copies of one value of which each rank has only its own summand: the sum over the ranks is missing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adjointlab.checks.elements import joined
from adjointlab.checks.hints import FaultKind, Hint, are_telling
from adjointlab.core.space import Tensor
from adjointlab.typing import NumpyArray

__all__ = ["unsummed_hint"]

_SUM = Hint(
    FaultKind.SUM_DROPPED,
    "right once the different copies of all ranks are summed: a sum over the ranks is missing",
)

_MEAN = Hint(
    FaultKind.SUM_DROPPED,
    "right once the different copies of all ranks are averaged: a mean over the ranks is missing",
)


def unsummed_hint(
    tensor: Tensor, actual: Sequence[NumpyArray], expected: Sequence[NumpyArray], allowed: float
) -> Hint | None:
    """The hint on copies that should be equal, by rank, if the sum or the mean of all wrong ones is the expected value.

    Differences up to `allowed` count as none.
    """
    sums, means, wanted = [], [], []
    for ranks in _copies(tensor):
        if any(actual[rank].shape != expected[rank].shape for rank in ranks):
            return None
        copies = np.stack([np.asarray(actual[rank], np.complex128) for rank in ranks])
        want = np.asarray(expected[ranks[0]], np.complex128)
        if not (np.isfinite(copies).all() and np.isfinite(want).all()):
            return None
        if not (np.abs(copies - want) > allowed).any():
            continue
        if not (np.abs(copies - copies[0]) > allowed).any():
            return None  # summed already
        sums.append(copies.sum(0) - want)
        means.append(copies.mean(0) - want)
        wanted.append(want)
    if not wanted or not are_telling(joined(wanted), 10 * allowed).any():
        return None
    most = tensor.layout.partition.size * allowed + 2.0**-40 * np.abs(joined(wanted)).max()
    for errors, hint in ((sums, _SUM), (means, _MEAN)):
        if (np.abs(joined(errors)) <= most).all():
            return hint
    return None


def _copies(tensor: Tensor) -> list[list[int]]:
    """Groups of several ranks that hold copies of the same part."""
    by_first: dict[int, list[int]] = {}
    for rank, first in tensor.groups.items():
        by_first.setdefault(first, []).append(rank)
    return [ranks for ranks in by_first.values() if len(ranks) > 1]
