"""A bias that is counted again is told as such, and nothing else is."""

from __future__ import annotations

import numpy as np
import pytest

import adjointlab as al
from adjointlab.checks.hints import FaultKind
from adjointlab.checks.layers.repeated import repeated_hint
from adjointlab.core.space import Tensor
from adjointlab.typing import NumpyArray

OUTPUT = Tensor(al.Layout.cut((3, 5), al.Partition((1, 2)), [(0, 3), (0, 2, 5)]), name="y")
BIAS = np.array([0.1, -2.7, 3.3, 1.9, -0.7])
SPACE = al.Space(al.Layout.cut((5,), al.Partition((2,)), [(0, 2, 5)]), name="bias")
PARAMETERS = SPACE, [(BIAS[:2],), (BIAS[2:],)]
DUE = np.random.default_rng(1).normal(size=(3, 5))


def told(error: NumpyArray, allowed: float = 1e-12) -> str:
    due, wrong = ([array[:, :2], array[:, 2:]] for array in (DUE, DUE + error))
    hint = repeated_hint(OUTPUT, wrong, due, PARAMETERS, allowed)
    if hint is None:
        return ""
    assert hint.kind is FaultKind.REPEATED
    return hint.text


ON_RANK_1 = BIAS * np.array([0, 0, 1, 1, 1])


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (BIAS, "the expected value plus bias: the parameter bias is counted again"),
        (3 * BIAS, "the expected value plus 3 times bias: the parameter bias is counted again"),
        (-BIAS, "the expected value less bias: the parameter bias is left out"),
        (ON_RANK_1, "the expected value plus bias: the parameter bias is counted again"),
    ],
)
def test_a_multiple_of_a_parameter_is_told(error: NumpyArray, text: str):
    assert told(error) == text


@pytest.mark.parametrize(
    "error",
    [
        0 * BIAS,
        0.5 * BIAS,
        -2 * BIAS,
        BIAS + ON_RANK_1,  # another multiple on each rank
        BIAS + np.array([0, 0, 0, 0, 1e-6]),
        BIAS[::-1],
        np.array([0, 0, 0, 0, np.nan]),
        np.full(5, BIAS[0]),
    ],
)
def test_nothing_is_told_of_any_other_error(error: NumpyArray):
    assert told(error) == ""


def test_other_parameters_and_other_dimensions_do_not_hide_the_one_that_is_counted_again():
    square = Tensor(al.Layout((5, 5), al.Partition((1, 1))), name="y")
    due = np.random.default_rng(2).normal(size=(5, 5))
    layout = al.Layout((5,), al.Partition((1,)))
    matrix = al.Tensor(al.Layout((5, 5), al.Partition((1, 1))), name="matrix")
    other, bias = (al.Tensor(layout, name=name) for name in ("other", "bias"))
    partial = al.Tensor(al.Layout((5,), al.Partition((1,)), axes=[None]), types=("partial",), name="partial")
    space = al.Space(matrix, partial, other, bias)
    local = [(due, BIAS, BIAS[::-1] ** 2, BIAS)]
    for error in (BIAS, BIAS[:, None]):
        hint = repeated_hint(square, [due + error], [due], (space, local), 1e-12)
        assert hint is not None
        assert hint.text == "the expected value plus bias: the parameter bias is counted again"
    # Of summands no rank has the whole.
    alone = al.Space(partial), [(BIAS,)]
    assert repeated_hint(square, [due + BIAS], [due], alone, 1e-12) is None


def test_a_parameter_is_the_same_on_all_ranks_that_have_copies_or_windows_of_it():
    due = [DUE[:, :2], DUE[:, 2:]]
    wrong = [due[0] + BIAS[:2], due[1] + BIAS[2:]]
    copies = al.Space(al.Tensor(al.Layout((5,), (2,), axes=[None]), types=("invariant",), name="bias"))
    wide = al.Space(al.Layout((5,), (2,), windows=[[(0, 3), (2, 5)]]), name="bias")
    beyond = al.Space(al.Layout((5,), (2,), windows=[[(-1, 3), (3, 6)]]), name="bias")
    for space, local, is_told in (
        (copies, [(BIAS,), (BIAS,)], True),
        (wide, [(BIAS[:3],), (BIAS[2:],)], True),
        (beyond, [(np.array([0, *BIAS[:3]]),), (np.array([*BIAS[3:], 0]),)], False),
    ):
        hint = repeated_hint(OUTPUT, wrong, due, (space, local), 1e-12)
        assert (hint is not None) == is_told


@pytest.mark.parametrize(
    ("off", "is_told"),
    [(1 + 2.0**-30, True), (1 + 2.0**-29, False), (-1 - 2.0**-30, True), (-1 - 2.0**-29, False)],
)
def test_either_side_may_be_off_by_what_is_allowed_and_by_rounding(off: float, is_told: bool):
    one = al.Layout((1,), (1,))
    output, space = Tensor(one, name="y"), al.Space(one, name="bias")
    for times in (1, -1):
        result = np.array([times * 1024.0 + off])
        hint = repeated_hint(output, [result], [np.zeros(1)], (space, [(np.array([1024.0]),)]), 0.5)
        assert (hint is not None) == is_told


def test_small_integers_tell_nothing():
    parameters = SPACE, [(np.array([1.0, 2.0]),), (np.array([3.0, 1.0, 2.0]),)]
    due = [DUE[:, :2], DUE[:, 2:]]
    wrong = [due[0] + parameters[1][0][0], due[1] + parameters[1][1][0]]
    assert repeated_hint(OUTPUT, wrong, due, parameters, 1e-12) is None


def test_a_parameter_as_long_as_no_dimension_is_no_term():
    parameters = al.Space(al.Layout.cut((2,), al.Partition((1,)), [(0, 2)]), name="scale"), [(BIAS[:2],), ()]
    due = [DUE[:, :2], DUE[:, 2:]]
    assert repeated_hint(OUTPUT, [each + 1.5 for each in due], due, parameters, 1e-12) is None


@pytest.mark.parametrize(
    ("beyond", "is_told"), [((0.0, 0.0), True), ((BIAS[0], 0.0), False), ((0.0, BIAS[-1]), False)]
)
def test_a_halo_beyond_the_tensor_has_no_part_of_a_parameter(beyond: tuple[float, float], is_told: bool):
    output = Tensor(al.Layout((5,), al.Partition((1,)), windows=[[(-1, 6)]]), name="y")
    whole = al.Space(al.Layout((5,), al.Partition((1,))), name="bias")
    error = np.array([beyond[0], *BIAS, beyond[1]])
    due = DUE.ravel()[:7]

    hint = repeated_hint(output, [due + error], [due], (whole, [(BIAS,)]), 1e-12)
    assert (hint is not None) is is_told
