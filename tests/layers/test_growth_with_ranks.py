"""The work of one rank on a layer does not grow with the number of ranks."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from adjointlab import layers
from adjointlab.worlds.simulated.world import SimulatedWorld
from adjointlab.worlds.world import RankContext
from tests.instructions import instructions

# Simulated ranks alone: a launched process would count the same.
pytestmark = pytest.mark.mpi_skip

FEW, MANY = 16, 128

Make = Callable[[Any, int], nn.Module]
"""Makes a layer over so many workers, each of which has 4 elements of one dimension of the input."""


def convolution(comm: Any, ranks: int) -> nn.Module:
    return layers.Conv1d(comm, (1, 1, 1, ranks), (1, 2, 4 * ranks), 2, 2, 3, padding=1)


def convolution_of_a_batch(comm: Any, ranks: int) -> nn.Module:
    return layers.Conv1d(comm, (ranks, 1, 1, 1), (4 * ranks, 2, 4), 2, 2, 3, padding=1)


def transposed_convolution(comm: Any, ranks: int) -> nn.Module:
    return layers.ConvTranspose1d(comm, (1, 1, 1, ranks), (1, 2, 4 * ranks), 2, 2, 3)


def linear(comm: Any, ranks: int) -> nn.Module:
    return layers.Linear(comm, (ranks, 1, 1), (4 * ranks, 4), 4, 4)


def pooling(comm: Any, ranks: int) -> nn.Module:
    return layers.MaxPool1d(comm, (1, 1, ranks), (1, 2, 4 * ranks), 2)


def flatten(comm: Any, ranks: int) -> nn.Module:
    return layers.Flatten(comm, (ranks, 1, 1), (4 * ranks, 2, 3))


def passes(context: RankContext, make: Make) -> int:
    """Steps of one rank of three in the middle, which find made what is made once for all; 0 of the others."""
    ranks = context.comm.Get_size()

    def work() -> None:
        layer = make(context.comm, ranks)
        shape = layer.domain.tensors[0].layout.local_shape(context.rank)
        layer(torch.zeros(shape, requires_grad=True)).sum().backward()

    if abs(context.rank - ranks // 2) <= 1:
        return instructions(work)
    work()
    return 0


@pytest.mark.parametrize(
    "make", [convolution, convolution_of_a_batch, transposed_convolution, linear, pooling, flatten]
)
def test_a_layer_and_its_passes_take_a_rank_as_many_steps_among_many_as_among_few(make: Make) -> None:
    world = SimulatedWorld(MANY)
    try:
        few, many = (
            statistics.median(filter(None, world.run(passes, make, ranks).values)) for ranks in (FEW, MANY)
        )
    finally:
        world.close()
    assert many <= 1.02 * few
