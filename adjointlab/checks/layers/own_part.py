"""Wrong results of a layer that depend only on the rank's own data: shown by two runs that differ in the data of the other ranks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adjointlab.checks.layers.compared_passes import Comparison, PassObservation
from adjointlab.core.space import LocalType, Tensor

__all__ = ["is_of_own_part"]

_ROUNDING = 2.0**-6
"""Fraction of the largest value below which a difference may be rounding in half precision; most random values differ by more."""


def is_of_own_part(
    observations: Sequence[tuple[PassObservation, ...]],
    others: Sequence[tuple[PassObservation, ...]],
    rank: int,
) -> bool | None:
    """Return True if elements of `rank` that are wrong in the first run are the same in the second, though they should not be.

    In the second run inputs and cotangents have other values wherever `rank` does not hold them. `None` if none of the wrong elements
    should change, or if all of them are zero.
    """
    passes = zip(observations[rank], observations[0], others[rank], others[0], strict=True)
    found = [
        stayed
        for own, leader, after, leader_after in passes
        for results in zip(
            own.comparisons, leader.comparisons, after.comparisons, leader_after.comparisons, strict=True
        )
        for stayed in _stayed(*results, rank)
    ]
    if not all(stays for stays, _ in found):
        return False
    # Zeros may be zero whatever any rank holds, and so are no evidence.
    return True if any(is_there for _, is_there in found) else None


def _stayed(
    own: Comparison, leader: Comparison, after: Comparison, leader_after: Comparison, rank: int
) -> list[tuple[bool, bool]]:
    """For each tensor with wrong elements that should change: whether none of these has changed, and whether one is not zero."""
    assert leader.expected is not None
    assert leader_after.expected is not None
    result = []
    for position, tensor in enumerate(own.space.tensors):
        if LocalType.PARTIAL in tensor.types or tensor.name in (own.without or ()):
            continue  # a summand is right or wrong only together with the others
        if tensor.element.is_integer or not tensor.layout.partition.is_active(rank):
            continue
        got, got_after = own.actual[position], after.actual[position]
        want, want_after = leader.expected[rank][position], leader_after.expected[rank][position]
        if not all(np.isfinite(each).all() for each in (got, got_after, want, want_after)):
            continue
        # Differences far above rounding, in either run.
        scale = _ROUNDING * max(
            float(np.abs(want).max(initial=0.0)), float(np.abs(want_after).max(initial=0.0))
        )
        telling = (np.abs(got - want) > scale) & (np.abs(want_after - want) > scale)
        if telling.any():
            stays = np.abs(got[telling] - got_after[telling]) <= _rounding(tensor) * scale
            result.append((bool(stays.all()), bool(got[telling].any())))
    return result


def _rounding(tensor: Tensor) -> float:
    """Relative difference, in units of the telling one, of elements that differ only by rounding; zero in half precision."""
    precision = tensor.element.precision
    return 2.0 ** (12 - precision) if precision >= 24 else 0.0
