"""The affine layer: features cut both ways, any leading dimensions, and workers that are left with nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from adjointlab.core.partition import Partition
from adjointlab.layers.linear import Linear
from adjointlab.worlds.world import World

from .twin_assertions import assert_matches_twin, error_of_every_rank, run_on_ranks, sines

DOUBLE = torch.float64


@pytest.mark.parametrize("bias", [True, False])
def test_the_layer_goes_from_and_to_its_sequential_module(adjointlab_world: World, bias: bool) -> None:
    ranks = min(adjointlab_world.ranks, 3)

    def body(comm: Any) -> None:
        twin = nn.Linear(5, 4, bias, dtype=DOUBLE).eval()
        twin.weight.requires_grad_(False)
        layer = Linear.from_sequential(twin, comm, Partition((1, 1, ranks)), (2, 5))
        assert_matches_twin(comm, layer, twin, sines(2, 5), relative=1e-14)
        back = layer.to_sequential()
        assert (repr(back), back.training) == (repr(twin), False)
        assert [p.requires_grad for p in back.parameters()] == [p.requires_grad for p in twin.parameters()]
        assert all(torch.equal(p, q) for p, q in zip(back.parameters(), twin.parameters(), strict=True))

    # The same values on every rank, whatever the generators of processes say.
    run_on_ranks(adjointlab_world, ranks, lambda comm: (torch.manual_seed(2), body(comm)))


def test_initial_values_are_torchs_for_the_same_seed(adjointlab_world: World) -> None:
    ranks = min(adjointlab_world.ranks, 3)

    def body(comm: Any) -> None:
        torch.manual_seed(7)
        twin = nn.Linear(5, 4)
        torch.manual_seed(7)
        state = Linear(comm, Partition((1, ranks, 1)), (2, 5), 5, 4).sequential_state_dict()
        assert all(torch.equal(value, twin.state_dict()[name]) for name, value in state.items())

    run_on_ranks(adjointlab_world, ranks, body)


def test_under_autocast_the_local_products_alone_are_of_the_lower_precision(adjointlab_world: World) -> None:
    ranks = min(adjointlab_world.ranks, 3)
    x = sines(2, 4).float()

    def body(comm: Any) -> None:
        torch.manual_seed(1)
        twin = nn.Linear(4, 3)
        layer = Linear.from_sequential(twin, comm, Partition((1, 1, 1)), (2, 4))
        local = x if comm.Get_rank() == 0 else torch.zeros(0)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y, want = layer(local), twin(x)
        assert (y.dtype, want.dtype) == (torch.float32, torch.bfloat16)
        assert comm.Get_rank() or torch.equal(y, want.float())
        y.sum().backward()

    run_on_ranks(adjointlab_world, ranks, body)


@pytest.mark.parametrize(
    ("partition", "shape", "message"),
    [
        ((1, 1, 1), (2, 4), "input_shape: (2, 4) does not end in in_features = 5"),
        ((1, 1), (2, 5), "partition: of order 2"),
    ],
)
def test_what_does_not_fit_is_the_same_error_on_every_rank(
    adjointlab_world: World, partition: tuple[int, ...], shape: tuple[int, ...], message: str
) -> None:
    raised = error_of_every_rank(
        adjointlab_world, 2, lambda comm: Linear(comm, Partition(partition), shape, 5, 3)
    )
    assert raised.startswith(message)
