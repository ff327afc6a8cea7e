"""Reshaping and permuting across cuts: what moves and what does not, torch's errors on every rank, ways from and to torch."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.layers.permute import Permute, Permuted, Transpose, Transposed
from adjointlab.layers.reshape import Reshape, Reshaped, Unflatten
from adjointlab.worlds.world import World

from .twin_assertions import assert_matches_twin, error_of_every_rank, reversed_line, run_on_ranks, sines

DOUBLE = torch.float64


def along(ranks: int, dim: int, order: int) -> Partition:
    """All workers along one dimension of an input of that order."""
    return Partition([ranks if each == dim else 1 for each in range(order)])


@pytest.mark.parametrize(
    ("make", "dim", "shape"),
    [
        (lambda *a, **k: Reshape(*a, (-1, 2, 3, 5), **k), 0, (8, 6, 5)),  # the batch stays
        (lambda *a, **k: Reshape(*a, (12, 4), **k), 0, (4, 3, 4)),  # the cut dimension leads its group
        (lambda *a, **k: Reshape(*a, (4, 3, 4), **k), 0, (12, 4)),  # whole blocks of three rows
        (lambda *a, **k: Unflatten(*a, 1, (4, 2), **k), 1, (3, 8, 2)),
        (lambda *a, **k: Permute(*a, (2, 0, 1), **k), 1, (3, 8, 2)),
        (lambda *a, **k: Transpose(*a, 0, -1, **k), 2, (3, 8, 7)),
    ],
)
def test_intervals_that_fit_stay_where_they_are(
    adjointlab_world: World, make: Any, dim: int, shape: tuple[int, ...]
) -> None:
    ranks = 4 if adjointlab_world.ranks >= 4 else min(adjointlab_world.ranks, 2)

    def body(comm: Any) -> None:
        layer = make(comm, along(ranks, dim, len(shape)), shape, dtype=DOUBLE)
        assert not layer.steps.moves
        assert_matches_twin(comm, layer, layer.to_sequential(), sines(*shape))

    run_on_ranks(adjointlab_world, ranks, body)


def test_a_reshaped_tensor_is_spread_over_all_workers_whatever_its_first_side(
    adjointlab_world: World,
) -> None:
    ranks = min(adjointlab_world.ranks, 3)

    def body(comm: Any) -> int:
        layer = Reshape(comm, along(ranks, 2, 3), (1, 1, 12), (1, 12, 1), dtype=DOUBLE)
        assert_matches_twin(comm, layer, Reshaped((1, 12, 1)), sines(1, 1, 12))
        return layer.codomain.tensors[0].layout.local_size(comm.Get_rank())

    assert run_on_ranks(adjointlab_world, ranks, body) == (12 // ranks,) * ranks


def test_the_output_comes_to_where_it_is_wanted(adjointlab_world: World) -> None:
    ranks = min(adjointlab_world.ranks, 3)

    def body(comm: Any) -> None:
        wanted = Layout((4, 6), reversed_line(ranks, 1, 2))
        for layer, twin, shape in ((Reshape, Reshaped((4, 6)), (3, 8)), (Permute, Permuted((1, 0)), (6, 4))):
            made = layer.from_sequential(twin, comm, along(ranks, 0, 2), shape, DOUBLE, target=wanted)
            assert made.codomain.tensors[0].layout == wanted
            assert_matches_twin(comm, made, twin, sines(*shape))

    run_on_ranks(adjointlab_world, ranks, body)


@pytest.mark.parametrize(
    ("layer", "twin", "shape"),
    [
        (Reshape, Reshaped((5, -1)), (2, 3, 4)),
        (Reshape, Reshaped((-1, -1)), (2, 3, 4)),
        (Unflatten, nn.Unflatten(2, (2, 3)), (2, 3, 4)),
        (Unflatten, nn.Unflatten(5, (2, 2)), (2, 3, 4)),
        (Permute, Permuted((0, 0, 1)), (2, 3, 4)),
        (Permute, Permuted((0, 1)), (2, 3, 4)),
        (Transpose, Transposed(0, 4), (2, 3, 4)),
    ],
    ids=str,
)
def test_what_torch_refuses_is_refused_on_every_rank_in_its_words(
    adjointlab_world: World, layer: Any, twin: nn.Module, shape: tuple[int, ...]
) -> None:
    with pytest.raises((RuntimeError, IndexError)) as refused:
        twin(torch.zeros(shape))
    told = error_of_every_rank(
        adjointlab_world, 2, lambda comm: layer(comm, along(comm.size, 0, len(shape)), shape, twin)
    )
    assert told == str(refused.value)


def test_another_target_or_module_is_refused_on_every_rank(adjointlab_world: World) -> None:
    ranks = min(adjointlab_world.ranks, 2)
    partition, target = along(ranks, 0, 2), Layout((4, 6), Partition((1, 1)))

    def told(**given: Any) -> str:
        return error_of_every_rank(
            adjointlab_world, ranks, lambda comm: Reshape(comm, partition, (4, 6), **given)
        )

    assert told(shape=(3, 8), target=target).startswith("target: a layout of a tensor of shape (4, 6)")
    assert told(shape=(3, 8), target="x").startswith("target: 'x' is not an adjointlab.Layout")
    assert error_of_every_rank(
        adjointlab_world, ranks, lambda comm: Permute(comm, partition, (4, 6), nn.Identity())
    ) == ("module: Identity, but Permute is made from Permuted")


def test_an_input_of_any_size_is_reshaped(adjointlab_world: World) -> None:
    ranks = min(adjointlab_world.ranks, 4)

    def body(comm: Any) -> None:
        for shape, y_shape in (((1,), ()), ((0, 3), (5, 0)), ((1, 3), (3, 1, 1)), ((2, 1, 3), (6,))):
            layer = Reshape(comm, along(ranks, 0, len(shape)), shape, y_shape, dtype=DOUBLE)
            assert_matches_twin(comm, layer, Reshaped(y_shape), sines(*shape))
            assert math.prod(layer.codomain.tensors[0].layout.shape) == math.prod(shape)

    run_on_ranks(adjointlab_world, ranks, body)
