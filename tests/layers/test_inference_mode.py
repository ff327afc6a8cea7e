"""A first call in torch's inference mode leaves nothing behind that a later call could not use in a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.layers.batch_norm import BatchNorm2d
from adjointlab.layers.convolution import Conv2d
from adjointlab.layers.differentiable import apply
from adjointlab.layers.flatten import Flatten
from adjointlab.layers.linear import Linear
from adjointlab.layers.pooling import MaxPool2d
from adjointlab.layers.repartition import Repartition
from adjointlab.layers.windows import local_window
from adjointlab.primitives.redistribute import Redistribute
from adjointlab.worlds.world import World

from .twin_assertions import assert_matches_twin, run_on_ranks, sines

DOUBLE = torch.float64


def image(sides: tuple[int, int]) -> Partition:
    return Partition((1, 1, *sides))


LAYERS: dict[str, tuple[Callable[[Any], Any], Callable[[], nn.Module], tuple[int, ...]]] = {
    "convolution over a square": (
        lambda comm: Conv2d(
            comm, Partition((1, 1, 1, 2, 2)), (1, 2, 6, 6), nn.Conv2d(2, 2, 3, padding=1, dtype=DOUBLE)
        ),
        lambda: nn.Conv2d(2, 2, 3, padding=1, dtype=DOUBLE),
        (1, 2, 6, 6),
    ),
    "max pooling": (
        lambda comm: MaxPool2d(comm, image((1, 4)), (1, 2, 6, 9), 3, 1, dtype=DOUBLE),
        lambda: nn.MaxPool2d(3, 1),
        (1, 2, 6, 9),
    ),
    "affine": (
        lambda comm: Linear(comm, Partition((1, 2, 2)), (3, 5), nn.Linear(5, 4, dtype=DOUBLE)),
        lambda: nn.Linear(5, 4, dtype=DOUBLE),
        (3, 5),
    ),
    "batch normalisation": (
        lambda comm: BatchNorm2d(comm, image((2, 2)), (2, 3, 4, 4), 3, affine=False, dtype=DOUBLE),
        lambda: nn.BatchNorm2d(3, affine=False, dtype=DOUBLE),
        (2, 3, 4, 4),
    ),
    "flatten": (
        lambda comm: Flatten(comm, image((2, 2)), (2, 3, 4, 4), dtype=DOUBLE),
        nn.Flatten,
        (2, 3, 4, 4),
    ),
    "repartition": (
        lambda comm: Repartition(
            comm, Layout((5, 7), Partition((2, 2))), Layout((5, 7), Partition((4, 1))), dtype=DOUBLE
        ),
        nn.Identity,
        (5, 7),
    ),
}
"""Layers on four workers, their sequential twins, and the shapes of their inputs."""


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_called_in_inference_mode_first_is_a_layer_as_any_other(
    adjointlab_world: World, name: str
) -> None:
    if adjointlab_world.ranks < 4:
        pytest.skip("needs 4 ranks")
    make, make_twin, shape = LAYERS[name]

    def body(comm: Any) -> None:
        layer, twin, x = make(comm), make_twin(), sines(*shape)
        for tensors in (layer.parameters(), twin.parameters()):
            for parameter in tensors:
                nn.init.constant_(parameter, 0.5)
        local = local_window(x, layer.domain.tensors[0].layout, comm.Get_rank())
        with torch.inference_mode():
            layer(local)
            twin(x)
        assert_matches_twin(comm, layer, twin, x, relative=1e-12)

    run_on_ranks(adjointlab_world, 4, body)


@pytest.mark.parametrize("direction", ["forward", "adjoint"])
def test_an_operator_called_in_inference_mode_first_is_differentiable(
    adjointlab_world: World, direction: str
) -> None:
    if adjointlab_world.ranks < 4:
        pytest.skip("needs 4 ranks")
    layouts = Layout((5, 7), Partition((2, 2))), Layout((5, 7), Partition((4, 1)))
    operators: tuple[Callable[[Any], Any], ...] = (
        lambda comm: Repartition(comm, *layouts, dtype=DOUBLE).move,
        lambda comm: Redistribute(comm, Partition((2, 2)), (5, 7), [[0], [1]], [[1], [0]]),
    )

    def body(comm: Any) -> None:
        for make in operators:
            operator = make(comm)
            space = operator.domain if direction == "forward" else operator.codomain
            (tensor,) = space.tensors
            with torch.inference_mode():
                getattr(operator, direction)(local_window(sines(5, 7), tensor.layout, comm.Get_rank()))
            x = local_window(sines(5, 7), operator.domain.tensors[0].layout, comm.Get_rank()).requires_grad_()
            apply(operator, x).sum().backward()
            torch.testing.assert_close(x.grad, torch.ones_like(x))

    run_on_ranks(adjointlab_world, 4, body)
