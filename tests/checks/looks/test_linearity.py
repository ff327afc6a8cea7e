"""Looks of the check of linearity."""

from __future__ import annotations

from typing import Any

import numpy as np

from adjointlab.checks.context import InputSetting
from adjointlab.checks.linearity import LINEARITY
from tests.checks.looks.harness import Look, assert_seen, each_of, verdict
from tests.checks.looks.operators import (
    TwoOfCopies,
    TwoRings,
    filled_with,
    is_zero,
    larger_than,
    noting_largest,
    on,
    ring,
    where,
)

ODD, EVEN = InputSetting(1), InputSetting(2)
"""Seeds of which one has the scalar i between complex spaces, and the other 2."""

SOME_ZERO, ZERO_ON_RANK_1 = InputSetting(3), InputSetting(6)
"""Seeds with which the first vector is zero in a third of the places, and on every second rank."""

MANY = {"shape": (8,)}  # elements, of either sign


def magnitude(operator: Any, x: Any, result: Any) -> Any:
    return abs(result)


def conjugate(operator: Any, x: Any, result: Any) -> Any:
    return result.conj()


def plus_one(operator: Any, x: Any, result: Any) -> Any:
    return result + 1


def slightly_more_where_positive(operator: Any, x: Any, result: Any) -> Any:
    return result + abs(result) * 2.0**-30


def slightly_more(operator: Any, x: Any, result: Any) -> Any:
    """An error that is within rounding wherever the argument is not zero."""
    return result + 1e-12


def neighbours_added(operator: Any, x: Any, result: Any) -> Any:
    result[1:] += result[:-1].copy()
    return result


def doubled_where_some_are_zero(operator: Any, x: Any, result: Any) -> Any:
    return result * 2 if 0 < np.count_nonzero(x) < x.size else result


def slightly_more_where_some_are_zero(operator: Any, x: Any, result: Any) -> Any:
    return result * (1 + 2.0**-30) if 0 < np.count_nonzero(x) < x.size else result


def mean_of_ranks_that_have_something(operator: Any, x: Any, result: Any) -> Any:
    return result * 12 / max(1, operator.comm.allreduce(int(np.any(x))))


def one_more_where_copies_differ(operator: Any, x: Any, result: Any) -> Any:
    first, *others = operator.comm.allgather(x.tolist())
    return result + any(each != first for each in others)


def of_second(operator: Any, x: Any, results: Any) -> Any:
    return results[0], abs(results[1])


def between(low: float, high: float) -> Any:
    above, beyond = larger_than(low), larger_than(high)
    return lambda operator, x: above(operator, x) and not beyond(operator, x)


def both(direction: str) -> list[Look]:
    """The looks of a direction."""
    wrong = f"{direction} is not linear"
    return [
        Look(f"{direction}, the sum on rank 0", ring(**MANY, **{direction: on(0, magnitude)}), wrong, 3),
        Look(f"{direction}, the sum on the last rank", ring(**MANY, **{direction: on(-1, magnitude)}), wrong, 3),
        Look(f"{direction}, the imaginary scalar", ring(dtype="complex128", **{direction: conjugate}), wrong, setting=ODD),
        Look(f"{direction}, a real scalar", ring(dtype="complex128", **{direction: conjugate}), "", setting=EVEN),
        Look(f"{direction}, zero on rank 0", ring(**{direction: on(0, where(is_zero, plus_one))}), "F(0)", 3),
        Look(f"{direction}, zero on the last rank", ring(**{direction: on(-1, where(is_zero, plus_one))}), "F(0)", 3),
        Look(f"{direction}, zero where others are rounded", ring(gain=None, **{direction: slightly_more}), "F(0)"),
        Look(f"{direction}, room for what a combination adds", ring(shape=(64,), dtype="float16", gain=2, **{direction: neighbours_added}), ""),
        Look(f"{direction}, zeros in places", ring(**MANY, **{direction: doubled_where_some_are_zero}), wrong, setting=SOME_ZERO),
        Look(f"{direction}, zeros among large numbers", ring(gain=None, **MANY, **{direction: slightly_more_where_some_are_zero}), wrong, setting=SOME_ZERO),
        Look(f"{direction}, zeros on a rank", ring(**MANY, **{direction: mean_of_ranks_that_have_something}), wrong, setting=ZERO_ON_RANK_1),
        Look(f"{direction}, zeros on a rank, and on all that hold copies", ring(TwoOfCopies, **{direction: one_more_where_copies_differ}), "", setting=ZERO_ON_RANK_1),
        Look(f"{direction}, exactly", ring(**MANY, **{direction: slightly_more_where_positive}), wrong),
        Look(f"{direction}, large integers", ring(**MANY, **{direction: where(between(2.0**18, 2.0**20), magnitude)}), wrong),
        Look(f"{direction}, the second tensor", ring(TwoRings, **{direction: of_second}), wrong),
        Look(f"{direction}, NaN of the combination alone", ring(**{direction: on(1, where(larger_than(2.0**20), filled_with(np.nan)))}), f"{direction} returned nan on rank 1"),
        Look(f"{direction}, NaN of single vectors alone", ring(**{direction: on(1, where(between(0, 2.0**20), filled_with(np.nan)))}), f"{direction} returned nan on rank 1"),
        Look(f"{direction}, NaN of zero alone", ring(**{direction: on(1, where(is_zero, filled_with(np.nan)))}), f"{direction} returned nan on rank 1"),
    ]  # fmt: skip


@each_of([*both("forward"), *both("adjoint")])
def test_a_look_of_linearity(look: Look) -> None:
    assert_seen(LINEARITY, look)


def test_a_quarter_of_the_exact_integers_are_combined() -> None:
    # K = 2047 // 4 in half precision, so that |2x + y| is 3K at most, and nearly so among many elements.
    largest: dict[str, float] = {}
    make = ring(shape=(2000,), dtype="float16", **noting_largest(largest))
    assert verdict(LINEARITY, Look("", make, "")).is_coherent
    assert len(largest) == 2
    for seen in largest.values():
        assert 0.95 * 3 * 511 < seen <= 3 * 511
