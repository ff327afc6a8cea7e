"""Derivatives by differences are those of smooth functions, with an error that covers what they are off by."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from adjointlab.checks.layers.differences import Estimate, _better, _jumps, derivatives


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


STEPS = [1 / 8, 1 / 32, 1 / 128, 1 / 512, 1 / 2048]


def test_all_steps_are_evaluated_on_both_sides_of_the_point() -> None:
    seen: list[float] = []

    def evaluate(t: float) -> list[np.ndarray]:
        seen.append(t)
        return [np.array([t])]

    derivatives(evaluate, [np.zeros(1)], lambda largest: 0.0)
    assert seen == [sign * step for step in STEPS for sign in (1, -1)]


def test_each_element_of_each_array_has_an_estimate_of_its_own() -> None:
    def evaluate(t: float) -> list[np.ndarray]:
        return [np.array([[3 * t, t + t**2], [abs(t), 5.0]], np.float32), np.zeros((0, 2)), np.array(-7 * t)]

    matrix, empty, scalar = derivatives(evaluate, evaluate(0.0), lambda largest: 0.0)
    assert matrix.value.tolist() == [[3, 1], [0, 0]]
    assert matrix.error.tolist() == [[0, 0], [4, 0]]
    assert (empty.value.shape, empty.error.shape) == ((0, 2), (0, 2))
    assert (float(scalar.value), float(scalar.error)) == (-7, 0)


def test_jumps_of_the_derivative_are_those_without_even_powers_up_to_four() -> None:
    def jumps(function: Callable[[float], float]) -> dict[int, float]:
        ahead, behind = ([np.array([function(sign * step)]) for step in STEPS] for sign in (1, -1))
        found = _jumps(ahead, behind, np.array([function(0.0)]))
        return {number: float(each[0]) for number, each in found.items()}

    assert jumps(abs) == {2: 1.0, 3: 1.0, 4: 1.0}
    assert jumps(lambda t: -2 * abs(t)) == {2: 2.0, 3: 2.0, 4: 2.0}
    assert jumps(lambda t: 7 + 3 * t + t**3) == {2: 0.0, 3: 0.0, 4: 0.0}
    assert jumps(lambda t: 5 * t**2 - 16 * t**4) == pytest.approx({2: 0.0, 3: 0.0, 4: 0.0}, abs=1e-15)

    def left(step: float) -> float:
        """Of h⁵, for t⁶, from three steps of which this is the finest, by hand."""
        first, second = ((4 * h**5 - (4 * h) ** 5) / 3 for h in (4 * step, step))
        return abs((64 * second - first) / 63)

    assert jumps(lambda t: t**6) == pytest.approx({n: left(STEPS[n]) for n in (2, 3, 4)}, rel=1e-9)


def test_the_estimate_with_the_smaller_error_is_the_better_one_and_nan_is_none() -> None:
    nan = np.nan
    one = Estimate(np.array([1.0, 1, 1, 1, 1]), np.array([2.0, 2, 2, nan, np.inf]))
    other = Estimate(np.array([5.0, 5, 5, 5, 5]), np.array([1.0, 2, nan, 1, 7]))
    better = _better(one, other)
    assert better.value.tolist() == [5, 1, 1, 1, 5]
    np.testing.assert_array_equal(better.error, [1, 2, 2, nan, 7])


def test_where_extrapolations_agree_the_noise_of_the_finest_step_is_left() -> None:
    # t³ has D(h) = h², so that all entries but those of the first column are zero; its values are h³, enlarged by 1/h.
    value, error = derivative(lambda t: t**3, noise=2.0**-20)
    assert float(value[0]) == 0.0
    assert float(error[0]) == pytest.approx(4 * 2.0**-20 * STEPS[-1] ** 2)
    # Of 1 + t³ the values are nearly 1, so that the third step is the best of those that have a jump.
    value, error = derivative(lambda t: 1 + t**3, noise=2.0**-20)
    assert float(error[0]) == pytest.approx(4 * 2.0**-20 / STEPS[2], rel=1e-4)
