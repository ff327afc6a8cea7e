"""Sums over the ranks of the default group."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

__all__ = ["all_reduced", "reduce_gradients"]


def all_reduced(x: torch.Tensor) -> torch.Tensor:
    """The sum of a tensor over all ranks, in memory of its own."""
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total)
    return total


def reduce_gradients(module: nn.Module) -> None:
    """Sum the gradients of a module's parameters over all ranks, in place."""
    for parameter in module.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
