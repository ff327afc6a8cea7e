"""Pixel and channel shuffles: nothing is sent where blocks are whole, and torch's errors come on every rank."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from adjointlab.core.partition import Partition
from adjointlab.layers.shuffle import ChannelShuffle, PixelShuffle, PixelUnshuffle
from adjointlab.worlds.world import World

from .twin_assertions import assert_matches_twin, error_of_every_rank, run_on_ranks, sines

LAYERS: dict[type[nn.Module], Any] = {
    nn.PixelShuffle: PixelShuffle,
    nn.PixelUnshuffle: PixelUnshuffle,
    nn.ChannelShuffle: ChannelShuffle,
}


def along(ranks: int, dim: int) -> Partition:
    """All workers along one of four dimensions."""
    return Partition([ranks if each == dim else 1 for each in range(4)])


@pytest.mark.parametrize(
    ("twin", "shape", "dim"),
    [
        (nn.PixelShuffle(2), (1, 8, 3, 5), 1),  # whole blocks of channels
        (nn.PixelShuffle(2), (1, 4, 3, 5), 3),
        (nn.PixelUnshuffle(2), (1, 5, 4, 4), 1),
        (nn.PixelUnshuffle(2), (1, 3, 8, 4), 2),  # whole blocks of pixels
        (nn.ChannelShuffle(3), (2, 6, 3, 4), 2),
    ],
    ids=str,
)
def test_whole_blocks_stay_where_they_are(
    adjointlab_world: World, twin: nn.Module, shape: tuple[int, ...], dim: int
) -> None:
    ranks = min(adjointlab_world.ranks, 2)

    def body(comm: Any) -> str:
        layer = LAYERS[type(twin)].from_sequential(twin, comm, along(ranks, dim), shape, torch.float64)
        assert not layer.steps.moves
        assert_matches_twin(comm, layer, twin, sines(*shape))
        return repr(layer.to_sequential())

    assert set(run_on_ranks(adjointlab_world, ranks, body)) == {repr(twin)}


@pytest.mark.parametrize(
    ("twin", "shape"),
    [
        (nn.PixelShuffle(2), (1, 6, 3, 5)),
        (nn.PixelShuffle(0), (1, 6, 3, 5)),
        (nn.PixelShuffle(2), (4, 3)),
        (nn.PixelUnshuffle(2), (1, 6, 4, 5)),
        (nn.ChannelShuffle(4), (1, 6, 4, 5)),
        (nn.ChannelShuffle(2), (4, 6)),
    ],
    ids=str,
)
def test_what_torch_refuses_is_refused_on_every_rank_in_its_words(
    adjointlab_world: World, twin: nn.Module, shape: tuple[int, ...]
) -> None:
    with pytest.raises(RuntimeError) as refused:
        twin(torch.zeros(shape))
    told = error_of_every_rank(
        adjointlab_world, 2, lambda comm: LAYERS[type(twin)](comm, along(comm.size, 1), shape, twin)
    )
    assert told == str(refused.value)
