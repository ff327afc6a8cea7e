"""The distributed embedding: rows of a cut table, and torch's errors on every rank."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from adjointlab.core.partition import Partition
from adjointlab.layers.embedding import Embedding
from adjointlab.layers.windows import local_window
from adjointlab.worlds.world import World

from .twin_assertions import error_of_every_rank, run_on_ranks

DOUBLE = torch.float64


def test_an_index_of_no_row_is_the_same_error_on_every_rank(adjointlab_world: World) -> None:
    ranks = min(adjointlab_world.ranks, 2)

    def call(comm: Any) -> None:
        layer = Embedding(comm, Partition((ranks, 1, 1)), (4,), 3, 2, dtype=DOUBLE)
        indices = torch.tensor([0, 1, 2, 3])
        layer(local_window(indices, layer.domain.tensors[0].layout, comm.Get_rank()))

    assert error_of_every_rank(adjointlab_world, ranks, call) == "index out of range in self"


@pytest.mark.parametrize("argument", [{"max_norm": 1.0}, {"scale_grad_by_freq": True}, {"sparse": True}])
def test_what_needs_the_whole_table_is_refused(adjointlab_world: World, argument: dict[str, Any]) -> None:
    told = error_of_every_rank(
        adjointlab_world,
        2,
        lambda comm: Embedding(comm, Partition((1, comm.size, 1)), (4,), 3, 2, **argument),
    )
    (name,) = argument
    assert told.startswith(f"{name}: ")


def test_the_table_goes_from_and_to_the_sequential_module(adjointlab_world: World) -> None:
    ranks = min(adjointlab_world.ranks, 3)

    def body(comm: Any) -> None:
        twin = nn.Embedding(7, 2, padding_idx=1, dtype=DOUBLE)
        with torch.no_grad():
            twin.weight.copy_(torch.arange(14.0).reshape(7, 2))
        layer = Embedding.from_sequential(twin, comm, Partition((1, ranks, 1)), (4,))
        assert torch.equal(layer.to_sequential().get_parameter("weight"), twin.weight)

    run_on_ranks(adjointlab_world, ranks, body)
