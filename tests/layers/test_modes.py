"""A layer is in training on every rank or in evaluation on every rank: in modes that differ, ranks would send messages that do not match."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from adjointlab.layers import BatchNorm1d, Linear, from_sequential, local_window
from adjointlab.worlds.world import World

from .twin_assertions import error_of_every_rank


def network(comm: Any) -> Any:
    return from_sequential(nn.Sequential(nn.ReLU(), nn.BatchNorm1d(3)), comm, (2, 1), (6, 3))


CASES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], str]] = {
    "a normalisation": (
        lambda comm: BatchNorm1d(comm, (2, 1), (6, 3), nn.BatchNorm1d(3)),
        lambda layer: layer.eval(),
        "BatchNorm1d",
    ),
    "what is the same in both": (
        lambda comm: Linear(comm, (2, 1, 1), (6, 3), 3, 3),
        lambda layer: layer.eval(),
        "Linear",
    ),
    "a network": (network, lambda layers: layers.eval(), "Pointwise"),
    "one layer of a network": (network, lambda layers: layers[1].eval(), "BatchNorm1d"),
}


@pytest.mark.parametrize(("make", "change", "name"), CASES.values(), ids=CASES)
def test_a_mode_that_differs_by_rank_is_the_same_error_on_every_rank(
    adjointlab_world: World, make: Callable[[Any], Any], change: Callable[[Any], Any], name: str
) -> None:
    if adjointlab_world.ranks < 2:
        pytest.skip("needs 2 ranks")

    def body(comm: Any) -> None:
        layer = make(comm)
        x = local_window(torch.ones(6, 3), layer.domain.tensors[0].layout, comm.Get_rank())
        layer(x)
        if comm.Get_rank() == 1:
            change(layer)
        layer(x)

    assert error_of_every_rank(adjointlab_world, 2, body) == (
        f"mode of {name}: differs by rank: training, as by train(), on rank 0, evaluation, as by eval(), on rank 1; every "
        "rank gives the same"
    )
