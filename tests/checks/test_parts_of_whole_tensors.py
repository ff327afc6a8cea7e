"""The part of a whole tensor that a rank holds, and the multiples of a parameter by which its elements may differ."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import adjointlab as al
from adjointlab.checks.elements import largest_magnitude
from adjointlab.checks.layers.repeated import _along, _multiple
from adjointlab.checks.whole_tensors import held
from adjointlab.core.space import Tensor

pytestmark = pytest.mark.mpi_skip

WIDE = al.Layout((7,), (3,), windows=[[(-2, 3), (3, 3), (2, 9)]])
GRID = al.Layout((4, 5), (1, 2), windows=[[(1, 3)], [(-1, 2), (1, 7)]])


def test_a_rank_holds_its_window_and_zero_beyond_the_tensor() -> None:
    whole = np.arange(1.0, 8.0)
    tensor = Tensor(WIDE, "float64", name="x")
    assert held(tensor, whole, 0).tolist() == [0, 0, 1, 2, 3]
    assert held(tensor, whole, 1).tolist() == []
    assert held(tensor, whole, 2).tolist() == [3, 4, 5, 6, 7, 0, 0]

    field = np.arange(1.0, 21.0).reshape(4, 5)
    of_two = Tensor(GRID, "float64", name="x")
    assert held(of_two, field, 0).tolist() == [[0, 6, 7], [0, 11, 12]]
    assert held(of_two, field, 1).tolist() == [[7, 8, 9, 10, 0, 0], [12, 13, 14, 15, 0, 0]]


def test_of_summands_the_first_rank_holds_all() -> None:
    (tensor,) = al.Space(al.Layout((3,), (2,), axes=[None]), types=["partial"]).tensors
    whole = np.array([5.0, 6.0, 7.0])
    assert [held(tensor, whole, rank).tolist() for rank in range(2)] == [[5, 6, 7], [0, 0, 0]]
    # The first one of the grid, whatever its number is.
    permuted = al.Layout((3,), al.Partition((2,), (1, 0)), axes=[None])
    (tensor,) = al.Space(permuted, types=["partial"]).tensors
    assert [held(tensor, whole, rank).tolist() for rank in range(2)] == [[0, 0, 0], [5, 6, 7]]


@pytest.mark.parametrize(
    ("array", "largest"),
    [
        (np.array([0.25, -0.5]), 0.5),
        (np.zeros(3), 0.0),
        (np.zeros((0, 2)), 0.0),
        (np.array(-0.25), 0.25),
        (np.array([[3 + 4j, 1]]), 5.0),
    ],
)
def test_the_largest_magnitude_of_an_array(array: Any, largest: float) -> None:
    assert largest_magnitude(array) == largest


def test_a_parameter_lies_along_a_dimension_of_a_window_and_is_unknown_beyond_the_tensor() -> None:
    bias = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    nan = np.nan
    for rank, expected in ((0, [nan, 1, 2]), (1, [2, 3, 4, 5, nan, nan])):
        part = _along(bias, GRID, rank, 1)
        assert part.shape == (1, len(expected))
        np.testing.assert_array_equal(part[0], expected)
    rows = _along(bias[:4], GRID, 1, 0)
    assert rows.tolist() == [[2], [3]]


TERMS = np.array([0.123, -4.567, 8.901])
RIGHT = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])


@pytest.mark.parametrize(
    ("times", "found"), [(-2, None), (-1, -1), (0, None), (1, 1), (2, 2), (3, 3), (0.5, None), (1.25, None)]
)
def test_elements_that_are_wrong_differ_by_a_whole_multiple_of_the_terms(
    times: float, found: int | None
) -> None:
    want = {0: RIGHT, 1: RIGHT}
    got = {0: RIGHT + times * TERMS, 1: RIGHT.copy()}
    terms = {0: TERMS[None], 1: TERMS[None]}
    assert _multiple(got, want, terms, 1e-6) == found
    # Where one element differs by something else, there is no such multiple.
    got[1][1, 2] += 0.5
    assert _multiple(got, want, terms, 1e-6) is None


@pytest.mark.parametrize(("off", "found"), [(1.9e-3, 1), (2.1e-3, None), (-1.9e-3, 1), (-2.1e-3, None)])
def test_each_side_may_be_off_by_what_is_allowed(off: float, found: int | None) -> None:
    got = RIGHT + TERMS
    got[0, 0] += off
    assert _multiple({0: got}, {0: RIGHT}, {0: TERMS[None]}, 1e-3) == found


def test_terms_that_agree_by_chance_and_values_that_are_not_finite_tell_nothing() -> None:
    small = np.array([1.0, 2.0, 3.0])
    assert _multiple({0: RIGHT + small}, {0: RIGHT}, {0: small[None]}, 0.0) is None
    got = RIGHT + TERMS
    got[0, 0] = np.nan
    assert _multiple({0: got}, {0: RIGHT}, {0: TERMS[None]}, 1e-6) is None
    assert _multiple({0: (RIGHT + TERMS)[:1]}, {0: RIGHT}, {0: TERMS[None]}, 1e-6) is None
    assert _multiple({0: RIGHT}, {0: RIGHT}, {0: TERMS[None]}, 1e-6) is None
    assert _multiple({}, {}, {}, 1e-6) is None
