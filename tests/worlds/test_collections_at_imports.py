"""Garbage collections while modules are imported: none, and everything as before afterwards."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from adjointlab.worlds.garbage import no_collections


@pytest.fixture
def collections() -> Iterator[list[int]]:
    """The generations of the collections that begin."""
    begun: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            begun.append(info["generation"])

    gc.callbacks.append(note)
    yield begun
    gc.callbacks.remove(note)


def _objects() -> list[list[int]]:
    return [[number] for number in range(20 * gc.get_threshold()[0])]


def test_nothing_is_collected_in_the_block_and_its_objects_are_old_ones_afterwards(
    collections: list[int],
) -> None:
    with no_collections():
        held = _objects()
        in_block = list(collections)
        young_in_block = gc.get_count()[0]
    assert in_block == []
    assert young_in_block >= len(held) > gc.get_count()[0]
    _objects()
    assert collections  # the fixture sees those that there are


def test_collections_go_on_after_an_exception() -> None:
    with pytest.raises(ImportError), no_collections():
        raise ImportError
    assert gc.isenabled()


def test_a_program_without_collections_gets_none() -> None:
    gc.disable()
    try:
        with no_collections():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_what_the_program_has_set_aside_stays_there() -> None:
    gc.freeze()
    try:
        with no_collections():
            held = _objects()
        assert gc.get_freeze_count()
        assert held
    finally:
        gc.unfreeze()
