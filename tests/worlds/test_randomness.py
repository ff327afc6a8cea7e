"""The caller's global streams, put aside for a run."""

from typing import Any

import numpy as np
import pytest

from adjointlab.worlds.randomness import NumPyStream

LEGACY: Any = np.random


@pytest.mark.parametrize("drawn", [1, 2])
def test_half_of_a_pair_of_normal_numbers_is_the_callers_again(drawn: int) -> None:
    before = LEGACY.get_state()
    stream = NumPyStream()
    try:
        np.random.seed(5)
        np.random.randn(drawn)
        state = LEGACY.get_state(legacy=False)
        assert state["has_gauss"] == drawn % 2
        entered = stream.enter()
        stream.seed(1)
        np.random.randn()
        stream.leave(entered)
        after = LEGACY.get_state(legacy=False)
        assert (after["has_gauss"], after["gauss"]) == (state["has_gauss"], state["gauss"])
        np.testing.assert_array_equal(after["state"]["key"], state["state"]["key"])
    finally:
        LEGACY.set_state(before)
