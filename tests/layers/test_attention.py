"""Distributed attention: torch's own values, few messages, and the same errors on every rank."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

from adjointlab.core.partition import Partition
from adjointlab.layers.attention import Attention, ScaledDotProductAttention
from adjointlab.layers.windows import local_window
from adjointlab.worlds.world import World

from .twin_assertions import error_of_every_rank, reversed_line, run_on_ranks, sines

DOUBLE = torch.float64


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("algorithm", ["ring", "all-to-all"])
@pytest.mark.parametrize("dim", range(3))
def test_values_and_gradients_are_those_of_torchs_function(
    adjointlab_world: World, dim: int, algorithm: str, is_causal: bool
) -> None:
    ranks, shape = min(adjointlab_world.ranks, 4), (2, 3, 7, 4)
    q, k, v, cotangent = (2 * sines(*shape) * (number + 1) for number in range(4))
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    want = functional.scaled_dot_product_attention(*leaves, is_causal=is_causal)
    want.backward(cotangent)

    def body(comm: Any) -> None:
        layer = Attention(
            comm, reversed_line(ranks, dim, 3), shape, is_causal=is_causal, algorithm=algorithm, dtype=DOUBLE
        )
        layouts = [tensor.layout for tensor in (*layer.domain.tensors, *layer.codomain.tensors)]
        parts = [
            local_window(x, layout, comm.Get_rank()) for x, layout in zip((q, k, v), layouts, strict=False)
        ]
        for part in parts:
            part.requires_grad_()
        y = layer(*parts)
        y.backward(local_window(cotangent, layouts[3], comm.Get_rank()))
        torch.testing.assert_close(y.detach(), local_window(want.detach(), layouts[3], comm.Get_rank()))
        for part, leaf, layout in zip(parts, leaves, layouts, strict=False):
            assert leaf.grad is not None
            torch.testing.assert_close(part.grad, local_window(leaf.grad, layout, comm.Get_rank()))

    run_on_ranks(adjointlab_world, ranks, body)


def test_the_sequential_module_is_torchs_function() -> None:
    q, k, v = sines(2, 2, 3, 5), sines(2, 2, 4, 5), sines(2, 2, 4, 2)
    for is_causal in (False, True):
        want = functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal, scale=0.5)
        torch.testing.assert_close(ScaledDotProductAttention(is_causal, 0.5)(q, k, v), want)


def test_a_ring_of_p_workers_moves_p_minus_one_blocks_and_heads_move_none(adjointlab_world: World) -> None:
    ranks = min(adjointlab_world.ranks, 4)

    def body(comm: Any) -> tuple[int, int]:
        counts = []
        for dim in (2, 1):
            layer = Attention(comm, reversed_line(ranks, dim, 3), (1, ranks, 8, 2), dtype=DOUBLE)
            counts.append(len(layer.steps) + len(layer.spread))
        return counts[0], counts[1]

    assert set(run_on_ranks(adjointlab_world, ranks, body)) == {(ranks - 1, 0)}


@pytest.mark.parametrize(
    ("shape", "named", "message"),
    [
        ((2, 3, 4), {}, "attention needs (n, heads, queries, features)"),
        ((1, 1, 2, 2), {"keys": 0}, "keys: there is none to attend to"),
        ((1, 1, 2, 2), {"algorithm": "star"}, "algorithm: 'star' is not one of ring, all-to-all"),
    ],
)
def test_what_it_cannot_do_is_refused_on_every_rank(
    adjointlab_world: World, shape: tuple[int, ...], named: dict[str, Any], message: str
) -> None:
    ranks = min(adjointlab_world.ranks, 2)
    partition = Partition((1, 1, ranks))
    told = error_of_every_rank(
        adjointlab_world, ranks, lambda comm: Attention(comm, partition, shape, **named)
    )
    assert message in told


def test_a_mask_of_some_ranks_is_the_same_error_on_every_rank(adjointlab_world: World) -> None:
    ranks = min(adjointlab_world.ranks, 2)
    if ranks < 2:
        pytest.skip("needs 2 ranks")

    def body(comm: Any) -> None:
        layer = Attention(comm, (1, 1, ranks), (1, 1, 4, 2), is_causal=comm.Get_rank() > 0)
        x = torch.ones(layer.domain.tensors[0].layout.local_shape(comm.Get_rank()))
        layer(x, x, x)

    text = error_of_every_rank(adjointlab_world, ranks, body)
    assert text == "is_causal: differs by rank: False on rank 0, True on rank 1; every rank gives the same"
