"""Layer, RMS, group and instance normalisation: statistics of the whole, however it is cut; torch's errors on every rank."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from adjointlab.layers.group_norm import GroupNorm
from adjointlab.layers.instance_norm import InstanceNorm1d, InstanceNorm2d
from adjointlab.layers.layer_norm import LayerNorm, RMSNorm
from adjointlab.worlds.world import World

from .twin_assertions import assert_matches_twin, error_of_every_rank, reversed_line, run_on_ranks, sines

DOUBLE = torch.float64


def learnt(twin: nn.Module) -> nn.Module:
    """The module with a weight and a bias whose elements differ."""
    with torch.no_grad():
        for name, parameter in twin.named_parameters():
            values = torch.arange(parameter.numel()) - (0.5 if name == "weight" else 2)
            parameter.copy_(values.reshape(parameter.shape))
    return twin


CASES = (
    (LayerNorm, nn.LayerNorm((6, 5), dtype=DOUBLE), (3, 6, 5)),
    (RMSNorm, nn.RMSNorm((6, 5), eps=0.1, dtype=DOUBLE), (3, 6, 5)),
    (GroupNorm, nn.GroupNorm(2, 6, dtype=DOUBLE), (3, 6, 5)),
    (InstanceNorm1d, nn.InstanceNorm1d(6, affine=True, track_running_stats=True, dtype=DOUBLE), (3, 6, 5)),
    (InstanceNorm2d, nn.InstanceNorm2d(3, affine=True, track_running_stats=True, dtype=DOUBLE), (3, 6, 5)),
)


@pytest.mark.parametrize("dim", range(3))
@pytest.mark.parametrize(("layer_class", "twin", "shape"), CASES, ids=lambda value: str(value)[:20])
def test_uneven_parts_weigh_what_they_hold_and_the_state_comes_back(
    adjointlab_world: World, layer_class: Any, twin: nn.Module, shape: tuple[int, ...], dim: int
) -> None:
    ranks = min(adjointlab_world.ranks, 4)

    def body(comm: Any) -> None:
        own = learnt(copy.deepcopy(twin))
        layer = layer_class.from_sequential(own, comm, reversed_line(ranks, dim, 3), shape)
        for step in range(2):
            assert_matches_twin(comm, layer, own, sines(*shape) * (step + 1) + step, relative=layer.rounding)
        back = layer.to_sequential()
        assert repr(back) == repr(own)
        for name, value in own.state_dict().items():
            torch.testing.assert_close(back.state_dict()[name], value, rtol=layer.rounding, atol=0)
        assert_matches_twin(comm, layer.eval(), own.eval(), sines(*shape), relative=layer.rounding)

    run_on_ranks(adjointlab_world, ranks, body)


@pytest.mark.parametrize(
    ("make", "shape", "message"),
    [
        (lambda *a: LayerNorm(*a, (5,)), (2, 3), "does not end in normalized_shape = (5,)"),
        (lambda *a: RMSNorm(*a, (4, 2, 3)), (2, 3), "does not end in normalized_shape = (4, 2, 3)"),
        (lambda *a: GroupNorm(*a, 2, 4), (2, 3), "input_shape: (2, 3) has 3 channels, but num_channels is 4"),
        (lambda *a: GroupNorm(*a, 3, 4), (2, 4), "num_channels (4) must be divisible by num_groups (3)"),
        (lambda *a: GroupNorm(*a, 4, 4), (1, 4), "Expected more than 1 value per channel when training"),
        (
            lambda *a: InstanceNorm1d(*a, 4),
            (2, 3),
            "input_shape: (2, 3) has 2 channels, but num_features is 4",
        ),
        (lambda *a: InstanceNorm2d(*a, 3), (2, 3), "expected 3D or 4D input (got 2D input)"),
    ],
)
def test_what_torch_refuses_is_refused_on_every_rank(
    adjointlab_world: World, make: Any, shape: tuple[int, ...], message: str
) -> None:
    told = error_of_every_rank(
        adjointlab_world, 2, lambda comm: make(comm, reversed_line(comm.size, 0, len(shape)), shape)
    )
    assert message in told


def test_statistics_of_one_element_are_counted_globally_and_refused(adjointlab_world: World) -> None:
    ranks = min(adjointlab_world.ranks, 3)

    def call(comm: Any) -> None:
        layer = InstanceNorm1d(comm, reversed_line(ranks, 1, 3), (2, 3, 1), 3, dtype=DOUBLE)
        layer(torch.zeros(layer.domain.tensors[0].layout.local_shape(comm.Get_rank()), dtype=DOUBLE))

    told = error_of_every_rank(adjointlab_world, ranks, call)
    assert told.startswith("Expected more than 1 spatial element when training")
