"""Repartition as a layer: any cut to any other, on any ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.layers.repartition import Repartition
from adjointlab.worlds.world import World

from .twin_assertions import assert_matches_twin, error_of_every_rank, run_on_ranks

DOUBLE = torch.float64


def numbered(*shape: int) -> torch.Tensor:
    return torch.arange(torch.Size(shape).numel(), dtype=DOUBLE).reshape(shape)


@pytest.mark.parametrize("shape", [(5, 2), (2, 5)], ids=str)
def test_a_tensor_may_go_to_ranks_that_held_nothing_of_it_and_back(
    adjointlab_world: World, shape: tuple[int, int]
) -> None:
    ranks = min(adjointlab_world.ranks, 4)

    def body(comm: Any) -> None:
        one = Layout(shape, Partition((1, 1), [0]))
        all_of_them = Layout(shape, Partition((ranks, 1), range(ranks - 1, -1, -1)))
        assert_matches_twin(
            comm, Repartition(comm, one, all_of_them, dtype=DOUBLE), nn.Identity(), numbered(*shape)
        )
        assert_matches_twin(
            comm, Repartition(comm, all_of_them, one, dtype=DOUBLE), nn.Identity(), numbered(*shape)
        )

    run_on_ranks(adjointlab_world, ranks, body)


def test_layouts_of_different_tensors_are_the_same_error_on_every_rank(adjointlab_world: World) -> None:
    ranks = min(adjointlab_world.ranks, 2)
    first, second = (Layout((side, 2), Partition((ranks, 1))) for side in (4, 5))
    message = error_of_every_rank(adjointlab_world, ranks, lambda comm: Repartition(comm, first, second))
    assert message.startswith(
        "target: a layout of a tensor of shape (5, 2), but `layout` is one of shape (4, 2)"
    )
