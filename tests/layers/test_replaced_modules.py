"""A network of layers computes with no module of torch's that takes a part of a tensor for the whole."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from adjointlab.layers import Linear, from_sequential, local_window
from adjointlab.layers.networks.network import Network
from adjointlab.worlds.world import World

from .twin_assertions import error_of_every_rank, run_on_ranks, sines


class Doubled(nn.Module):
    """A module of a user's, of which nobody knows what it computes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


def network(comm: Any) -> Network:
    torch.manual_seed(0)
    twin = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 3))
    return from_sequential(twin, comm, (comm.Get_size(), 1), (6, 4))


def put(index: int, module: nn.Module) -> Callable[[Network], object]:
    return lambda layers: layers.__setitem__(index, module)


WRONG: dict[str, tuple[Callable[[Network], object], str]] = {
    "a normalisation": (put(1, nn.BatchNorm1d(3)), "1 is torch.nn.BatchNorm1d, which would take the part"),
    "a linear layer at the end": (lambda n: n.append(nn.Linear(3, 2)), "is torch.nn.Linear"),
    "a softmax without parameters": (
        put(2, nn.Softmax(0)),
        "is torch.nn.Softmax, .* depends on other elements",
    ),
    "a chain with one": (put(2, nn.Sequential(nn.ReLU(), nn.Flatten(0))), "is torch.nn.Sequential"),
    "dropout of channels": (put(2, nn.Dropout1d()), "draws one number for a whole channel"),
    "a module of one's own": (
        put(2, Doubled()),
        "(Doubled) is not a distributed layer; give a function to Pointwise",
    ),
    "one in a chain of layers": (
        lambda n: put(3, nn.Sequential(n[3], nn.Softmax(1)))(n),
        "network: 1 is torch.nn.Softmax",
    ),
}


@pytest.mark.parametrize(("change", "message"), WRONG.values(), ids=WRONG)
def test_a_module_that_takes_a_part_for_the_whole_is_refused_in_the_place_of_a_layer(
    adjointlab_world: World, change: Callable[[Network], object], message: str
) -> None:
    def body(comm: Any) -> None:
        layers = network(comm)
        x = local_window(sines(6, 4).float(), layers.domain.tensors[0].layout, comm.Get_rank())
        layers(x)
        change(layers)
        layers(x)

    raised = error_of_every_rank(adjointlab_world, min(adjointlab_world.ranks, 2), body)
    for part in message.split(" .* "):
        assert part in raised


def test_layers_and_functions_may_take_the_place_of_others(adjointlab_world: World) -> None:
    def body(comm: Any) -> None:
        layers, size = network(comm), comm.Get_size()
        x = local_window(sines(6, 4).float(), layers.domain.tensors[0].layout, comm.Get_rank())
        layers[2] = nn.Sequential(nn.Tanh(), nn.Dropout(0.25))
        layers.append(Linear(comm, (size, 1, 1), (6, 3), nn.Linear(3, 5)))
        twin = copy.deepcopy(layers)
        assert (
            layers(x).shape == twin(x).shape == layers.codomain.tensors[0].layout.local_shape(comm.Get_rank())
        )
        assert layers.output_partition == layers[-1].partition.subpartitions((0, 1))[0]
        assert len(layers.parameter_space.tensors) == len(list(layers.parameters()))

    run_on_ranks(adjointlab_world, min(adjointlab_world.ranks, 2), body)
