"""Garbage collections while modules are imported: few, and everything as the program wants it afterwards."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from adjointlab.engine.discovery import NotFound, find
from adjointlab.worlds.collection_thresholds import few_collections


@pytest.fixture
def collections() -> Iterator[list[int]]:
    """The generations of the collections that begin. In the end all is as it was."""
    begun: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            begun.append(info["generation"])

    own = gc.get_threshold()
    gc.callbacks.append(note)
    yield begun
    gc.callbacks.remove(note)
    gc.set_threshold(*own)
    gc.enable()
    gc.unfreeze()


def _begin_anew(collections: list[int]) -> None:
    """Forget the collections so far, and let none be near: pytest's own objects may begin one before the test does."""
    gc.collect(0)
    collections.clear()


def _objects() -> list[list[int]]:
    return [[number] for number in range(20_000)]


def test_the_objects_of_a_module_are_not_collected_and_are_old_ones_afterwards(
    collections: list[int],
) -> None:
    own = gc.get_threshold()
    _begin_anew(collections)
    with few_collections():
        held = _objects()
        in_block, young_in_block = list(collections), gc.get_objects(generation=0)
    assert in_block == []
    # By the objects themselves: the count loses those that stood before the block and die in it.
    ids = set(map(id, held))
    assert ids <= set(map(id, young_in_block))
    assert ids.isdisjoint(map(id, [*gc.get_objects(generation=0), *gc.get_objects(generation=1)]))
    assert gc.get_threshold() == own
    _objects()
    assert collections  # the fixture sees those that there are


def test_garbage_does_not_pile_up(collections: list[int]) -> None:
    _begin_anew(collections)
    with few_collections():
        for _ in range(120_000):
            cycle: list[object] = []
            cycle.append(cycle)
    assert collections


def test_the_thresholds_come_back_after_an_exception(collections: list[int]) -> None:
    own = gc.get_threshold()
    with pytest.raises(ImportError), few_collections():
        raise ImportError
    assert gc.get_threshold() == own


def test_a_program_that_collects_nothing_by_itself_goes_on_so(collections: list[int]) -> None:
    gc.set_threshold(0)
    _begin_anew(collections)
    with few_collections():
        _objects()
    assert gc.get_threshold()[0] == 0
    assert collections == []


def test_what_the_program_has_set_aside_stays_there(collections: list[int]) -> None:
    gc.freeze()
    with few_collections():
        held = _objects()
    assert gc.get_freeze_count()
    assert held


@pytest.mark.parametrize(
    ("line", "is_enabled", "young"),
    [("pass", True, None), ("gc.disable()", False, None), ("gc.set_threshold(123)", True, 123)],
)
def test_a_module_decides_about_collections_when_it_is_imported(
    line: str, is_enabled: bool, young: int | None, tmp_path: Path, collections: list[int]
) -> None:
    own = gc.get_threshold()[0]
    seen = tmp_path / "seen"
    file = tmp_path / "module.py"
    file.write_text(
        f"import gc, pathlib\npathlib.Path({str(seen)!r}).write_text(str(gc.get_threshold()[0]))\n{line}\n"
    )
    with pytest.raises(NotFound):  # it has no subjects
        find([str(file)])
    assert int(seen.read_text()) > own
    assert gc.isenabled() is is_enabled
    assert gc.get_threshold()[0] == (young or own)
