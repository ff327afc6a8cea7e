"""Each digit of a seed decides one thing, and the same one in every release."""

from __future__ import annotations

import pytest

from adjointlab.checks.adjoint import _NEAR, _SIZES
from adjointlab.checks.seed_digits import (
    ACCUMULATED,
    APART,
    COTANGENTS,
    COURSE,
    LAST_FIRST,
    ON_EVEN_RANKS,
    REQUIRES_GRAD,
    SEED_PERIOD,
    SIZES,
    X_EXPONENT,
    Y_EXPONENT,
    Digit,
)

OF_LAYERS = (REQUIRES_GRAD, APART, ACCUMULATED, COURSE, LAST_FIRST, COTANGENTS)
OF_OPERATORS = (X_EXPONENT, Y_EXPONENT, SIZES, ON_EVEN_RANKS)


def test_stored_cases_have_the_digits_that_they_had() -> None:
    assert OF_LAYERS == ((1, 3), (3, 2), (6, 2), (12, 320), (3840, 2), (7680, 4))
    assert OF_OPERATORS == ((1, 4), (4, 4), (16, 15), (240, 2))
    assert SEED_PERIOD == 30720
    assert (X_EXPONENT.base, Y_EXPONENT.base, SIZES.base) == (len(_NEAR), len(_NEAR), len(_SIZES))


@pytest.mark.parametrize("digits", [OF_LAYERS, OF_OPERATORS])
@pytest.mark.parametrize("seed", [0, 7, 239, 3839, 7680, 30719, 2**31 - 1])
def test_a_seed_with_one_digit_changed_has_all_others(digits: tuple[Digit, ...], seed: int) -> None:
    for changed in digits:
        for value in range(changed.base):
            other = changed.changed(seed, value)
            assert changed.of(other) == value
            assert all(each.of(other) == each.of(seed) for each in digits if each is not changed)
            assert other // SEED_PERIOD == seed // SEED_PERIOD
    assert all(each.of(seed + SEED_PERIOD) == each.of(seed) for each in digits)
