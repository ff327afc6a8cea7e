"""Concatenation and splitting: nothing is sent along dimensions that stay as they are cut, and torch's errors come on every rank."""

from __future__ import annotations

from typing import Any

import pytest

from adjointlab.core.layout import Layout
from adjointlab.layers.joining import Chunk, Chunks, Concatenation, Part, Split, Stack
from adjointlab.worlds.world import World

from .twin_assertions import error_of_every_rank, reversed_line, run_on_ranks


def test_tensors_that_are_cut_in_other_dimensions_are_joined_and_split_where_they_are(
    adjointlab_world: World,
) -> None:
    ranks = min(adjointlab_world.ranks, 4)

    def body(comm: Any) -> bool:
        partition = reversed_line(ranks, 0, 2)
        joined = Concatenation(comm, partition, [(5, 2), (5, 3)], 1)
        split = Split(comm, partition, (5, 5), [2, 3], 1)
        stacked = Stack(comm, partition, [(5, 2), (5, 2)], 1)
        moves = [*joined.moves, *split.moves, *stacked.steps.moves]
        return any(part.is_sent for move in moves for part in move.overlaps.leaving(comm.Get_rank()))

    assert not any(run_on_ranks(adjointlab_world, ranks, body))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda *a: Concatenation(*a, [(2, 3), (3, 2)], 0),
            "Sizes of tensors must match except in dimension 0",
        ),
        (lambda *a: Split(*a, (4, 2), [1, 2], 0), "split_with_sizes expects split_sizes to sum exactly to 4"),
        (lambda *a: Split(*a, (4, 2), 3, 2), "Dimension out of range"),
        (lambda *a: Chunk(*a, (4, 2), 0), "chunk expects `chunks` to be greater than 0, got: 0"),
        (lambda *a: Stack(*a, [(2, 3), (1, 3)]), "stack expects each tensor to be equal size"),
        (
            lambda *a: Stack(*a, [(2, 3), (2, 3)], 3),
            "Dimension out of range (expected to be in range of [-3, 2]",
        ),
        (
            lambda *a: Stack(*a, [(2, 3)], target=Layout((2, 3), a[1])),
            "target: a layout of a tensor of shape",
        ),
    ],
)
def test_what_torch_refuses_is_refused_on_every_rank(
    adjointlab_world: World, make: Any, message: str
) -> None:
    told = error_of_every_rank(adjointlab_world, 2, lambda comm: make(comm, reversed_line(comm.size, 0, 2)))
    assert message in told


def test_parts_go_from_and_to_their_sequential_modules(adjointlab_world: World) -> None:
    def body(comm: Any) -> list[Any]:
        split = Split.from_sequential(Part([1, 3]), comm, reversed_line(1, 0, 2), (4, 2))
        chunk = Chunk.from_sequential(Chunks(3, 1), comm, reversed_line(1, 0, 2), (4, 2))
        return [split.to_sequential().sizes, chunk.to_sequential().chunks, chunk.dim]

    assert run_on_ranks(adjointlab_world, 1, body) == ([[1, 3], 3, 1],)
