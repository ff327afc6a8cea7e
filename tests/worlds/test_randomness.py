"""The caller's global streams, put aside for a run."""

from typing import Any

import numpy as np
import pytest

from adjointlab.worlds import randomness
from adjointlab.worlds.randomness import NumPyStream

LEGACY: Any = np.random


@pytest.mark.parametrize("is_found", [True, False])
@pytest.mark.parametrize("drawn", [1, 2])
def test_half_of_a_pair_of_normal_numbers_is_the_callers_again(
    monkeypatch: pytest.MonkeyPatch, drawn: int, is_found: bool
) -> None:
    before = LEGACY.get_state()
    if not is_found:
        monkeypatch.setattr(randomness, "_has_gauss_of", lambda legacy: None)
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


def test_another_object_than_a_random_state_is_not_looked_into() -> None:
    assert randomness._has_gauss_of(None) is None
    assert randomness._has_gauss_of(np.random.RandomState(0)) is not None
