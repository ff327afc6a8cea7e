"""Garbage collections during a search leave out what there was before it, and nothing else."""

import gc
import weakref
from collections.abc import Callable, Iterator

import pytest

from adjointlab.worlds.collection_thresholds import are_set_aside
from adjointlab.worlds.simulated.world import SimulatedWorld
from adjointlab.worlds.world import RankContext, Runner


@pytest.fixture
def world() -> Iterator[SimulatedWorld]:
    world = SimulatedWorld(1)
    yield world
    world.close()


class _Node:
    other: object = None


def _work(context: RankContext, case: object) -> None:
    pass


def _led(world: SimulatedWorld, conduct: Callable[[], object]) -> object:
    """The result of `conduct` after the first run of a search."""

    def after_a_run(run: Runner) -> object:
        run(None, 1)
        return conduct()

    return world.lead(_work, after_a_run)


def test_what_there_was_is_set_aside_from_the_first_run_to_the_end_of_a_search(world: SimulatedWorld) -> None:
    before = gc.get_freeze_count()
    assert world.lead(_work, lambda run: gc.get_freeze_count()) == before
    assert _led(world, gc.get_freeze_count) == pytest.approx(len(gc.get_objects()), rel=0.1)
    assert gc.get_freeze_count() == 0


def test_cycles_that_cases_make_are_collected(world: SimulatedWorld) -> None:
    def is_collected() -> bool:
        one, two = _Node(), _Node()
        one.other, two.other = two, one
        gone = weakref.ref(one)
        del one, two
        gc.collect()
        return gone() is None

    assert _led(world, is_collected)


def test_a_search_that_raises_leaves_nothing_aside(world: SimulatedWorld) -> None:
    with pytest.raises(ZeroDivisionError):
        _led(world, lambda: 1 // 0)
    assert gc.get_freeze_count() == 0


@pytest.mark.parametrize(("count", "expected"), [(0, False), (375, False), (6_000, True)])
def test_what_python_sets_aside_when_it_starts_is_not_the_programs(
    count: int, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gc, "get_freeze_count", lambda: count)
    assert are_set_aside() is expected


def test_what_a_program_has_set_aside_itself_stays_aside(world: SimulatedWorld) -> None:
    gc.freeze()
    try:
        _led(world, lambda: None)
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
