"""Each hint is told in full: its kind, and the numbers and ranks that it speaks of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from adjointlab.checks.hints import (
    FaultKind,
    Hint,
    are_telling,
    hint_beside_right_entries,
    matrix_hint,
    memory_order_hint,
    narrowing_hint,
    scaled_alike_hint,
    value_hint,
)
from adjointlab.typing import NumpyArray

pytestmark = pytest.mark.mpi_skip

WANT = np.array([243540.0, -280552.0, 607773.0, -972300.0])
RANKS = np.array([0, 0, 1, 1])


def told(factor: float, size: int, run_ranks: int = 0) -> tuple[FaultKind, str] | None:
    hint = value_hint(factor * WANT, WANT, RANKS, size, 1e-6, run_ranks=run_ranks)
    return None if hint is None else (hint.kind, hint.text)


@pytest.mark.parametrize(
    ("factor", "size", "run_ranks", "hint"),
    [
        (-1, 1, 0, (FaultKind.SIGN, "the negative of the expected value")),
        (-1, 3, 6, (FaultKind.SIGN, "the negative of the expected value")),
        (2, 1, 0, (FaultKind.DOUBLED, "twice the expected value")),
        (2, 2, 0, (FaultKind.DOUBLED, "twice the expected value, on 2 ranks")),
        (2, 1, 2, (FaultKind.DOUBLED, "twice the expected value, on 2 ranks")),
        (2, 2, 6, (FaultKind.DOUBLED, "twice the expected value, on 2 ranks")),
        (2, 3, 0, (FaultKind.DOUBLED, "twice the expected value")),
        (0.5, 4, 0, (FaultKind.HALVED, "half of the expected value")),
        (0.5, 2, 4, (FaultKind.HALVED, "half of the expected value, on 2 ranks")),
        (3, 3, 0, (FaultKind.TIMES_RANKS, "3 times the expected value, on 3 ranks")),
        (3, 3, 6, (FaultKind.TIMES_RANKS, "3 times the expected value, on 3 ranks")),
        (6, 3, 6, (FaultKind.TIMES_RANKS, "6 times the expected value, on 6 ranks")),
        (1 / 3, 3, 6, (FaultKind.BY_RANKS, "1/3 of the expected value, on 3 ranks")),
        (1 / 6, 3, 6, (FaultKind.BY_RANKS, "1/6 of the expected value, on 6 ranks")),
        (4, 3, 6, (FaultKind.MULTIPLE, "4 times the expected value, on 6 ranks")),
        (5, 3, 6, (FaultKind.MULTIPLE, "5 times the expected value, on 6 ranks")),
        (0.25, 3, 6, (FaultKind.FRACTION, "1/4 of the expected value, on 6 ranks")),
        (0.2, 3, 6, (FaultKind.FRACTION, "1/5 of the expected value, on 6 ranks")),
        (3, 4, 0, (FaultKind.MULTIPLE, "3 times the expected value, on 4 ranks")),
        (7, 3, 6, None),
        (1 / 7, 3, 6, None),
        (3, 2, 0, None),
        (3, 1, 3, (FaultKind.TIMES_RANKS, "3 times the expected value, on 3 ranks")),
        (-2, 4, 4, None),
        (1.5, 4, 4, None),
        (np.sqrt(2), 2, 0, (FaultKind.TIMES_ROOT, "√2 times the expected value, on 2 ranks")),
        (1 / np.sqrt(2), 2, 6, (FaultKind.BY_ROOT, "1/√2 of the expected value, on 2 ranks")),
        (np.sqrt(6), 6, 0, (FaultKind.TIMES_ROOT, "√6 times the expected value, on 6 ranks")),
        (1 / np.sqrt(6), 6, 0, (FaultKind.BY_ROOT, "1/√6 of the expected value, on 6 ranks")),
        (np.sqrt(6), 2, 6, None),
    ],
)
def test_a_factor_is_told_with_the_ranks_that_it_is_of(
    factor: float, size: int, run_ranks: int, hint: tuple[FaultKind, str] | None
) -> None:
    assert told(factor, size, run_ranks) == hint


def test_the_relation_is_that_of_the_elements_that_differ_whatever_the_others_are() -> None:
    got = np.where([True, False, True, False], 2 * WANT, WANT)
    assert value_hint(got, WANT, RANKS, 1) == Hint(FaultKind.DOUBLED, "twice the expected value")
    got[0] = -WANT[0]
    assert value_hint(got, WANT, RANKS, 1) is None


@pytest.mark.parametrize(
    ("got", "hint"),
    [
        (np.conj, (FaultKind.CONJUGATE, "the conjugate of the expected value")),
        (
            lambda want: want.real + 0j,
            (FaultKind.REAL_PART, "the real part of the expected value: the imaginary part is dropped"),
        ),
        (lambda want: 2 * want, (FaultKind.DOUBLED, "twice the expected value")),
        (lambda want: -want, (FaultKind.SIGN, "the negative of the expected value")),
        (lambda want: 1j * want, None),
        (
            lambda want: want * (1 + 2.0**-9),
            (FaultKind.NARROWED, "right but for rounding: a narrower element type on the way"),
        ),
    ],
)
def test_complex_values_tell_what_became_of_their_parts(got: Any, hint: tuple[FaultKind, str] | None) -> None:
    want = WANT + 1j * (WANT[::-1] + 17)
    found = value_hint(got(want), want, RANKS, 1)
    assert (None if found is None else (found.kind, found.text)) == hint


def test_values_in_other_places_are_misplaced_and_something_where_nothing_is_due_is_extra() -> None:
    misplaced = Hint(FaultKind.MISPLACED, "the wrong elements hold values expected at other elements")
    extra = Hint(FaultKind.EXTRA, "a value where zero is expected")
    want = np.array([243540.0, -280552.0, 0.0, 0.0])
    assert value_hint(want[[1, 0, 2, 3]], want, RANKS, 1) == misplaced
    assert value_hint(want[[0, 1, 0, 3]], want, RANKS, 1) == misplaced
    assert value_hint(want[[2, 1, 0, 3]], want, RANKS, 1) == misplaced
    assert value_hint(np.add(want, [0, 0, 5, 0]), want, RANKS, 1) == extra
    assert value_hint(np.add(want, [0, 0, 123457, 0]), want, RANKS, 1) == extra
    assert value_hint(np.add(want, [0, 0, 1234, want[0]]), want, RANKS, 1) == extra
    assert value_hint(np.array([7.0, -280552.0, 0, 0]), want, RANKS, 1) is None


@pytest.mark.parametrize(
    ("value", "allowed", "is_telling"),
    [
        (1000, 0, True),
        (-1000, 0, True),
        (999, 0, False),
        (0, 0, False),
        (3 / 256, 0, False),
        (3 / 512, 0, True),
        (-3 / 512, 0, True),
        (999 + 1 / 512, 0, True),
        (1000, 99.9, True),
        (1000, 100, False),
        (0.3, 0.02, True),
        (0.3, 0.03, False),
        (0.3, 0.04, False),
    ],
)
def test_a_value_tells_if_it_is_large_or_has_many_digits_and_stands_out_of_the_tolerance(
    value: float, allowed: float, is_telling: bool
) -> None:
    assert are_telling(np.array([value, 0.0]), allowed).tolist() == [is_telling, False]


SUM_DROPPED = Hint(FaultKind.SUM_DROPPED, "some of the terms of a sum are missing, and the others are right")
MISPLACED = Hint(FaultKind.MISPLACED, "the same entries in other places")
MISSING = Hint(FaultKind.MISSING, "zero where another value is expected")


@pytest.mark.parametrize(
    ("got", "want", "hint"),
    [
        ([[0, 1, 0], [1, 0, 0], [0, 0, 1]], np.eye(3), MISPLACED),
        (
            [[1, 0, 0], [0, 1, 0], [0, 0, 3]],
            np.eye(3),
            Hint(FaultKind.TIMES_RANKS, "3 times the expected value, on 3 ranks"),
        ),
        (
            [[1, 0, 0], [0, 1, 0], [0, 0, 1 / 3]],
            np.eye(3),
            Hint(FaultKind.BY_RANKS, "1/3 of the expected value, on 3 ranks"),
        ),
        (
            np.eye(3) * [1, 1, 0],
            np.eye(3),
            Hint(FaultKind.ZERO_RANK, "all is zero on rank 2, and right elsewhere"),
        ),
        (np.eye(3) * [0, 1, 0], np.eye(3), MISSING),
        (np.eye(3) + np.eye(3, k=2), np.eye(3), Hint(FaultKind.EXTRA, "a value where zero is expected")),
        ([[1, 0, 0], [0, 0, 0], [0, 0, 0]], [[1, 0, 0], [1, 0, 0], [1, 0, 0]], SUM_DROPPED),
        ([[1, 0, 0], [0, 0, 0], [0, 0, 0]], [[1, 1, 1], [0, 0, 0], [0, 0, 0]], SUM_DROPPED),
        ([[1, 0, 0], [0, 0, 0], [0, 0, 0]], [[1, 0, 0], [1, 0, 0], [0, 0, 1]], MISSING),
        ([[1, 0, 0], [0, 1, 0], [0, 0, 1]], [[1, 1, 0], [1, 1, 0], [0, 0, 1]], SUM_DROPPED),
        ([[1, 0, 0], [0, 1, 0], [0, 0, 1]], np.eye(3), None),
        ([[1, 2, 0], [0, 1, 0], [0, 0, 3]], np.eye(3), None),
        (
            [[1j, 0, 0], [0, 1, 0], [0, 0, 1]],
            [[-1j, 0, 0], [0, 1, 0], [0, 0, 1]],
            Hint(FaultKind.CONJUGATE, "the conjugate of the expected value"),
        ),
        ([[np.nan, 0, 0], [0, 1, 0], [0, 0, 1]], np.eye(3), None),
        (np.eye(3), [[np.inf, 0, 0], [0, 1, 0], [0, 0, 1]], None),
    ],
)
def test_a_matrix_tells_what_became_of_its_entries(got: Any, want: Any, hint: Hint | None) -> None:
    assert matrix_hint(np.asarray(got), np.asarray(want), [0, 1, 2], [0, 1, 2]) == hint


def test_the_ranks_of_a_matrix_are_those_of_its_rows_and_columns() -> None:
    for rows, columns, text in (
        ([0, 1], [2, 2], "3 times the expected value, on 3 ranks"),
        ([0, 0], [1, 2], "3 times the expected value, on 3 ranks"),
        ([0, 1], [2, 3], "3 times the expected value, on 4 ranks"),
    ):
        hint = matrix_hint(3 * np.eye(2), np.eye(2), rows, columns)
        assert hint is not None
        assert hint.text == text


def scaled(one: float, other: float, size: int) -> Hint | None:
    def pair(factor: float) -> tuple[NumpyArray, NumpyArray]:
        return factor * np.eye(3), np.eye(3)

    return scaled_alike_hint(pair(one), pair(other), size)


@pytest.mark.parametrize("size", [2, 3, 5, 6])
def test_both_directions_may_be_scaled_by_a_root(size: int) -> None:
    root = float(np.sqrt(size))
    assert scaled(root, root, size) == Hint(
        FaultKind.TIMES_ROOT, f"√{size} times the expected value, on {size} ranks, in both directions"
    )
    assert scaled(1 / root, 1 / root, size) == Hint(
        FaultKind.BY_ROOT, f"1/√{size} of the expected value, on {size} ranks, in both directions"
    )
    for one, other in ((root, 1 / root), (1 / root, root), (root, 1), (1, root), (1, 1)):
        assert scaled(one, other, size) is None
    assert scaled(root, root, size + 1) is None


@pytest.mark.parametrize("size", [0, 1, 4, 9])
def test_a_whole_root_is_no_matter_of_this_hint(size: int) -> None:
    assert scaled(float(np.sqrt(size)), float(np.sqrt(size)), size) is None


def test_all_entries_that_differ_must_be_due_and_scaled_alike() -> None:
    root, eye = float(np.sqrt(2)), np.eye(3)
    one_right = np.diag([root, 1, root])
    assert scaled_alike_hint((one_right, eye), (root * eye, eye), 2) is not None
    extra = root * eye + np.eye(3, k=2)
    assert scaled_alike_hint((extra, eye), (root * eye, eye), 2) is None
    another = np.diag([root, 2, root])
    assert scaled_alike_hint((another, eye), (root * eye, eye), 2) is None


def test_hints_of_memory_and_of_rounding_are_told_in_full() -> None:
    strides = "right where the argument is row-major in memory, and wrong where it is "
    assert memory_order_hint(["strided", "offset", "strided"]) == Hint(
        FaultKind.STRIDES, f"{strides}strided or offset"
    )
    assert hint_beside_right_entries(["row-major", "reversed"], is_complex=False) == Hint(
        FaultKind.STRIDES, f"{strides}reversed"
    )
    assert hint_beside_right_entries(["row-major"], is_complex=True) == Hint(
        FaultKind.IMAGINARY,
        "right for real arguments, and wrong for complex ones; a function that is linear over the real numbers alone, such as a "
        "conjugation, has to take real and imaginary parts as real tensors",
    )
    assert narrowing_hint(1e-6, 1.0) == Hint(
        FaultKind.NARROWED, "right but for rounding: a narrower element type on the way"
    )


def test_values_of_any_size_are_looked_at_without_a_warning() -> None:
    sizes = (0.0, 1.0, -12.0, 5e-324, -1.4e-322, 1e-310, 1e308, 3.5)
    values = [complex(one, other) for one in sizes for other in (0.0, *sizes)]
    for due in values:
        got = np.array(values)
        value_hint(got, np.full(got.shape, due), np.arange(len(got)) % 2, 2)
        value_hint(np.array([got[0], due]), np.array([due, 12.0]), np.array([0, 1]), 2, 1e-320)
