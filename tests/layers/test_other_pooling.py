"""Power averages, adaptive pooling and unpooling: torch's windows, ties, indices and errors, whatever the cut."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from adjointlab.core.partition import Partition
from adjointlab.layers import pooling
from adjointlab.layers.pooling import MaxPool2d, MaxUnpool1d, MaxUnpool2d
from adjointlab.layers.windows import local_window
from adjointlab.worlds.world import World

from .twin_assertions import assert_matches_twin, error_of_every_rank, run_on_ranks

DOUBLE = torch.float64


def along(ranks: int, dim: int, order: int) -> Partition:
    """All workers along one dimension of an input of that order."""
    return Partition([ranks if each == dim % order else 1 for each in range(order)])


def ints(*shape: int) -> torch.Tensor:
    """Small integers, in no order, with equal ones among them."""
    return (torch.arange(math.prod(shape), dtype=DOUBLE) * 5 % 13 - 6).reshape(shape)


@pytest.mark.parametrize("value", [0.0, math.nan, -math.inf])
@pytest.mark.parametrize("dim", [1, 2, 3])
def test_adaptive_maxima_tie_as_in_torch_and_have_global_indices(
    adjointlab_world: World, dim: int, value: float
) -> None:
    ranks = min(adjointlab_world.ranks, 4)
    x = ints(2, 3, 7, 5)
    x[:, 1:, 2:5, 1:4] = value
    twin = nn.AdaptiveMaxPool2d((4, 3), return_indices=True)

    def body(comm: Any) -> None:
        layer = pooling.AdaptiveMaxPool2d.from_sequential(
            twin, comm, along(ranks, dim, 4), tuple(x.shape), DOUBLE
        )
        assert_matches_twin(comm, layer, twin, x)

    run_on_ranks(adjointlab_world, ranks, body)


def test_what_was_pooled_is_unpooled_to_where_it_came_from(adjointlab_world: World) -> None:
    ranks = min(adjointlab_world.ranks, 4)
    whole = ints(1, 2, 7, 9)

    def unpooled(pool: Any, unpool: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = x.clone().requires_grad_()
        y = unpool(*pool(x))
        (y**2).sum().backward()
        assert x.grad is not None
        return y.detach(), x.grad

    wanted = unpooled(
        nn.MaxPool2d(3, 2, return_indices=True),
        lambda y, indices: nn.functional.max_unpool2d(y, indices, 3, 2, output_size=(7, 9)),
        whole,
    )

    def body(comm: Any, dim: int) -> None:
        partition = along(ranks, dim, 4)
        pool = MaxPool2d(comm, partition, (1, 2, 7, 9), 3, 2, return_indices=True, dtype=DOUBLE)
        y = pool.codomain.tensors[0].layout
        unpool = MaxUnpool2d(comm, partition, y.shape, 3, 2, output_size=(7, 9), dtype=DOUBLE)
        x = local_window(whole, pool.domain.tensors[0].layout, comm.Get_rank())
        for got, want in zip(unpooled(pool, unpool, x), wanted, strict=True):
            layout = unpool.codomain.tensors[0].layout  # which is where x lies too
            assert torch.equal(got, local_window(want, layout, comm.Get_rank()))

    for dim in (1, 2, 3):
        run_on_ranks(adjointlab_world, ranks, lambda comm, dim=dim: body(comm, dim))


@pytest.mark.parametrize("wrong", [-1, 4])
def test_an_index_out_of_bounds_on_one_rank_is_torchs_error_on_all(
    adjointlab_world: World, wrong: int
) -> None:
    ranks = min(adjointlab_world.ranks, 2)
    with pytest.raises(RuntimeError) as refused:
        nn.MaxUnpool1d(2)(torch.zeros(1, 1, 2), torch.tensor([[[0, wrong]]]))

    def body(comm: Any) -> str:
        layer = MaxUnpool1d(comm, along(ranks, 2, 3), (1, 1, 2), 2)
        shape = layer.domain.tensors[0].layout.local_shape(comm.Get_rank())
        indices = torch.zeros(shape, dtype=torch.int64)
        if comm.Get_rank() == ranks - 1:
            indices[..., -1] = wrong
        with pytest.raises(ValueError, match="invalid max index") as raised:
            layer(torch.zeros(shape), indices)
        return str(raised.value)

    assert set(run_on_ranks(adjointlab_world, ranks, body)) == {str(refused.value)}


REFUSED: list[tuple[str, tuple[int, ...], dict[str, Any], dict[str, Any]]] = [
    ("LPPool1d", (1, 1, 5), {"norm_type": 2, "kernel_size": 6}, {}),
    ("LPPool2d", (1, 1, 5, 5), {"norm_type": 2, "kernel_size": 2, "stride": (1, 0)}, {}),
    ("AdaptiveMaxPool1d", (5,), {"output_size": 3}, {}),
    ("AdaptiveMaxPool2d", (2, 5, 5), {"output_size": (1, 2, 3)}, {}),
    ("MaxUnpool2d", (5, 5), {"kernel_size": 2}, {}),
    ("MaxUnpool2d", (1, 1, 5, 5), {"kernel_size": 2}, {"output_size": (8, 10)}),
    ("MaxUnpool3d", (1, 1, 5, 5, 5), {"kernel_size": 2, "stride": (1, 0, 1)}, {}),
]


@pytest.mark.parametrize(("name", "shape", "given", "call"), REFUSED, ids=str)
def test_what_torch_refuses_is_the_same_error_on_every_rank_in_torchs_words(
    adjointlab_world: World, name: str, shape: tuple[int, ...], given: dict[str, Any], call: dict[str, Any]
) -> None:
    ranks = min(adjointlab_world.ranks, 2)
    inputs: tuple[torch.Tensor, ...] = (torch.zeros(shape),)
    if "Unpool" in name:
        inputs = (*inputs, torch.zeros(shape, dtype=torch.int64))
    with pytest.raises((RuntimeError, ValueError)) as refused:
        getattr(nn, name)(**given)(*inputs, **call)
    partition = along(ranks, 0, len(shape))
    told = error_of_every_rank(
        adjointlab_world, ranks, lambda comm: getattr(pooling, name)(comm, partition, shape, **given, **call)
    )
    assert told == str(refused.value)


TWINS: list[Callable[[], nn.Module]] = [
    lambda: nn.LPPool1d(3, 4, 2, True),
    lambda: nn.LPPool3d(2, (3, 2, 1)),
    lambda: nn.AdaptiveMaxPool2d((None, 3), True),
    lambda: nn.MaxUnpool3d(2, (3, 2, 2), 0),
]


@pytest.mark.parametrize("make", TWINS, ids=lambda make: str(make()))
def test_a_layer_goes_from_and_to_its_sequential_module(adjointlab_world: World, make: Any) -> None:
    twin = make()
    name = type(twin).__name__
    dims = int(name[-2])

    def body(comm: Any) -> str:
        layer = getattr(pooling, name).from_sequential(
            twin, comm, along(1, 0, dims + 2), (1, 1, *(8,) * dims)
        )
        return repr(layer.to_sequential())

    assert run_on_ranks(adjointlab_world, 1, body) == (repr(twin),)


def test_every_rank_of_a_power_average_without_outputs_takes_part(adjointlab_world: World) -> None:
    ranks = min(adjointlab_world.ranks, 3)
    x = ints(1, 1, 4).abs() + 1

    def body(comm: Any) -> None:
        layer = pooling.LPPool1d(comm, along(ranks, 2, 3), (1, 1, 4), 2.0, 3, ceil_mode=True, dtype=DOUBLE)
        assert_matches_twin(comm, layer, nn.LPPool1d(2.0, 3, ceil_mode=True), x, relative=2.0**-48)

    run_on_ranks(adjointlab_world, ranks, body)
