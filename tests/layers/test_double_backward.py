"""Second derivatives: Hessian-vector products of every layer are torch's, with workers that hold nothing and idle ranks.

Before each layer the input comes from one rank, so that a rank that leaves a pass early is missed there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.layers.batch_norm import BatchNorm1d, BatchNorm2d
from adjointlab.layers.convolution import Conv1d, Conv2d
from adjointlab.layers.distributed import DistributedModule
from adjointlab.layers.flatten import Flatten
from adjointlab.layers.linear import Linear
from adjointlab.layers.losses import CrossEntropyLoss, MSELoss
from adjointlab.layers.pointwise import Pointwise
from adjointlab.layers.pooling import AvgPool1d, MaxPool1d, MaxPool2d
from adjointlab.layers.repartition import Repartition
from adjointlab.layers.windows import local_window
from adjointlab.worlds.world import World

from .twin_assertions import run_on_ranks

DOUBLE = torch.float64
RELATIVE = 1e-9
REDUCTIONS = ("none", "mean", "sum")
Layers = Callable[[Any, int], list[DistributedModule]]
"""Of a communicator and a number of workers, the layers of a chain, the first of which takes the input."""


def drawn(*shape: int, phase: float = 0.0) -> torch.Tensor:
    """The same on every rank, without torch's generator."""
    return torch.sin(torch.arange(math.prod(shape), dtype=DOUBLE) * 1.7 + phase).reshape(shape)


def targets(classes: int, *shape: int) -> torch.Tensor:
    return (torch.arange(math.prod(shape)) * 7 % 11 % classes).reshape(shape)


def along(workers: int, dim: int, order: int) -> Partition:
    """All workers along one dimension of a partition of that order, backwards."""
    return Partition([workers if d == dim else 1 for d in range(order)], range(workers - 1, -1, -1))


def hessian_times(leaves: list[torch.Tensor], directions: list[torch.Tensor], y: torch.Tensor) -> None:
    """The Hessian of the sum of y, times the directions, as the gradients of the leaves; `None` for those it is linear in."""
    first = torch.autograd.grad(y.sum(), leaves, create_graph=True)
    product = torch.stack([(g * v).sum() for g, v in zip(first, directions, strict=True)]).sum()
    if product.requires_grad:
        product.backward()


def assert_hessian(
    world: World, make: Layers, x: torch.Tensor, target: torch.Tensor | None = None, power: int = 1
) -> None:
    """Assert that Hessian-vector products, in the input and all parameters, are those of the sequential layers.

    They are those of a weighted sum of the outputs, to a power. On up to four ranks, one of which is no worker.
    """
    ranks = min(world.ranks, 4)

    def body(comm: Any) -> None:
        rank = comm.Get_rank()
        torch.manual_seed(4)
        layers = make(comm, max(1, ranks - 1))
        twins = [layer.to_sequential() for layer in layers]
        whole = [x.clone().requires_grad_(), *(p for twin in twins for p in twin.parameters())]
        directions = [drawn(*leaf.shape, phase=phase) for phase, leaf in enumerate(whole)]
        y = whole[0]
        for twin in twins[:-1]:
            y = twin(y)
        y = twins[-1](y) if target is None else twins[-1](y, target)
        weights = drawn(*y.shape, phase=0.5)
        hessian_times(whole, directions, weights * y**power)

        source = Layout(x.shape, Partition((1,) * x.dim(), [0]))
        layouts = [source, *(t.layout for layer in layers for t in layer.parameter_space.tensors)]
        leaves = [
            local_window(x, source, rank).requires_grad_(),
            *(p for m in layers for p in m.parameters()),
        ]
        y = Repartition(comm, source, layers[0].domain.tensors[0].layout, dtype=DOUBLE)(leaves[0])
        for layer in layers[:-1]:
            y = layer(y)
        if target is None:
            y = layers[-1](y)
        else:
            y = layers[-1](y, local_window(target, layers[-1].domain.tensors[1].layout, rank))
        windows = [local_window(v, layout, rank) for v, layout in zip(directions, layouts, strict=True)]
        weights = local_window(weights, layers[-1].codomain.tensors[0].layout, rank)
        hessian_times(leaves, windows, weights * y**power)
        for leaf, want, layout in zip(leaves, whole, layouts, strict=True):
            product = torch.zeros_like(want) if want.grad is None else want.grad
            got = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
            scale = float(product.abs().max()) or 1.0
            torch.testing.assert_close(
                got, local_window(product, layout, rank), rtol=0, atol=RELATIVE * scale
            )

    run_on_ranks(world, ranks, body)


LAYERS: dict[str, tuple[Layers, tuple[int, ...]]] = {
    # Of three workers, one has nothing where a side is 2.
    "Linear, inputs cut": (lambda c, w: [Linear(c, along(w, 2, 3), (2, 2), 2, 3, dtype=DOUBLE)], (2, 2)),
    "Linear, outputs cut": (lambda c, w: [Linear(c, along(w, 1, 3), (2, 3), 3, 2, dtype=DOUBLE)], (2, 3)),
    "Linear, batch cut": (lambda c, w: [Linear(c, along(w, 0, 3), (2, 3), 3, 2, dtype=DOUBLE)], (2, 3)),
    "Conv1d, side cut": (
        lambda c, w: [Conv1d(c, along(w, 3, 4), (2, 2, 4), 2, 3, 3, dtype=DOUBLE)],
        (2, 2, 4),
    ),
    "Conv1d, inputs cut": (
        lambda c, w: [Conv1d(c, along(w, 2, 4), (2, 2, 4), 2, 3, 3, dtype=DOUBLE)],
        (2, 2, 4),
    ),
    "Conv1d, outputs cut": (
        lambda c, w: [Conv1d(c, along(w, 1, 4), (2, 3, 4), 3, 2, 3, dtype=DOUBLE)],
        (2, 3, 4),
    ),
    "Conv1d, groups cut": (
        lambda c, w: [Conv1d(c, along(w, 1, 4), (2, 2, 4), 2, 2, 3, groups=2, dtype=DOUBLE)],
        (2, 2, 4),
    ),
    "Conv1d, batch cut": (
        lambda c, w: [Conv1d(c, along(w, 0, 4), (2, 2, 4), 2, 3, 3, dtype=DOUBLE)],
        (2, 2, 4),
    ),
    "MaxPool1d": (lambda c, w: [MaxPool1d(c, along(w, 2, 3), (2, 3, 4), 2, dtype=DOUBLE)], (2, 3, 4)),
    "AvgPool1d": (lambda c, w: [AvgPool1d(c, along(w, 2, 3), (2, 3, 4), 2, dtype=DOUBLE)], (2, 3, 4)),
    "BatchNorm1d, training": (
        lambda c, w: [BatchNorm1d(c, along(w, 0, 3), (2, 3, 2), 3, dtype=DOUBLE)],
        (2, 3, 2),
    ),
    "BatchNorm1d, evaluation": (
        lambda c, w: [BatchNorm1d(c, along(w, 1, 2), (3, 2), 2, dtype=DOUBLE).eval()],
        (3, 2),
    ),
    "Flatten": (lambda c, w: [Flatten(c, along(w, 2, 3), (2, 3, 2), dtype=DOUBLE)], (2, 3, 2)),
    "Flatten to elsewhere": (
        lambda c, w: [
            Flatten(c, along(w, 2, 3), (2, 3, 2), target=Layout((2, 6), along(w, 0, 2)), dtype=DOUBLE)
        ],
        (2, 3, 2),
    ),
    "Repartition": (
        lambda c, w: [
            Repartition(c, Layout((2, 3), along(w, 0, 2)), Layout((2, 3), along(w, 1, 2)), dtype=DOUBLE)
        ],
        (2, 3),
    ),
}


@pytest.mark.parametrize("power", [1, 3])
@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_has_the_second_derivatives_of_its_twin(
    adjointlab_world: World, name: str, power: int
) -> None:
    make, shape = LAYERS[name]
    assert_hessian(adjointlab_world, make, drawn(*shape), power=power)


@pytest.mark.parametrize(
    "function", [nn.Tanh(), nn.ReLU(), nn.GELU(), nn.Softplus(), nn.Hardtanh(-0.5, 0.5)], ids=repr
)
def test_a_worker_without_elements_is_in_the_second_pass_of_a_function(
    adjointlab_world: World, function: nn.Module
) -> None:
    def make(comm: Any, workers: int) -> list[DistributedModule]:
        return [Pointwise(comm, Layout((2, 3), along(workers, 0, 2)), function, dtype=DOUBLE)]

    assert_hessian(adjointlab_world, make, drawn(2, 3))


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("all_reduce", [False, True], ids=["on the root", "everywhere"])
@pytest.mark.parametrize("dim", range(2))
def test_losses_have_torchs_second_derivatives(
    adjointlab_world: World, dim: int, all_reduce: bool, reduction: str
) -> None:
    def entropy(comm: Any, workers: int) -> list[DistributedModule]:
        weight = torch.tensor([1.0, 0.25], dtype=DOUBLE)
        return [
            CrossEntropyLoss(
                comm,
                along(workers, dim, 2),
                (2, 2),
                weight,
                reduction=reduction,
                label_smoothing=0.25,
                all_reduce=all_reduce,
            )
        ]

    def error(comm: Any, workers: int) -> list[DistributedModule]:
        return [MSELoss(comm, along(workers, dim, 2), (2, 2), reduction, all_reduce=all_reduce, dtype=DOUBLE)]

    assert_hessian(adjointlab_world, entropy, drawn(2, 2), targets(2, 2))
    assert_hessian(adjointlab_world, error, drawn(2, 2), drawn(2, 2, phase=1.0))


@pytest.mark.parametrize("all_reduce", [False, True], ids=["on the root", "everywhere"])
def test_a_chain_of_layers_has_the_second_derivatives_of_the_network(
    adjointlab_world: World, all_reduce: bool
) -> None:
    def make(comm: Any, workers: int) -> list[DistributedModule]:
        # Two rows of outputs for up to three workers, and five classes.
        images, rows = (3, 2, 4, 6), along(workers, 2, 4)
        conv = Conv2d(comm, along(workers, 3, 5), images, 2, 4, 3, bias=False, dtype=DOUBLE)
        made = conv.codomain.tensors[0].layout
        pool = MaxPool2d(comm, rows, made.shape, (1, 2), dtype=DOUBLE)
        linear = Linear(comm, along(workers, 1, 3), (3, 16), 16, 5, dtype=DOUBLE)
        wanted = linear.domain.tensors[0].layout
        return [
            conv,
            BatchNorm2d(comm, rows, made.shape, 4, dtype=DOUBLE),
            Pointwise(comm, made, nn.ReLU(), dtype=DOUBLE),
            pool,
            Flatten(comm, rows, pool.codomain.tensors[0].layout.shape, target=wanted, dtype=DOUBLE),
            linear,
            CrossEntropyLoss(comm, along(workers, 1, 2), (3, 5), dtype=DOUBLE, all_reduce=all_reduce),
        ]

    assert_hessian(adjointlab_world, make, drawn(3, 2, 4, 6), targets(5, 3))
