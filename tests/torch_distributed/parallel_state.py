"""Module-level state as released libraries have it: groups made once, kept in variables, and found by whoever asks."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from adjointlab.typing import NumpyArray

_GROUP: Any = None
_MADE: dict[str, Any] = {}


def initialize() -> None:
    global _GROUP, _SIZE
    if _GROUP is None:
        _GROUP = dist.new_group(list(range(dist.get_world_size())))
        _SIZE = dist.get_world_size()
        _MADE["group"] = _GROUP


def sum_over_group(x: torch.Tensor) -> torch.Tensor:
    initialize()
    assert _MADE["group"] is _GROUP
    total = x.clone()
    dist.all_reduce(total, group=_GROUP)
    assert dist.get_world_size() == _SIZE
    return total


SCRATCH = np.zeros(8)


def sum_in_scratch(comm: Any, x: NumpyArray) -> NumpyArray:
    """The sum over all ranks, by way of an array that is made when the module is imported."""
    received = SCRATCH[: comm.Get_size()]
    comm.Allgather(np.array(x), received)
    received *= 1 + comm.Get_rank()
    comm.Barrier()
    return received.sum(keepdims=True) / (1 + comm.Get_rank())


@cache
def own_rank() -> int:
    """The rank of the process, as one that has but one keeps it."""
    return dist.get_rank()


def own_part(x: torch.Tensor) -> torch.Tensor:
    """The part of this rank, of the tensors of all."""
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.contiguous())
    return parts[own_rank()]


SIZE = 1


@cache
def world_size() -> int:
    return dist.get_world_size()


class Scaled(torch.nn.Module):
    """One class for one process and for several: a rank has the part of the weight that is its own by the state kept here."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4 // SIZE))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert world_size() == dist.get_world_size()
        return x * self.weight


class ScaledBySize(Scaled):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x * SIZE)


def parallel(module: Scaled, mesh: Any) -> torch.nn.Module:
    global SIZE
    SIZE = mesh.size()
    return type(module)()
