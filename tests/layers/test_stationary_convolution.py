"""Stationary convolutions: the paper's collectives and no others, layers that chain without moving data, and the choice of an algorithm."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn

from adjointlab.core.partition import Partition
from adjointlab.layers.batch_norm import BatchNorm2d
from adjointlab.layers.stationary_convolution import StationaryConv1d, StationaryConv2d, StationaryConv3d
from adjointlab.layers.windows import local_window
from adjointlab.worlds.world import World

from .counting import Counting, Sent
from .twin_assertions import (
    assert_goes_from_and_to,
    assert_matches_twin,
    error_of_every_rank,
    run_on_ranks,
    sines,
)

DOUBLE = torch.float64


def needs(world: World, ranks: int) -> None:
    if world.ranks < ranks:
        pytest.skip(f"needs {ranks} ranks")


@pytest.mark.parametrize(
    ("algorithm", "partition", "grid"),
    [
        ("stationary-x", (1, 4, 1, 1), (1, 4, 1, 1, 1)),
        ("stationary-y", (1, 4, 1, 1), (1, 1, 4, 1, 1)),
        ("stationary-x", (2, 2, 1, 1), (2, 2, 1, 1, 1)),
        ("stationary-y", (1, 2, 2, 1), (1, 1, 2, 2, 1)),
        ("stationary-w", (1, 2, 2, 1, 1), (1, 2, 2, 1, 1)),
        ("stationary-w", (2, 1, 2, 1, 1), (2, 1, 2, 1, 1)),
        ("stationary-w", (2, 2, 1, 1, 1), (2, 2, 1, 1, 1)),
        ("stationary-w", (1, 1, 1, 2, 2), (1, 1, 1, 2, 2)),
    ],
)
def test_a_pass_makes_the_collectives_of_the_paper_with_its_words_and_no_others(
    adjointlab_world: World, algorithm: str, partition: tuple[int, ...], grid: tuple[int, ...]
) -> None:
    """AG(n, p) and RS(n, p) of activations; of w an all-reduce in two halves, broadcast and reduction. A side of 1 has none."""
    needs(adjointlab_world, 4)
    shape, filters, kernel = (2, 8, 4, 6), 12, 3

    def body(comm: Any) -> tuple[list[Sent], list[Sent]]:
        counting = Counting(comm)
        layer = StationaryConv2d(
            counting, Partition(partition), shape, 8, filters, kernel, padding=1, bias=False,
            algorithm=algorithm, dtype=DOUBLE,
        )  # fmt: skip
        x = local_window(sines(*shape), layer.domain.tensors[0].layout, comm.Get_rank()).requires_grad_()
        counting.sent.clear()
        y = layer(x)
        forward = list(counting.sent)
        counting.sent.clear()
        y.sum().backward()
        return forward, list(counting.sent)

    n, c, f, h, w = grid
    area = shape[0] // n * (shape[2] // h) * (shape[3] // w)
    x_words, y_words, w_words = area * 8 // c, area * filters // f, 8 // c * (filters // f) * kernel**2
    wanted = (
        [("gather", f, x_words), ("broadcast", n * h * w, w_words), ("reduce-scatter", c, y_words)],
        [("gather", c, y_words), ("reduce", n * h * w, w_words), ("reduce-scatter", f, x_words)],
    )
    for passes in run_on_ranks(adjointlab_world, 4, body):
        for sent, collectives in zip(passes, wanted, strict=True):
            expected = {Sent(name, p, 8 * words) for name, p, words in collectives if p > 1}
            # The paper neglects halos, of which there are none where no side is cut.
            collectives_sent = [each for each in sent if each.kind != "message" or h * w == 1]
            assert len(collectives_sent) == len(expected)
            assert set(collectives_sent) == expected


def test_layers_over_exchanged_grids_chain_as_their_outputs_lie(adjointlab_world: World) -> None:
    """Three stationary-w layers, channels that nothing divides, and a normalisation between."""
    needs(adjointlab_world, 4)
    ranks, shape = min(adjointlab_world.ranks, 6), (2, 7, 5, 4)
    torch.manual_seed(0)
    twins = [
        nn.Conv2d(7, 9, 3, padding=1),
        nn.BatchNorm2d(9),
        nn.Conv2d(9, 5, (1, 3)),
        nn.Conv2d(5, 4, 2, bias=False),
    ]
    twin = nn.Sequential(*twins).double()

    def body(comm: Any) -> None:
        first, norm, second, third = copy.deepcopy(twins)  # each rank's own, with the same values
        partition = Partition((1, ranks // 2, 2, 1, 1), range(ranks - 1, -1, -1))
        layers: list[Any] = [StationaryConv2d(comm, partition, shape, first)]
        between = layers[0].codomain.tensors[0].layout
        layers.append(BatchNorm2d(comm, between.partition, between.shape, norm))
        for module in (second, third):
            conv = layers[0] if module is second else layers[-1]
            layers.append(
                StationaryConv2d(
                    comm, conv.next_partition, layers[-1].codomain.tensors[0].layout.shape, module
                )
            )
        for layer, following in pairwise(layers):
            assert layer.codomain.tensors[0].layout == following.domain.tensors[0].layout
        chain = nn.Sequential(*layers)
        chain.domain, chain.codomain = layers[0].domain, layers[-1].codomain  # type: ignore[assignment]
        assert_matches_twin(comm, chain, copy.deepcopy(twin), sines(*shape), relative=1e-13)

    run_on_ranks(adjointlab_world, ranks, body)


@pytest.mark.parametrize("algorithm", ["stationary-x", "stationary-y"])
def test_stationary_x_and_y_take_and_leave_tensors_over_the_same_partition(
    adjointlab_world: World, algorithm: str
) -> None:
    ranks, shape = min(adjointlab_world.ranks, 3), (2, 5, 6)
    partition = Partition((1, ranks, 1))

    def body(comm: Any) -> None:
        layer = StationaryConv1d(comm, partition, shape, 5, 4, 3, algorithm=algorithm)
        assert {tensor.layout.partition for tensor in (*layer.domain.tensors, *layer.codomain.tensors)} == {
            partition
        }
        assert layer.next_partition == partition

    run_on_ranks(adjointlab_world, ranks, body)


@pytest.mark.parametrize(
    ("partition", "arguments", "chosen"),
    [
        ((1, 1, 1), (4, 6, 1), "stationary-y"),  # more filters than channels
        ((1, 1, 1), (6, 4, 1), "stationary-x"),
        ((1, 1, 1), (4, 4, 1), "stationary-x"),
        ((1, 1, 1), (4, 6, 1, 2), "stationary-x"),  # a stride, which leaves y smaller than x
        ((1, 1, 1), (4, 6, 5), "stationary-x"),  # no padding, which does too
        ((1, 1, 1), (4, 6, 5, 1, 2), "stationary-y"),
        ((1, 1, 1, 1), (4, 6, 1), "stationary-w"),
    ],
)
def test_the_larger_of_x_and_y_stays_where_it_is(
    adjointlab_world: World, partition: tuple[int, ...], arguments: tuple[int, ...], chosen: str
) -> None:
    def body(comm: Any) -> tuple[str, str]:
        layer = StationaryConv1d(comm, Partition(partition), (1, arguments[0], 8), *arguments)
        return layer.algorithm, repr(layer)

    for algorithm, text in run_on_ranks(adjointlab_world, 1, body):
        assert algorithm == chosen
        assert chosen in text


@pytest.mark.parametrize(
    ("partition", "named", "message"),
    [
        ((2, 1, 1), {"algorithm": "stationary"}, "algorithm: 'stationary' is not one of auto, stationary-x"),
        ((2, 1), {}, "partition: of order 2 (2x1), but the stationary-x algorithm of a 1-d convolution needs 3"),
        ((2, 1, 1), {"algorithm": "stationary-w"}, "partition: of order 3 (2x1x1), but the stationary-w algo"),
        ((2, 1, 1, 1), {"algorithm": "stationary-y"}, "partition: of order 4 (2x1x1x1), but the stationary-y"),
        ((1, 2, 2, 1), {"groups": 2}, "groups: 2 groups over a grid with P_c = 2 and P_f = 2; one of both"),
        ((2, 1, 1), {"padding_mode": "reflect"}, "padding_mode: 'reflect' is neither"),
        ((2, 1, 1), {"stride": 0}, "non-positive stride is not supported"),
    ],
)  # fmt: skip
def test_an_illegal_argument_is_the_same_error_on_every_rank(
    adjointlab_world: World, partition: tuple[int, ...], named: dict[str, Any], message: str
) -> None:
    over = Partition(partition)
    needs(adjointlab_world, over.size)
    raised = error_of_every_rank(
        adjointlab_world, over.size, lambda comm: StationaryConv1d(comm, over, (2, 4, 5), 4, 4, 3, **named)
    )
    assert raised.startswith(message)


@pytest.mark.parametrize(
    ("kind", "twin"),
    [
        (StationaryConv1d, nn.Conv1d(3, 4, 3, 2, 1, 2, dtype=DOUBLE)),
        (StationaryConv2d, nn.Conv2d(4, 6, 2, groups=2, bias=False, dtype=DOUBLE)),
        (StationaryConv3d, nn.Conv3d(3, 5, 2, padding=(1, 0, 1), dtype=DOUBLE)),
    ],
    ids=["1d", "2d", "3d"],
)
def test_a_layer_goes_from_and_to_its_sequential_module(
    adjointlab_world: World, kind: Any, twin: Any
) -> None:
    ranks, dims = min(adjointlab_world.ranks, 3), twin.weight.ndim - 2
    shape = (1, twin.in_channels, *(6,) * dims)

    def body(comm: Any) -> None:
        partition = Partition((1, ranks, *(1,) * dims))
        assert_goes_from_and_to(comm, kind, twin, partition, shape, algorithm="auto")

    run_on_ranks(adjointlab_world, ranks, body)
