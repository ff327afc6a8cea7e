"""A product of two matrices that is made parallel with collectives of torch.distributed, right or without the sum of its backward pass."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import Shard

import adjointlab as al
from adjointlab.engine.subject import Subject

__all__ = ["TwoMatrices", "by_hand"]

_HIDDEN = 4


class TwoMatrices(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Parameter(torch.randn(_HIDDEN, 3))
        self.down = torch.nn.Parameter(torch.randn(2, _HIDDEN))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ self.up.T) @ self.down.T


class _Sum(torch.autograd.Function):
    """The sum over ranks of what only together is of use to each."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        x = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0].clone()


class _Copy(_Sum):
    """The adjoint of the sum."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return _Sum.forward(ctx, gradients[0])


class _Parts(torch.nn.Module):
    def __init__(self, whole: TwoMatrices, *, is_summed: bool) -> None:
        super().__init__()
        share = -(-_HIDDEN // dist.get_world_size())
        mine = slice(dist.get_rank() * share, (dist.get_rank() + 1) * share)
        self.up = torch.nn.Parameter(whole.up.detach()[mine].clone())
        self.down = torch.nn.Parameter(whole.down.detach()[:, mine].clone())
        self._is_summed = is_summed

    def forward(self, x: torch.Tensor) -> Any:
        sums: Any = _Sum
        copies: Any = _Copy
        x = copies.apply(x) if self._is_summed else x
        return sums.apply((x @ self.up.T) @ self.down.T)


def by_hand(*, is_summed: bool) -> Subject:
    """The subject; with the gradient by the input summed over the ranks, or left as each rank has it."""

    def parallelize(whole: TwoMatrices, mesh: object) -> torch.nn.Module:
        return _Parts(whole, is_summed=is_summed)

    @al.subject.parallel(TwoMatrices, parallelize)
    def cases(draw: Any, ranks: int) -> dict[str, Any]:
        shared = {"up": [Shard(0)], "down": [Shard(1)]}
        return dict(inputs=(draw(al.strategies.shapes(1))[0], 3), parameter_placements=shared)

    return cases
