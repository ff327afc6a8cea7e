"""Garbage collections of a run are as many for each rank whatever their number."""

import gc
from collections.abc import Iterator

import pytest

from adjointlab.worlds.collection_thresholds import thresholds_for
from adjointlab.worlds.simulated.world import SimulatedWorld
from adjointlab.worlds.world import RankContext

pytestmark = pytest.mark.mpi_skip

KEPT = 400
"""Objects that a rank keeps until all ranks have them."""


@pytest.fixture
def world() -> Iterator[SimulatedWorld]:
    own = gc.get_threshold()
    gc.set_threshold(700, *own[1:])  # as many in each version of Python
    world = SimulatedWorld(128)
    yield world
    world.close()
    gc.set_threshold(*own)


def keep_until_all_have_theirs(context: RankContext, _: object) -> None:
    kept = [[] for _ in range(KEPT)]  # type: ignore[var-annotated]
    context.comm.Barrier()
    del kept


def set_thresholds(context: RankContext, thresholds: tuple[int, int, int]) -> None:
    gc.set_threshold(*thresholds)


def collections_of(world: SimulatedWorld, ranks: int) -> int:
    begun: list[str] = []

    def note(phase: str, _: dict[str, int]) -> None:
        begun.append(phase)

    world.run(keep_until_all_have_theirs, None, ranks)  # starts the threads
    gc.collect()
    gc.callbacks.append(note)
    try:
        world.run(keep_until_all_have_theirs, None, ranks)
    finally:
        gc.callbacks.remove(note)
    return begun.count("start")


def test_a_run_of_many_ranks_begins_about_as_many_collections_as_one_of_sixteen(
    world: SimulatedWorld,
) -> None:
    few, many = (collections_of(world, ranks) for ranks in (16, 128))
    assert few > 5
    assert many <= 1.5 * few


@pytest.mark.parametrize(
    ("ranks", "times"), [(1, 1), (15, 1), (16, 1), (31, 1), (32, 2), (47, 2), (48, 3), (128, 8), (1000, 62)]
)
def test_a_collection_begins_after_as_many_times_more_objects_as_there_are_sixteens_of_ranks(
    ranks: int, times: int
) -> None:
    before = gc.get_threshold()
    with thresholds_for(ranks):
        assert gc.get_threshold() == (times * before[0], *before[1:])
    assert gc.get_threshold() == before


def test_after_a_run_the_thresholds_are_those_of_before(world: SimulatedWorld) -> None:
    before = gc.get_threshold()
    world.run(keep_until_all_have_theirs, None, 128)
    assert gc.get_threshold() == before


def test_runs_together_begin_fewer_collections_and_leave_the_thresholds_as_they_were(
    world: SimulatedWorld,
) -> None:
    before = gc.get_threshold()
    with world.together():
        world.run(keep_until_all_have_theirs, None, 2)
        assert gc.get_threshold() == (16 * before[0], *before[1:])
    assert gc.get_threshold() == before


def test_collection_thresholds_that_a_rank_sets_stay(world: SimulatedWorld) -> None:
    before = gc.get_threshold()
    try:
        world.run(set_thresholds, (500, 9, 8), 32)
        assert gc.get_threshold() == (500, 9, 8)
    finally:
        gc.set_threshold(*before)


def test_where_nothing_is_collected_nothing_is_in_a_run(world: SimulatedWorld) -> None:
    before = gc.get_threshold()
    gc.set_threshold(0)
    try:
        assert collections_of(world, 32) == 0
    finally:
        gc.set_threshold(*before)
