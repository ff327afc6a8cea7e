"""The distributed transposed convolution: torch's values and errors, wherever channels and space are cut."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from adjointlab.core.partition import Partition
from adjointlab.layers.transposed_convolution import ConvTranspose1d, ConvTranspose2d
from adjointlab.layers.windows import local_window
from adjointlab.worlds.world import World

from .twin_assertions import assert_matches_twin, error_of_every_rank, reversed_line, run_on_ranks

DOUBLE = torch.float64


def integers(*shape: int) -> torch.Tensor:
    """Small integers, so that sums do not round."""
    return ((torch.arange(torch.Size(shape).numel()) * 7) % 9 - 4).reshape(shape).to(DOUBLE)


@pytest.mark.parametrize("dim", [0, 1, 2, 3, 4])
def test_the_layer_is_torchs_along_every_dimension_and_comes_back(adjointlab_world: World, dim: int) -> None:
    ranks, shape = min(adjointlab_world.ranks, 4), (5, 3, 4, 6)

    def body(comm: Any) -> None:
        twin = nn.ConvTranspose2d(3, 5, (3, 2), (2, 3), (1, 0), (1, 2), dilation=(2, 1), dtype=DOUBLE)
        with torch.no_grad():
            for parameter in twin.parameters():
                parameter.copy_(integers(*parameter.shape))
        layer = ConvTranspose2d.from_sequential(twin, comm, reversed_line(ranks, dim, 5), shape)
        assert_matches_twin(comm, layer, twin, integers(*shape))
        back = layer.to_sequential()
        assert repr(back) == repr(twin)
        assert torch.equal(back.get_parameter("weight"), twin.weight)

    run_on_ranks(adjointlab_world, ranks, body)


def test_a_worker_whose_outputs_no_input_reaches_has_the_bias(adjointlab_world: World) -> None:
    ranks = min(adjointlab_world.ranks, 4)

    def body(comm: Any) -> Any:
        layer = ConvTranspose1d(
            comm, Partition((1, 1, 1, ranks)), (1, 1, 1), 1, 1, 1, stride=8, output_padding=7, dtype=DOUBLE
        )
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.fill_(2.0)
        x = local_window(torch.ones(1, 1, 1, dtype=DOUBLE), layer.domain.tensors[0].layout, comm.Get_rank())
        return layer(x).reshape(-1).tolist()

    values = run_on_ranks(adjointlab_world, ranks, body)
    assert [value for part in values for value in part] == [4.0] + [2.0] * 7


@pytest.mark.parametrize(
    ("arguments", "named", "shape", "message"),
    [
        ((3, 2, 3), {}, (1, 2, 4), "is not (batch, in_channels = 3, 1 spatial sides)"),
        (
            (3, 2, 3),
            {"output_padding": 1},
            (1, 3, 4),
            "output padding must be smaller than either stride or dilation",
        ),
        ((4, 2, 3), {"groups": 3}, (1, 4, 4), "in_channels must be divisible by groups"),
    ],
)
def test_what_torch_refuses_is_refused_on_every_rank(
    adjointlab_world: World,
    arguments: tuple[int, ...],
    named: dict[str, int],
    shape: tuple[int, ...],
    message: str,
) -> None:
    ranks = min(adjointlab_world.ranks, 2)
    partition = Partition((1, 1, 1, ranks))
    told = error_of_every_rank(
        adjointlab_world, ranks, lambda comm: ConvTranspose1d(comm, partition, shape, *arguments, **named)
    )
    assert message in told
