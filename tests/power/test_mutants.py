"""Random mutants of the primitives' programs are found, whichever edit it is and whichever direction it is in."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.core.program import Buffer, Program, copy_to_new, move_to_new
from adjointlab.core.space import Space
from adjointlab.worlds.world import World
from tests.planted.mutants import KINDS, PLACES, hunt, matrix, mutants


def test_every_mutant_that_is_not_equivalent_is_found(world: World) -> None:
    drawn, _ = mutants(seed=5, count=30, ranks=min(4, world.ranks))
    results = [hunt(world, mutant, seed=number) for number, mutant in enumerate(drawn)]
    assert [str(result.mutant) for result in results if not result.found_by] == []


def test_mutants_are_drawn_of_every_kind_in_every_place() -> None:
    drawn, discarded = mutants(seed=6, count=15, ranks=4)
    assert {(mutant.kind, mutant.place) for mutant in drawn} == {
        (kind, place) for kind in KINDS for place in PLACES
    }
    assert discarded > 0


def test_what_a_program_forgets_to_deallocate_does_not_show_in_its_matrix() -> None:
    a, b = Buffer(0, "x", (2,)), Buffer(1, "y", (2,))
    source, target = (
        Space(Layout((2,), Partition((1,), [rank])), name=name) for rank, name in ((0, "x"), (1, "y"))
    )
    moved, copied = Program([a], move_to_new(a, b)), Program([a], copy_to_new(a.whole, b))
    assert np.array_equal(matrix(moved, source, target), matrix(copied, source, target))
    doubled = Program([a], [*copied.steps, copied.steps[-1]])
    assert not np.array_equal(matrix(moved, source, target), matrix(doubled, source, target))


def test_a_right_program_is_not_taken_for_a_mutant(world: World) -> None:
    drawn, _ = mutants(seed=8, count=5, ranks=min(4, world.ranks))
    for number, mutant in enumerate(drawn):
        unmutated = replace(mutant, mutated=mutant.original)
        assert hunt(world, unmutated, seed=number).found_by == ""
