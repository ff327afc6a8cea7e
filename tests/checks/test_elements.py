"""Elements of a space: how they lie in memory, how two of them are compared, and what is said of a difference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import adjointlab as al
from adjointlab.checks.elements import (
    EXACT,
    Tolerance,
    WhereNotFinite,
    first_difference,
    first_not_finite,
    largest_magnitude,
    norm,
    not_finite_verdict,
    summed,
    tensor_difference,
    unequal_copies_verdict,
)
from adjointlab.checks.hints import FaultKind
from adjointlab.checks.memory_orders import ORDERS, place, placed_as_it_is
from adjointlab.checks.verdict import incoherent

pytestmark = pytest.mark.mpi_skip

VALUES = np.arange(1.0, 7.0).reshape(2, 3)
LINE = al.Space(al.Layout((4,), (2,)))
COPIES = al.Layout((2,), (3,), axes=[None])


# In memory.


@pytest.mark.parametrize(
    ("order", "strides", "around", "first"),
    [
        ("row-major", (3, 1), (8,), 0),
        ("column-major", (1, 2), (8,), 0),
        ("strided", (2 * 10, 2), (6, 10), 12),
        ("offset", (7, 1), (4, 7), 9),
        ("reversed", (-7, -1), (4, 7), 18),
    ],
)
def test_an_array_lies_in_its_buffer_as_its_order_says(
    order: str, strides: tuple[int, int], around: tuple[int, ...], first: int
) -> None:
    placed = place(VALUES, "float64", "numpy", order)
    buffer: Any = placed.buffer
    np.testing.assert_array_equal(placed.view, VALUES)
    assert tuple(side // 8 for side in placed.view.strides) == strides
    assert buffer.shape == around
    address = placed.view.__array_interface__["data"][0] - buffer.__array_interface__["data"][0]
    assert address // 8 == first
    assert np.isnan(buffer).sum() == buffer.size - 6
    assert placed.values is VALUES
    assert placed.unchanged
    # What lies around it is watched, too, bit by bit.
    for index in np.ndindex(buffer.shape):
        before = buffer[index]
        buffer[index] = -0.0
        assert not placed.unchanged
        buffer[index] = before
        assert placed.unchanged


@pytest.mark.parametrize("shape", [(4,), (3, 2), (1, 1, 4), (5, 3, 6), (0, 2)])
@pytest.mark.parametrize("order", ["row-major", "offset", "reversed"])
def test_pairs_of_elements_lie_as_torch_can_take_them_for_complex_numbers(
    shape: tuple[int, ...], order: str
) -> None:
    torch = pytest.importorskip("torch")
    view = place(np.ones(shape), "float64", "torch", order).view
    torch.view_as_complex(view.unflatten(-1, (-1, 2)))


def test_vectors_scalars_and_empty_arrays_have_every_order() -> None:
    for order in ORDERS:
        for values in (np.arange(1.0, 4.0), np.array(5.0), np.zeros((0, 2)), np.zeros((2, 0))):
            placed = place(values, "float64", "numpy", order)
            np.testing.assert_array_equal(placed.view, values)
            assert placed.view.shape == values.shape
            assert placed.unchanged
    (step,) = place(np.arange(3.0), "float64", "numpy", "column-major").view.strides
    assert step == 8


def test_integers_lie_among_the_largest_of_their_type() -> None:
    for dtype, largest in (("int32", 2**31 - 1), ("int64", 2**63 - 1)):
        buffer: Any = place(np.ones(2), dtype, "numpy", "row-major").buffer
        assert buffer.tolist() == [1, 1, largest, largest]


def test_an_array_may_be_watched_where_it_lies() -> None:
    array: Any = np.array([1.0, np.nan])
    placed = placed_as_it_is(array)
    assert placed.view is placed.buffer is array
    assert placed.values is not array
    assert placed.unchanged
    array[0] = 2
    assert not placed.unchanged
    assert placed.values[0] == 1


def test_an_unknown_order_is_refused() -> None:
    with pytest.raises(ValueError, match="order: 'odd' is not one of row-major, column-major, strided,"):
        place(VALUES, "float64", "numpy", "odd")


# Compared.


def difference(
    actual: list[Any], expected: list[Any], space: al.Space = LINE, tolerance: Tolerance = EXACT, **given: Any
) -> tuple[str, str, str] | None:
    got, want = (list(map(np.asarray, each)) for each in (actual, expected))
    found = tensor_difference(space.tensors[0], got, want, tolerance, **given)
    return None if found is None else found[:3]


@pytest.mark.parametrize(
    ("actual", "expected", "found"),
    [
        ([[1.0, 2], [3.0, 4]], [[1.0, 2], [3.0, 4]], None),
        ([[1.0, 2], [3.0, 5]], [[1.0, 2], [3.0, 4]], ("x[3] (rank 1)", "5", "4")),
        ([[1.0, 0.1], [3.0, 5]], [[1.0, 2], [3.0, 4]], ("x[1] (rank 0)", "0.10000000000000001", "2")),
        ([[np.nan, 2], [3.0, 4]], [[np.nan, 2], [3.0, 4]], ("x[0] (rank 0)", "nan", "nan")),
        ([[1.0, 2, 0], [3.0, 4]], [[1.0, 2], [3.0, 4]], ("x (rank 0)", "shape (3,)", "shape (2,)")),
        ([[1.0, 2], [3.0]], [[1.0, 2], [3.0, 4]], ("x (rank 1)", "shape (1,)", "shape (2,)")),
        ([[1.0, 2j], [3.0, 4]], [[1.0, 2], [3.0, 4]], ("x[1] (rank 0)", "0+2j", "2")),
        # Integers of 64 bits differ by more than they hold.
        ([[2**63 - 1, 2], [3, 4]], [[-(2**63), 2], [3, 4]], ("x[0] (rank 0)", f"{2**63 - 1}", f"{-(2**63)}")),
    ],
)  # fmt: skip
def test_the_first_element_that_differs_is_told(
    actual: list[Any], expected: list[Any], found: tuple[str, str, str] | None
) -> None:
    assert difference(actual, expected) == found


@pytest.mark.parametrize(
    ("one", "other"),
    [(1 / 3, 1 / 3 + 2**-52), (1j, 1j + 2**-52), (1j, 1j * (1 + 2**-52)), (2**53, 2**53 + 1)],
)
def test_elements_that_differ_in_the_last_digit_look_different(one: Any, other: Any) -> None:
    found = difference([[one, 0], [0, 0]], [[other, 0], [0, 0]])
    assert found is not None
    assert found[1] != found[2]


def test_of_small_differences_the_largest_is_told_and_a_multiple_is_not_small() -> None:
    want = [(np.array([8.0, 1e-3]),), (np.array([7.0, 6.0]),)]

    def found(*actual: Any) -> tuple[str, bool]:
        difference = first_difference(LINE, [(np.array(part),) for part in actual], want)
        assert difference is not None
        return difference.where, difference.is_small

    assert found([8.0, 1.1e-3], [7.0, 6.0]) == ("x[1] (rank 0)", True)
    assert found([8.0, 1.1e-3], [7.01, 6.0]) == ("x[1] (rank 0)", True)
    assert found([8 + 1e-6, 1e-3], [7 + 1e-4, 6.0]) == ("x[0] (rank 0)", True)
    assert found([8.0, 2e-3], [7.0, 6.0]) == ("x[1] (rank 0)", False)
    assert found([8.0, 5e-4], [7.0, 6.0]) == ("x[1] (rank 0)", False)
    assert found([8 + 1e-6, 2.0], [7.0, 6.0]) == ("x[1] (rank 0)", False)


def test_a_number_that_is_too_large_a_multiple_of_another_gives_no_warning() -> None:
    want = [(np.array([1e300, 1e-300]),), (np.array([0.0, 0.0]),)]
    difference = first_difference(LINE, [(np.array([1e300, 1e280]),), (np.array([0.0, 0.0]),)], want)
    assert difference is not None
    assert difference.is_small


def test_a_difference_has_a_picture_and_a_hint_on_its_kind() -> None:
    want = [(np.array([2.0**20 + 1, 2.0**21 + 3]),), (np.array([2.0**22 + 5, 2.0**23 + 7]),)]
    got = [(2 * want[0][0],), (2 * want[1][0],)]
    found = first_difference(LINE, got, want)
    assert found is not None
    assert found.hint is not None
    assert (found.hint.kind, found.hint.text) == (FaultKind.DOUBLED, "twice the expected value, on 2 ranks")
    evidence = found.evidence("here", "there")
    assert evidence is not None
    assert evidence.place is not None
    assert evidence.place.values == (("here", found.actual), ("there", found.expected))
    assert evidence.place.hint is found.hint
    verdict = found.verdict("they differ", "a", "b", ("more", "to say"))
    lines = ("element", "x[0] (rank 0)"), ("a", found.actual), ("b", found.expected), ("more", "to say")
    assert verdict == incoherent("they differ", *lines)
    assert verdict.evidence == found.evidence("a", "b")
    # Of three ranks of a run two hold the tensor.
    third = [(np.zeros(0),)]
    found = first_difference(LINE, [(3 * x,) for (x,) in want] + third, want + third)
    assert found is not None
    assert found.hint is not None
    assert found.hint.text == "3 times the expected value, on 3 ranks"


ALIKE, THERE, UNJUDGED = WhereNotFinite.ALIKE, WhereNotFinite.THERE_UNJUDGED, WhereNotFinite.UNJUDGED
INF, NAN = np.inf, np.nan


@pytest.mark.parametrize(
    ("got", "want", "alike", "there", "unjudged"),
    [
        (INF, INF, True, True, True),
        (-INF, INF, True, True, True),
        (NAN, INF, True, True, True),
        (INF, NAN, True, True, True),
        (NAN, NAN, True, True, True),
        (1.0, INF, False, True, True),
        (1.0, NAN, True, True, True),
        (INF, 1.0, False, False, False),
        (NAN, 1.0, False, False, True),
        (1.0, 1.0, True, True, True),
        (1.25, 1.0, True, True, True),
        (1.5, 1.0, False, False, False),
    ],
)
def test_values_that_are_not_finite_are_right_where_it_is_said(
    got: float, want: float, alike: bool, there: bool, unjudged: bool
) -> None:
    # An eighth of the largest value that is finite, which is 2.
    tolerance = Tolerance(1 / 8)
    for not_finite, is_right in ((ALIKE, alike), (THERE, there), (UNJUDGED, unjudged)):
        found = difference(
            [[0.0, got], [2, 0.0]], [[0.0, want], [2, 0.0]], LINE, tolerance, not_finite=not_finite
        )
        assert (found is None) == is_right
    found = difference([[0.0, got], [2, 0.0]], [[0.0, want], [2, 0.0]], LINE, tolerance)
    assert (found is None) == (np.isfinite(got) and got in (1.0, 1.25) and want == 1.0)


def test_where_rounding_makes_nan_of_some_values_none_are_judged_beside_infinities() -> None:
    got, want = [[0.0, NAN], [2, 0.0]], [[0.0, 1.0], [2, 0.0]]
    unknown = Tolerance(0.0, absolute=INF)
    assert difference(got, want, LINE, unknown, not_finite=ALIKE) is None
    assert difference(got, want, LINE, unknown) is not None


def test_of_integers_none_may_be_other_than_finite() -> None:
    space = al.Space(al.Layout((4,), (2,)), dtype="int64")
    values = [[0, INF], [2, 0]]
    for not_finite in WhereNotFinite:
        assert difference(values, values, space, not_finite=not_finite) is not None


def test_complex_numbers_may_be_other_than_finite_where_real_ones_may() -> None:
    space = al.Space(al.Layout((4,), (2,)), dtype="complex128")
    values = [[0, INF + 0j], [2j, 0]]
    found = [difference(values, values, space, not_finite=each) is None for each in WhereNotFinite]
    assert found == [each is not WhereNotFinite.WRONG for each in WhereNotFinite]


@pytest.mark.parametrize(
    ("tolerance", "largest", "allowed"),
    [
        (Tolerance(1 / 4), 8.0, 2.0),
        (Tolerance(1 / 4, 16.0), 8.0, 4.0),
        (Tolerance(1 / 4, 16.0), 32.0, 8.0),
        (Tolerance(1 / 4, 16.0, 5.0), 8.0, 5.0),
        (Tolerance(1 / 4, 16.0, 3.0), 8.0, 4.0),
        (EXACT, 8.0, 0.0),
    ],
)
def test_a_tolerance_is_relative_to_the_largest_value_or_reach(
    tolerance: Tolerance, largest: float, allowed: float
) -> None:
    assert tolerance.allowed(largest) == allowed


@pytest.mark.parametrize(
    ("array", "largest"),
    [([0.25, -0.5], 0.5), ([[3 + 4j, 1]], 5.0), (np.zeros((0, 2)), 0.0), (-0.25, 0.25), ([0.0], 0.0)],
)
def test_the_largest_magnitude(array: Any, largest: float) -> None:
    assert largest_magnitude(np.asarray(array)) == largest


def test_summands_are_added_up_on_the_first_of_their_ranks() -> None:
    (partial,) = al.Space(COPIES, types=["partial"]).tensors
    totals = summed(partial, [np.array([rank + 1.0, 10.0]) for rank in range(3)])
    assert {rank: total.tolist() for rank, total in totals.items()} == {0: [6, 30]}
    (scalar,) = al.Space(al.Tensor(al.Layout((), (2,), [], ()), "int64", ("partial",))).tensors
    (total,) = summed(scalar, [np.array(2**62)] * 2).values()
    assert (total.shape, total[()]) == ((), 2**63)
    (narrow,) = summed(scalar, [np.array(1.0, np.float32)] * 2).values()
    assert narrow.dtype == np.float64
    apart = summed(LINE.tensors[0], [np.array([1.0, 2]), np.array([3.0, 4])])
    assert {rank: total.tolist() for rank, total in apart.items()} == {0: [1, 2], 1: [3, 4]}


def test_infinite_summands_of_both_signs_are_added_up_without_a_warning() -> None:
    """With warnings as errors, as projects have them, the lab itself failed."""
    (partial,) = al.Space(COPIES, types=["partial"]).tensors
    (total,) = summed(partial, [np.array([sign * np.inf, 1.0]) for sign in (1, -1, 1)]).values()
    np.testing.assert_array_equal(total, [NAN, 3.0])


# What else may be wrong.


def test_the_first_copy_that_differs_is_told_with_the_other_one() -> None:
    space = al.Space(COPIES, types=["invariant"])
    equal = [(np.array([1.0, 2.0]),)] * 3
    assert unequal_copies_verdict("forward", space, equal) is None
    nan = [(np.array([1.0, NAN]),)] * 3
    assert unequal_copies_verdict("forward", space, nan) is None
    for wrong in (5.0, NAN):
        found = unequal_copies_verdict("adjoint", space, [*equal[:2], (np.array([1.0, wrong]),)])
        assert found is not None
        assert found.headline == "adjoint returns different copies of what is declared equal"
        assert found.lines == (("element", "x[1] (rank 2)"), ("value", f"{wrong:g}"), ("but", "2 on rank 0"))
        assert found.evidence is not None
        assert found.evidence.place is not None
        assert found.evidence.place.values == (("this copy", f"{wrong:g}"), ("the other one", "2 on rank 0"))
    varying = [(np.array([float(rank), 2.0]),) for rank in range(3)]
    assert unequal_copies_verdict("forward", al.Space(COPIES), varying) is None


@pytest.mark.parametrize(("value", "name"), [(NAN, "nan"), (INF, "inf"), (-INF, "inf")])
def test_the_first_value_that_is_not_finite_is_told(value: float, name: str) -> None:
    space = al.Space(LINE.tensors[0], al.Tensor(al.Layout((4,), (2,)), name="y"))
    right = np.array([1.0, 2.0])
    assert first_not_finite(space, (right, right), 0) is None
    assert not_finite_verdict("forward", space, [(right, right)] * 2) is None
    wrong = (right, np.array([1.0, value]))
    assert first_not_finite(space, wrong, 1) == ("y[3] (rank 1)", name)
    found = not_finite_verdict("forward", space, [(right, right), wrong])
    assert found is not None
    assert found.headline == f"forward returned {name} on rank 1"
    assert found.lines == (("element", "y[3] (rank 1)"), ("but", "all inputs were finite"))
    assert found.kind == "forward is not finite"


def test_a_norm_counts_what_is_there_once() -> None:
    two = al.Space(LINE.tensors[0], al.Tensor(COPIES, types=("invariant",), name="c"))
    local = [np.array([3.0, 4j]), np.array([1.0, 2.0])]
    assert [norm(two, local, rank) for rank in (0, 1)] == pytest.approx([30**0.5, 5])


@pytest.mark.parametrize("size", [1e-310, 1e-200, 1.0, 1e200, 1e307])
def test_a_norm_is_right_where_its_square_is_no_number(size: float) -> None:
    local = [np.array([3.0, -4.0]) * size]
    assert norm(al.Space(LINE.tensors[0]), local, 0) == pytest.approx(5 * size, rel=1e-12)
