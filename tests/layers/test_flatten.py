"""Flattening across the cut, and a network that it glues together."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.layers.convolution import Conv2d
from adjointlab.layers.flatten import Flatten
from adjointlab.layers.linear import Linear
from adjointlab.layers.losses import CrossEntropyLoss
from adjointlab.layers.pointwise import Pointwise
from adjointlab.layers.pooling import MaxPool2d
from adjointlab.layers.windows import local_window
from adjointlab.worlds.world import World

from .twin_assertions import assert_matches_twin, error_of_every_rank, run_on_ranks

DOUBLE = torch.float64


def numbered(*shape: int) -> torch.Tensor:
    return torch.arange(math.prod(shape), dtype=DOUBLE).reshape(shape)


def test_the_flat_windows_are_multiples_of_what_follows_the_first_flattened_dimension(
    adjointlab_world: World,
) -> None:
    if adjointlab_world.ranks < 4:
        pytest.skip("needs 4 ranks")

    def body(comm: Any) -> Any:
        layer = Flatten(comm, Partition((1, 2, 1, 2)), (2, 5, 3, 2), dtype=DOUBLE)
        assert_matches_twin(comm, layer, nn.Flatten(), numbered(2, 5, 3, 2))
        return layer.codomain.tensors[0].layout

    (layout, *_) = run_on_ranks(adjointlab_world, 4, body)
    assert layout.partition == Partition((1, 4))
    assert layout.ends(1) == (0, 12, 18, 24, 30)


def test_where_the_first_flattened_dimension_alone_is_cut_nothing_travels(adjointlab_world: World) -> None:
    ranks = min(adjointlab_world.ranks, 3)

    def body(comm: Any) -> None:
        layer = Flatten(comm, Partition((1, ranks, 1)), (2, 5, 3), dtype=DOUBLE)
        assert not layer.steps.moves
        assert_matches_twin(comm, layer, nn.Flatten(), numbered(2, 5, 3))

    run_on_ranks(adjointlab_world, ranks, body)


def test_fewer_elements_than_workers_are_flattened_too(adjointlab_world: World) -> None:
    ranks = min(adjointlab_world.ranks, 4)

    def body(comm: Any) -> None:
        for shape in ((1, 1, 3), (1, 0, 3), (0, 2, 3)):
            layer = Flatten(comm, Partition((1, 1, ranks)), shape, dtype=DOUBLE)
            assert_matches_twin(comm, layer, nn.Flatten(), numbered(*shape))

    run_on_ranks(adjointlab_world, ranks, body)


def test_a_network_composes_and_its_layouts_fit(adjointlab_world: World) -> None:
    ranks = min(adjointlab_world.ranks, 4)
    half = ranks // 2 if ranks % 2 == 0 else ranks
    x = (numbered(3, 2, 7, 6) % 7 - 3).clone()
    targets = torch.tensor([4, 0, 2])

    def body(comm: Any) -> None:
        torch.manual_seed(1)
        twin = nn.Sequential(
            nn.Conv2d(2, 3, 3, padding=1, dtype=DOUBLE),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(27, 5, dtype=DOUBLE),
        )
        # Cut over output channels and height; then over the flat features; then over the classes.
        conv = Conv2d.from_sequential(
            twin[0], comm, Partition((1, ranks // half, 1, half, 1)), tuple(x.shape)
        )
        y = conv.codomain.tensors[0].layout
        relu = Pointwise(comm, y, nn.ReLU(), dtype=DOUBLE)
        pool = MaxPool2d(
            comm, Partition((1, ranks // half, half, 1), y.partition.ranks), y.shape, 2, dtype=DOUBLE
        )
        linear = Linear(comm, Partition((1, half, ranks // half)), (3, 27), 27, 5, dtype=DOUBLE)
        linear.load_sequential(twin[4])
        flat = Flatten(
            comm,
            pool.codomain.tensors[0].layout.partition,
            pool.codomain.tensors[0].layout.shape,
            target=linear.domain.tensors[0].layout,
            dtype=DOUBLE,
        )
        logits = linear.codomain.tensors[0].layout
        loss = CrossEntropyLoss(
            comm, Partition((1, half), logits.partition.ranks), logits.shape, dtype=DOUBLE
        )
        layers = [conv, relu, pool, flat, linear]
        for first, second in zip(layers, [*layers[1:], loss], strict=True):
            wanted = second.domain.tensors[0]
            assert first.codomain.tensors[0].fits(wanted), (first.codomain, second.domain)

        rank = comm.Get_rank()
        whole = x.clone().requires_grad_()
        want = nn.functional.cross_entropy(twin(whole), targets)
        want.backward()
        local = local_window(x, conv.domain.tensors[0].layout, rank).requires_grad_()
        value = loss(
            nn.Sequential(*layers)(local), local_window(targets, loss.domain.tensors[1].layout, rank)
        )
        value.backward(torch.ones_like(value))
        close: dict[str, Any] = {"rtol": 2.0**-40, "atol": 2.0**-40}
        if rank == 0:
            torch.testing.assert_close(value, want, **close)
        for layer, index in ((conv, 0), (linear, 4)):
            for tensor in layer.parameter_space.tensors:
                gradient = twin[index].get_parameter(tensor.name).grad
                assert gradient is not None
                window = local_window(gradient, tensor.layout, rank)
                torch.testing.assert_close(layer.get_parameter(tensor.name).grad, window, **close)
        assert whole.grad is not None
        torch.testing.assert_close(
            local.grad, local_window(whole.grad, conv.domain.tensors[0].layout, rank), **close
        )

    run_on_ranks(adjointlab_world, ranks, body)


def test_dimensions_that_are_not_there_have_torchs_words(adjointlab_world: World) -> None:

    def error(*given: int, **keywords: Any) -> str:
        return error_of_every_rank(
            adjointlab_world,
            2,
            lambda comm: Flatten(comm, Partition((1, 1, 1)), (2, 3, 4), *given, **keywords),
        )

    for given in ((1, 3), (-4, 2), (2, 1)):
        with pytest.raises((IndexError, RuntimeError)) as raised:
            nn.Flatten(*given)(numbered(2, 3, 4))
        assert error(*given) == str(raised.value)
    target = Layout((2, 11), Partition((1, 1)))
    assert error(target=target).startswith("target: a layout of a tensor of shape (2, 11)")


def test_another_module_is_no_flatten(adjointlab_world: World) -> None:
    def body(comm: Any) -> Flatten:
        return Flatten.from_sequential(nn.Unflatten(1, (2, 2)), comm, Partition((1, 1)), (2, 4))  # type: ignore[arg-type]

    assert error_of_every_rank(adjointlab_world, 1, body).startswith(
        "module: Unflatten, but Flatten is made from"
    )
