"""The caller's global streams, put aside for a run, and streams within it."""

import random
from typing import Any

import numpy as np
import pytest

from adjointlab.worlds import randomness
from adjointlab.worlds.randomness import NumPyStream, own_streams
from adjointlab.worlds.simulated.world import SimulatedWorld
from adjointlab.worlds.world import RankContext

LEGACY: Any = np.random


@pytest.mark.parametrize("is_found", [True, False])
@pytest.mark.parametrize("drawn", [1, 2])
def test_half_of_a_pair_of_normal_numbers_is_the_callers_again(
    drawn: int, is_found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_found:
        monkeypatch.setattr(randomness, "_memory_of_kept_normal", lambda: None)
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


def _three() -> list[float]:
    """Three normal numbers of NumPy, which keeps a fourth, and of `random`, which does too."""
    return [draw() for draw in (np.random.randn, lambda: random.gauss(0, 1)) for _ in range(3)]


def _around_a_barrier(context: RankContext, is_met: bool) -> tuple[list[float], list[float]]:
    before = _three()
    with own_streams(5):
        own = _three()
        if is_met:
            context.comm.Barrier()
        own += _three()
    return own, before + _three()


@pytest.mark.mpi_skip
def test_own_streams_and_those_after_them_go_on_when_the_rank_has_waited_for_another() -> None:
    world = SimulatedWorld(3)
    without, with_barrier = (
        [outcome.value for outcome in world.run(_around_a_barrier, is_met, 3, seed=3).outcomes]
        for is_met in (False, True)
    )
    assert with_barrier == without
    assert len({tuple(own) for own, _ in without}) == 1
    assert len({tuple(after) for _, after in without}) == 3
