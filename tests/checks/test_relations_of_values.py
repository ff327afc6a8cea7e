"""Hints at the edges of what they tell: tolerances, thresholds, and which of two relations is told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from adjointlab.checks.hints import (
    FaultKind,
    hint_beside_right_entries,
    matrix_hint,
    narrowing_hint,
    scaled_alike_hint,
    value_hint,
)
from tests.checks.test_texts_of_hints import RANKS, WANT

pytestmark = pytest.mark.mpi_skip


def kind(got: Any, want: Any = WANT, allowed: float = 0.0, size: int = 2) -> FaultKind | None:
    want = np.asarray(want)
    ranks = np.arange(want.size) * 2 // want.size
    hint = value_hint(np.asarray(got), want, ranks, size, allowed)
    return None if hint is None else hint.kind


@pytest.mark.parametrize(
    ("got", "want", "allowed", "told"),
    [
        # Differences up to what is allowed are none, neither of right elements nor of the relation.
        (WANT + 1, WANT, 1, None),
        (np.add(WANT, [1, 0, 0, 2]), WANT, 1, None),
        (2 * WANT + [1, -1, 1, -1], WANT, 1, FaultKind.DOUBLED),
        (2 * WANT + [1, -1, 1, -1.5], WANT, 1, None),
        ([WANT[0] + 1, *2 * WANT[1:]], WANT, 1, FaultKind.DOUBLED),
        ([WANT[0] + 2, *2 * WANT[1:]], WANT, 1, None),
        # What rounding changes is relative to the value.
        (2 * WANT * (1 + 5e-13), WANT, 0, FaultKind.DOUBLED),
        (2 * WANT * (1 + 2e-12), WANT, 0, None),
        # Every number that is to be a multiple stands out of the tolerance tenfold, and one stands out a hundredfold.
        ([2000.0, 22.0], [1000.0, 11.0], 1, FaultKind.DOUBLED),
        ([2000.0, 20.0], [1000.0, 10.0], 1, None),
        ([2000.0, 18.0], [1000.0, 9.0], 1, None),
        ([2000.0, 400.0], [1000.0, 200.0], 9.9, FaultKind.DOUBLED),
        ([2000.0, 400.0], [1000.0, 200.0], 10, None),
        # Rounding to few bits, of large numbers alone, and where nothing may differ.
        (WANT * (1 + 2.0**-8), WANT, 0, FaultKind.NARROWED),
        (WANT * (1 - 2.0**-8), WANT, 0, FaultKind.NARROWED),
        (WANT * (1 + 2.0**-6), WANT, 0, None),
        (WANT * (1 - 2.0**-6), WANT, 0, None),
        (WANT * (1 + 2.0**-8), WANT, 1e-6, None),
        ([12800.0 * 129 / 128, 12800.0], [12800.0, 12800.0], 0, None),
        ([10001.0 + 1 / 128, 7.0], [10001.0, 7.0], 0, FaultKind.NARROWED),
        ([10000.0 + 1 / 128, 7.0], [10000.0, 7.0], 0, None),
        ([20000.5, 9000.5], [20000.0, 9000.0], 0, None),
        # Numbers that memory held by chance.
        ([-0.9e150, 0.9e150], [0.9e150, -0.9e150], 0, FaultKind.SIGN),
        ([1e150, 1e149], [0.5e150, 0.5e149], 0, None),
        ([0.5e150, 0.5e149], [1e150, 1e149], 0, None),
        ([2000.0, np.nan], [1000.0, 3000.0], 0, None),
        ([2000.0, 6000.0], [1000.0, np.inf], 0, None),
        # A relation is told before places that happen to hold equal values.
        ([2000.0, 2000.0, 4000.0], [1000.0, 2000.0, 4000.0], 0, FaultKind.DOUBLED),
        ([1000.0, 1000.0, 4000.0], [1000.0, 2000.0, 4000.0], 0, FaultKind.HALVED),
        ([-1000.0, 1000.0], [1000.0, -1000.0], 0, FaultKind.SIGN),
        ([1000 - 5j, 1000 + 5j], [1000 + 5j, 1000 - 5j], 0, FaultKind.CONJUGATE),
        ([1000, 1000], [1000 + 5j, 1000], 0, FaultKind.REAL_PART),
        ([0, 2000j], [2000j, 2000j], 0, FaultKind.REAL_PART),
        # What is misplaced may be off by what is allowed, and is as telling as other values.
        ([WANT[1] + 1, *WANT[1:]], WANT, 1, FaultKind.MISPLACED),
        ([WANT[1] + 1.5, *WANT[1:]], WANT, 1, None),
        ([0.0, WANT[0], *WANT[2:]], WANT, 0, FaultKind.MISPLACED),
        ([1.0, WANT[0], *WANT[2:]], WANT, 0, None),
        ([WANT[1] - 1, *WANT[1:]], WANT, 1, FaultKind.MISPLACED),
        ([9.0, 1000.0, 9.0, 1000.0], [1000.0, 9.0, 9.0, 1000.0], 0, FaultKind.MISPLACED),
        ([9.0, 9.0, 8.0, 1000.0], [8.0, 8.0, 9.0, 1000.0], 0, None),
    ],
)  # fmt: skip
def test_values_at_the_edge_of_a_relation(
    got: Any, want: Any, allowed: float, told: FaultKind | None
) -> None:
    assert kind(got, want, allowed) is told


@pytest.mark.parametrize(("foreign", "told"), [(100, FaultKind.MISPLACED), (99, None), (0, None)])
def test_a_hundred_values_tell_that_all_are_misplaced(foreign: int, told: FaultKind | None) -> None:
    want = np.random.default_rng(0).permutation(10**6)[:150].astype(float)
    got = np.roll(want, 1)
    got[foreign] = 2.0**20 + 1
    assert kind(got, want) is told


@pytest.mark.parametrize(
    ("got", "want", "told"),
    [
        ([1, 1, 0, 0], [1, 1, 1, 1], "all is zero on rank 1, and right elsewhere"),
        ([0, 0, 1, 1], [1, 1, 1, 1], "all is zero on rank 0, and right elsewhere"),
        ([0, 0, -1, -1], [-1, -1, -1, -1], "all is zero on rank 0, and right elsewhere"),
        ([0, 0, 1, 1], [1, 0, 1, 1], "all is zero on rank 0, and right elsewhere"),
        ([0, 0, 0, 1], [1, 1, 0, 1], "all is zero on rank 0, and right elsewhere"),
        ([0, 1, 1, 1], [1, 1, 1, 1], "zero where another value is expected"),
        ([0, -1, 1, 1], [-1, -1, 1, 1], "zero where another value is expected"),
        ([0, 0, 0, 0], [1, 1, 0, 0], "zero where another value is expected"),
        ([0, 0, 0, 0], [1, 1, 1, 1], "zero where another value is expected"),
        ([0, 1, 0, 1], [1, 1, 1, 1], "zero where another value is expected"),
        ([0, 0, 0, 1], [1, 1, 1, 1], "zero where another value is expected"),
    ],
)
def test_zeros_are_those_of_one_rank_if_all_of_its_values_are_and_others_are_right(
    got: list[int], want: list[int], told: str
) -> None:
    hint = value_hint(np.array(got) * WANT, np.array(want) * WANT, RANKS, 2)
    assert hint is not None
    assert hint.text == told


@pytest.mark.parametrize(
    ("got", "want", "told"),
    [
        # A right zero is not a term that was kept.
        (np.zeros((2, 2)), [[1, 1], [1, 1]], FaultKind.MISSING),
        ([[0, 0, 1], [0, 0, 0], [0, 0, 1]], [[1, 1, 1], [1, 1, 0], [0, 0, 1]], FaultKind.MISSING),
        # Of each row, or of each column, that differs, something is kept.
        ([[1, 0], [0, 1]], [[1, 1], [0, 1]], FaultKind.SUM_DROPPED),
        ([[1, 0], [0, 0]], [[1, 1], [0, 0]], FaultKind.SUM_DROPPED),
        ([[1, 0], [0, 0]], [[1, 0], [1, 0]], FaultKind.SUM_DROPPED),
        ([[1, 0], [0, 0]], [[1, 1], [1, 1]], FaultKind.MISSING),
        ([[-1, 0], [0, 0]], [[-1, -1], [0, 0]], FaultKind.SUM_DROPPED),
        ([[0, 0], [0, 1]], [[1, 1], [0, 1]], FaultKind.MISSING),
        # Zero on the rank of the last column, which keeps nothing, while its row does.
        ([[1, 0], [0, 0]], [[1, 0], [0, 1]], FaultKind.ZERO_RANK),
        # The same numbers in other places, though they are due nowhere that is wrong.
        ([[2, 1], [3, 4]], [[1, 2], [3, 4]], FaultKind.MISPLACED),
        ([[2, 1], [3, 5]], [[1, 2], [3, 4]], None),
        ([[0, 1], [0, 0]], [[0, 0], [0, 0]], FaultKind.EXTRA),
        ([[1, 2, 3]], [[1, 2]], None),
        ([[1], [2]], [[1, 2]], None),
        ([[1, 2]], [[1, 2]], None),
        ([[1, -np.inf]], [[1, 2]], None),
        ([[1, 2]], [[1, np.nan]], None),
    ],
)
def test_entries_of_a_matrix_that_are_missing_or_misplaced(
    got: Any, want: Any, told: FaultKind | None
) -> None:
    sides = np.asarray(want).shape
    hint = matrix_hint(np.asarray(got), np.asarray(want), list(range(sides[0])), list(range(sides[1])))
    assert (None if hint is None else hint.kind) is told


@pytest.mark.parametrize("size", [2, 3, 6])
@pytest.mark.parametrize("is_inverse", [False, True])
def test_a_root_may_be_off_by_rounding_in_single_precision(size: int, is_inverse: bool) -> None:
    factor = float(size ** (-0.5 if is_inverse else 0.5))
    for off, is_told in ((0.9, True), (-0.9, True), (1.1, False), (-1.1, False)):
        pair = (np.eye(2) * factor * (1 + off * 2.0**-20), np.eye(2))
        assert (scaled_alike_hint(pair, pair, size) is not None) == is_told


def test_an_error_below_a_256th_is_of_rounding() -> None:
    for error, size, is_told in (
        (0.0, 4.0, False),
        (2.0**-6 - 2.0**-30, 4.0, True),
        (2.0**-6, 4.0, False),
        (2.0**-30, 4.0, True),
        (1.0, 0.0, False),
    ):
        assert (narrowing_hint(error, size) is not None) == is_told


def test_what_is_right_in_all_memory_orders_and_real_has_no_hint() -> None:
    assert hint_beside_right_entries(["row-major"], is_complex=False) is None
    assert hint_beside_right_entries([], is_complex=False) is None
