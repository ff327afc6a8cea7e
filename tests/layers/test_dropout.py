"""Dropout by global index: the numbers are uniform, the mask is the same on any partition, and a checkpoint has it again."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from adjointlab.layers.dropout import Dropout, SeededDropout, uniform
from adjointlab.layers.windows import local_window
from adjointlab.worlds.world import World

from .twin_assertions import error_of_every_rank, reversed_line, run_on_ranks

DOUBLE = torch.float64


def test_the_numbers_are_those_of_splitmix64_and_uniform() -> None:
    numbers = uniform(5, (64, 1024), ((0, 64), (0, 1024)))
    counts = torch.histc(numbers, 64, 0.0, 1.0)
    chi_squared = float(((counts - 1024) ** 2 / 1024).sum())
    assert 30 < chi_squared < 110  # of 63 degrees of freedom: all but one in a thousand
    neighbours = torch.stack((numbers[:, :-1].reshape(-1), numbers[:, 1:].reshape(-1)))
    assert abs(float(torch.corrcoef(neighbours)[0, 1])) < 0.02
    assert not torch.equal(numbers, uniform(6, (64, 1024), ((0, 64), (0, 1024))))


@pytest.mark.parametrize("dim", range(2))
def test_one_seed_has_one_mask_on_any_partition(adjointlab_world: World, dim: int) -> None:
    ranks = min(adjointlab_world.ranks, 4)
    whole = SeededDropout(0.5, 11)(torch.ones(9, 7, dtype=DOUBLE))

    def body(comm: Any) -> None:
        layer = Dropout(comm, reversed_line(ranks, dim, 2), (9, 7), 0.5, dtype=DOUBLE, seed=11)
        (x,) = layer.domain.tensors
        ones = torch.ones(x.layout.local_shape(comm.Get_rank()), dtype=DOUBLE)
        assert torch.equal(layer(ones), local_window(whole, x.layout, comm.Get_rank()))

    run_on_ranks(adjointlab_world, ranks, body)


def test_generators_in_the_same_state_are_so_after_a_dropout_without_a_seed(adjointlab_world: World) -> None:
    ranks = min(adjointlab_world.ranks, 3)

    def body(comm: Any) -> None:
        layer = Dropout(comm, reversed_line(ranks, 0, 1), (9,), 0.5)
        shape = layer.domain.tensors[0].layout.local_shape(comm.Get_rank())
        torch.manual_seed(1)
        layer(torch.ones(shape))
        assert len(set(comm.allgather(float(torch.rand(()))))) == 1

    run_on_ranks(adjointlab_world, ranks, body)


def test_without_a_seed_masks_differ_between_calls_and_a_checkpoint_has_its_own_again(
    adjointlab_world: World,
) -> None:
    ranks = min(adjointlab_world.ranks, 3)

    def body(comm: Any) -> None:
        layer = Dropout(comm, reversed_line(ranks, 0, 1), (90,), 0.5, dtype=DOUBLE)
        shape = layer.domain.tensors[0].layout.local_shape(comm.Get_rank())
        x = torch.ones(shape, dtype=DOUBLE, requires_grad=True)
        first, second = layer(x), checkpoint(layer, x, use_reentrant=False)
        assert not torch.equal(first, second)
        second.sum().backward()
        assert torch.equal(x.grad, second)

    run_on_ranks(adjointlab_world, ranks, body)


def test_a_seed_that_is_no_integer_is_refused(adjointlab_world: World) -> None:
    told = error_of_every_rank(
        adjointlab_world, 1, lambda comm: Dropout(comm, reversed_line(1, 0, 1), (3,), seed=0.5)
    )
    assert told == "seed: 0.5 is not an integer"


def test_seeds_that_differ_by_rank_are_refused(adjointlab_world: World) -> None:
    told = error_of_every_rank(
        adjointlab_world, 2, lambda comm: Dropout(comm, (2,), (4,), seed=comm.Get_rank())
    )
    assert told == "seed: differs by rank: 0 on rank 0, 1 on rank 1; every rank gives the same"
