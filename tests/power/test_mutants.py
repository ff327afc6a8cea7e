"""Random mutants of the primitives' programs are found, whichever edit it is and whichever direction it is in."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.core.program import Buffer, Program, copy_to_new, move_to_new
from adjointlab.core.space import Space
from adjointlab.worlds.world import World


@pytest.fixture(scope="module")
def mutation() -> ModuleType:
    """The script, as a module."""
    path = Path(__file__).resolve().parents[2] / "benchmarks" / "mutants.py"
    spec = importlib.util.spec_from_file_location("adjointlab_benchmarks_mutants", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_every_mutant_that_is_not_equivalent_is_found(world: World, mutation: ModuleType) -> None:
    drawn, _ = mutation.mutants(seed=5, count=30, ranks=min(4, world.ranks))
    results = [mutation.hunt(world, mutant, seed=number) for number, mutant in enumerate(drawn)]
    assert [str(result.mutant) for result in results if not result.found_by] == []


def test_mutants_are_drawn_of_every_kind_in_every_place(mutation: ModuleType) -> None:
    drawn, discarded = mutation.mutants(seed=6, count=15, ranks=4)
    assert {(mutant.kind, mutant.place) for mutant in drawn} == {
        (kind, place) for kind in mutation.KINDS for place in mutation.PLACES
    }
    assert discarded > 0


def test_what_a_program_forgets_to_deallocate_does_not_show_in_its_matrix(mutation: ModuleType) -> None:
    a, b = Buffer(0, "x", (2,)), Buffer(1, "y", (2,))
    source, target = (
        Space(Layout((2,), Partition((1,), [rank])), name=name) for rank, name in ((0, "x"), (1, "y"))
    )
    moved, copied = Program([a], move_to_new(a, b)), Program([a], copy_to_new(a.whole, b))
    assert np.array_equal(mutation.matrix(moved, source, target), mutation.matrix(copied, source, target))
    doubled = Program([a], [*copied.steps, copied.steps[-1]])
    assert not np.array_equal(
        mutation.matrix(moved, source, target), mutation.matrix(doubled, source, target)
    )


def test_a_right_program_is_not_taken_for_a_mutant(world: World, mutation: ModuleType) -> None:
    drawn, _ = mutation.mutants(seed=8, count=5, ranks=min(4, world.ranks))
    for number, mutant in enumerate(drawn):
        unmutated = mutation.replace(mutant, mutated=mutant.original)
        assert mutation.hunt(world, unmutated, seed=number).found_by == ""
