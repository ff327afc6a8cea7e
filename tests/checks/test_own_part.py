"""Wrong results of a layer that are made of a rank's own part alone are told from two runs."""

from __future__ import annotations

import numpy as np
import pytest

import adjointlab as al
from adjointlab.checks.elements import Tolerance
from adjointlab.checks.layers.compared_passes import Comparison, PassObservation
from adjointlab.checks.layers.own_part import is_of_own_part

SPACE = al.Space(al.Tensor(al.Layout((4,), al.Partition((2,))), dtype="float64"))
EXPECTED, EXPECTED_AFTER = np.array([1.0, 2.0]), np.array([5.0, -7.0])


def run(result: np.ndarray, expected: np.ndarray) -> list[tuple[PassObservation, ...]]:
    """Two ranks of which the first has the result."""
    locals_ = ((expected,), (expected,))
    return [
        (PassObservation((Comparison("output", SPACE, (actual,), Tolerance(0.0, 1.0), expected=locals_),)),)
        for actual in (result, expected)
    ]


@pytest.mark.parametrize("scale", [2.0**-30, 1.0, 2.0**30])
@pytest.mark.parametrize(
    ("result", "after", "told"),
    [
        ([3.0, 4.0], [3.0, 4.0], True),
        ([3.0, 0.0], [3.0, 0.0], True),
        ([3.0, 4.0], [3.0 + 2.0**-45, 4.0], True),
        ([3.0, 4.0], [3.0 + 2.0**-30, 4.0], False),
        ([3.0, 4.0], [3.0, 4.5], False),
        ([1.0, 4.0], [5.0, 4.0], True),
        ([1.0, 2.0], [5.0, -7.0], None),
        ([0.0, 0.0], [0.0, 0.0], None),
        ([1.0 + 2.0**-7, 2.0], [1.0, 2.0], None),
        # A 64th of the largest value, 7, is 0.109375; the other element is right.
        ([1.109375, 2.0], [1.109375, -7.0], None),
        ([1.11, 2.0], [1.11, -7.0], True),
    ],
)
def test_wrong_elements_that_stay_are_of_the_own_part_whatever_their_size(
    result: list[float], after: list[float], told: bool | None, scale: float
) -> None:
    first = run(scale * np.array(result), scale * EXPECTED)
    second = run(scale * np.array(after), scale * EXPECTED_AFTER)

    assert is_of_own_part(first, second, rank=0) is told
