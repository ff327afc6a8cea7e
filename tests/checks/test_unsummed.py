"""Copies of which each rank has its own summand are told from other wrong ones by their sum, or by their mean."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import adjointlab as al
from adjointlab.checks.hints import FaultKind
from adjointlab.checks.layers.unsummed import unsummed_hint

RANKS = al.Partition((2,))
COPIES = al.Tensor(al.Layout((2,), RANKS, axes=(None,)), types=("invariant",))
PARTS = al.Tensor(al.Layout.cut((4,), RANKS, [[0, 2, 4]]))
WANT = [[1000.5, 2048.25]] * 2


@pytest.mark.parametrize(
    ("tensor", "actual", "expected", "missing"),
    [
        (COPIES, [[400.0, 2000.0], [600.5, 48.25]], WANT, "sum"),
        (COPIES, [[1000.5, 2048.25], [0.0, 0.0]], WANT, "sum"),
        (COPIES, [[1000.0, 2000.25], [1001.0, 2096.25]], WANT, "mean"),
        (COPIES, [[400.0, 2000.0], [600.5, 50.0]], WANT, ""),
        (COPIES, [[500.25, 1024.125]] * 2, WANT, ""),  # half of it, and alike
        (COPIES, WANT, WANT, ""),
        (COPIES, [[np.nan, 2000.0], [600.5, 48.25]], WANT, ""),
        (COPIES, [[400.0], [600.5]], WANT, ""),
        (COPIES, [[1.0, 2.0], [3.0, 1.0]], [[4.0, 3.0]] * 2, ""),  # small integers may agree by chance
        (PARTS, [[400.0, 2000.0], [600.5, 48.25]], WANT, ""),
    ],
)
def test_a_sum_over_the_ranks_is_left_out_where_copies_differ_and_add_up_to_what_is_expected(
    tensor: al.Tensor, actual: Any, expected: Any, missing: str
) -> None:
    hint = unsummed_hint(tensor, list(map(np.array, actual)), list(map(np.array, expected)), 0.0)
    assert bool(hint) is bool(missing)
    if hint is not None:
        assert hint.kind is FaultKind.SUM_DROPPED
        assert hint.text.endswith(f"a {missing} over the ranks is missing")
