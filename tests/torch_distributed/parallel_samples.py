"""A small module, and torch's ways to make it parallel."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from hypothesis import strategies as st
from torch import nn
from torch.distributed._composable.replicate import replicate
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from tests.torch_distributed.sums import reduce_gradients

Parallelize = Callable[[nn.Module, DeviceMesh], object]

ADAM = partial(torch.optim.Adam, lr=0.1)

MOMENTUM = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


class WithLinear(nn.Module):
    """Has a linear layer of 3 features to 4."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)


def model(hidden: int = 12) -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, hidden), nn.Tanh(), nn.Linear(hidden, 2))


def batches(draw: Any, ranks: int) -> dict[str, Any]:
    """Batches that some ranks have no part of, and hidden layers that the ranks share unevenly, for what can do with both."""
    return dict(inputs=(draw(st.integers(0, 5)), 3), hidden=draw(st.integers(1, 7)))


def tensor_parallel(module: nn.Module, mesh: DeviceMesh) -> None:
    parallelize_module(module, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def sharded(module: Any, mesh: DeviceMesh) -> None:
    fully_shard(module[0], mesh=mesh)
    fully_shard(module, mesh=mesh)


def replicated(module: nn.Module, mesh: DeviceMesh) -> nn.Module:
    return DistributedDataParallel(module, process_group=mesh.get_group())


def replicated_in_place(module: nn.Module, mesh: DeviceMesh) -> None:
    composable: Any = replicate
    composable(module, process_group=mesh.get_group())


def in_both(module: nn.Module, mesh: DeviceMesh) -> None:
    tensor_parallel(module, mesh["tp"])
    sharded(module, mesh["dp"])


def sequence_parallel(module: nn.Module, mesh: DeviceMesh) -> None:
    plan = {"0": SequenceParallel(), "1": ColwiseParallel(input_layouts=Shard(1)), "2": RowwiseParallel()}
    parallelize_module(module, mesh, plan)


def as_it_is(module: nn.Module, mesh: DeviceMesh) -> None:
    pass


def averaged(module: nn.Module) -> None:
    reduce_gradients(module)
    for parameter in module.parameters():
        if parameter.grad is not None:
            parameter.grad /= dist.get_world_size()


EXAMPLE = torch.zeros(4, 3)
