"""A local tensor that is not what a layer's domain says, on one rank, is the same `ValueError` on all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.layers.batch_norm import BatchNorm1d, BatchNorm2d
from adjointlab.layers.distributed import DistributedModule
from adjointlab.layers.flatten import Flatten
from adjointlab.layers.joining import Stack
from adjointlab.layers.losses import CrossEntropyLoss, MSELoss
from adjointlab.layers.permute import Permute
from adjointlab.layers.pointwise import Pointwise
from adjointlab.layers.pooling import MaxUnpool1d
from adjointlab.layers.repartition import Repartition
from adjointlab.worlds.world import World

from .twin_assertions import run_on_ranks

Make = Callable[[Any, int], DistributedModule]
"""Of a communicator and the number of its ranks."""


def columns(order: int, ranks: int) -> Partition:
    return Partition([ranks if dim == 1 else 1 for dim in range(order)])


WRONG: dict[str, tuple[Make, str, tuple[int, ...]]] = {
    "BatchNorm1d, rows of another batch": (
        lambda c, n: BatchNorm1d(c, Partition((n, 1)), (4 * n, 3), 3),
        "x",
        (3, 3),
    ),
    "BatchNorm2d, other sides": (
        lambda c, n: BatchNorm2d(c, Partition((n, 1, 1, 1)), (2 * n, 3, 4, 5), 3),
        "x",
        (2, 3, 5, 4),
    ),
    "Flatten, as many elements": (lambda c, n: Flatten(c, columns(3, n), (2, 3 * n, 4)), "x", (2, 4, 3)),
    "Permute": (lambda c, n: Permute(c, columns(3, n), (2, 3 * n, 4), (2, 0, 1)), "x", (4, 2, 3)),
    "Stack, one input": (lambda c, n: Stack(c, columns(2, n), [(2, 3 * n)] * 2), "x1", (2, 4)),
    "MaxUnpool1d, indices": (lambda c, n: MaxUnpool1d(c, columns(3, n), (1, n, 3), 2), "indices", (1, 1, 4)),
    "CrossEntropyLoss, probabilities of all classes where they are cut": (
        lambda c, n: CrossEntropyLoss(c, columns(2, n), (4, 3 * n), probabilities=True),
        "targets",
        (4, 12),
    ),
    "Pointwise": (lambda c, n: Pointwise(c, Layout((2, 3 * n), columns(2, n)), nn.ReLU()), "x", (2, 4)),
    "Repartition, a batch of tensors": (
        lambda c, n: Repartition(c, Layout((2, 3 * n), columns(2, n)), Layout((2, 3 * n), Partition((1, 1)))),
        "x",
        (2, 3, 5),
    ),
    "MSELoss, input": (lambda c, n: MSELoss(c, Partition((n, 1)), (4 * n, 1), "none"), "x", (4, 4)),
    "MSELoss, a target that would be broadcast": (
        lambda c, n: MSELoss(c, Partition((n, 1)), (4 * n, 1)),
        "target",
        (4,),
    ),
    "CrossEntropyLoss, all classes where they are cut": (
        lambda c, n: CrossEntropyLoss(c, columns(2, n), (4, 3 * n)),
        "x",
        (4, 12),
    ),
    "CrossEntropyLoss, targets as a column": (
        lambda c, n: CrossEntropyLoss(c, Partition((n, 1)), (4 * n, 3)),
        "targets",
        (4, 1),
    ),
}


def error(world: World, make: Make, wrong: Callable[[str, torch.Tensor], torch.Tensor], rank: int) -> str:
    """The message that a call raises on every rank alike if `wrong` alters the local tensors of `rank`.

    Caught on each rank: the errors come after a reduction, which some ranks leave earlier than others.
    """

    def body(comm: Any) -> str:
        layer = make(comm, comm.Get_size())
        inputs = [
            torch.zeros(tensor.layout.local_shape(comm.Get_rank()), dtype=getattr(torch, tensor.dtype))
            for tensor in layer.domain.tensors
        ]
        if comm.Get_rank() == rank:
            names = [tensor.name for tensor in layer.domain.tensors]
            inputs = [wrong(name, local) for name, local in zip(names, inputs, strict=True)]
        with pytest.raises(ValueError, match="on rank") as raised:
            layer(*inputs)
        return str(raised.value)

    messages = set(run_on_ranks(world, min(world.ranks, 3), body))
    assert len(messages) == 1, messages
    return messages.pop()


@pytest.mark.parametrize("name", WRONG)
def test_another_shape_on_one_rank_is_refused_on_all(adjointlab_world: World, name: str) -> None:
    make, which, shape = WRONG[name]
    rank = 0 if which == "targets" else min(adjointlab_world.ranks, 3) - 1

    def wrong(called: str, local: torch.Tensor) -> torch.Tensor:
        return local.new_zeros(shape) if called == which else local

    message = error(adjointlab_world, make, wrong, rank)
    assert message.startswith(f"{which}: shape {shape} on rank {rank}, but the layout"), message


@pytest.mark.parametrize("name", WRONG)
def test_another_element_type_on_one_rank_is_refused_on_all(adjointlab_world: World, name: str) -> None:
    make, *_ = WRONG[name]
    message = error(adjointlab_world, make, lambda _, local: local.to(torch.float16), 0)
    assert "float16 on rank 0, but the operator was made for float32" in message
