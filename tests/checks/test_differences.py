"""Derivatives by differences are those of smooth functions, with an error that covers what they are off by."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from adjointlab.checks.layers.differences import Estimate, derivatives


def derivative(function: Callable[[float], float], noise: float = 0.0) -> Estimate:
    def evaluate(t: float) -> list[np.ndarray]:
        return [np.array([function(t)])]

    (found,) = derivatives(evaluate, evaluate(0.0), lambda largest: noise * largest)
    return found


def powers(count: int) -> Callable[[float], float]:
    return lambda t: sum(t**k for k in range(1, count + 1))


@pytest.mark.parametrize(
    ("function", "exact", "most"),
    [
        (lambda t: 1 + 3 * t, 3.0, 0.0),
        (lambda t: t**2 + t**4, 0.0, 1e-11),
        (lambda t: t**3, 0.0, 0.0),
        (lambda t: 2 * t + t**5, 2.0, 1e-11),
        (powers(9), 1.0, 1e-6),
        (lambda t: np.exp(3 * t), 3.0, 1e-6),
        (lambda t: np.sin(10 * t), 10.0, 1e-2),
    ],
)
def test_a_smooth_function_has_its_derivative_with_a_small_error(
    function: Callable[[float], float], exact: float, most: float
) -> None:
    value, error = derivative(function)

    assert abs(value - exact) <= error + 1e-12
    assert error <= most


def test_steps_are_quarters_of_each_other_to_both_sides() -> None:
    asked: list[float] = []

    def evaluate(t: float) -> list[np.ndarray]:
        asked.append(t)
        return [np.array([t])]

    derivatives(evaluate, [np.zeros(1)], lambda largest: 0.0)
    assert asked == [
        sign * step for step in (2.0**-3, 2.0**-5, 2.0**-7, 2.0**-9, 2.0**-11) for sign in (1, -1)
    ]


@pytest.mark.parametrize(("function", "jump"), [(abs, 1.0), (lambda t: 5 * t + 3 * max(t, 0.0), 1.5)])
def test_half_the_jump_of_the_one_sided_derivatives_is_an_error_at_a_kink(
    function: Callable[[float], float], jump: float
) -> None:
    assert derivative(function).error == pytest.approx(4 * jump)


def test_the_noise_of_a_function_is_enlarged_by_the_step() -> None:
    # Of a linear function all entries agree, and the one of the largest step, 1/128, is the least uncertain.
    largest = 1 + 3 / 128
    assert derivative(lambda t: 1 + 3 * t, noise=1e-6).error == pytest.approx(4 * 1e-6 * largest * 128)
    assert derivative(lambda t: 1 - 3 * t, noise=1e-6).error == pytest.approx(4 * 1e-6 * largest * 128)
    assert derivative(lambda t: 1 - 3 * t * t, noise=1e-6).error >= 4 * 1e-6 * 128


def test_a_function_that_is_not_finite_beside_the_point_has_no_derivative_there() -> None:
    with np.errstate(all="ignore"):
        assert derivative(lambda t: np.inf if t > 0 else t).error == np.inf
