"""A rank that takes the largest element of its part, as for the scale of a quantised weight, is seen where that is not the whole's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import Shard

import adjointlab as al
from tests.planted.parallel_modules import SummedUp

pytestmark = pytest.mark.mpi_skip


class Rounded(torch.autograd.Function):
    """A weight in steps of its scale, whose gradient passes straight through."""

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return (weight / scale).round() * scale

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        return gradient, None


class Quantised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(8, 3))

    def largest(self) -> torch.Tensor:
        return self.weight.detach().abs().amax()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ Rounded.apply(self.weight, self.largest().clamp(min=0.1) / 127)


class ParallelQuantised(Quantised):
    """Has some rows of the weight, and the columns of the input that belong to them."""

    def __init__(self, whole: Quantised, *, is_common: bool) -> None:
        super().__init__()
        own = whole.weight.detach().chunk(dist.get_world_size())[dist.get_rank()]
        self.weight, self.is_common = nn.Parameter(own.clone(), whole.weight.requires_grad), is_common

    def largest(self) -> torch.Tensor:
        largest = super().largest()
        if self.is_common:
            dist.all_reduce(largest, dist.ReduceOp.MAX)
        return largest

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return SummedUp.apply(super().forward(x))


@pytest.mark.parametrize("is_common", [True, False])
def test_a_scale_that_each_rank_takes_from_its_own_part_is_found(is_common: bool) -> None:
    def cases(draw: Any, ranks: int) -> dict[str, Any]:
        rows = {"weight": [Shard(0)]}
        return dict(inputs=(3, 8), input_placements=[[Shard(1)]], parameter_placements=rows)

    def check() -> None:
        al.check_parallel(
            Quantised,
            lambda module, mesh: ParallelQuantised(module, is_common=is_common),
            cases,
            mesh=(2,),
            cases=12,
        )

    if is_common:
        return check()
    with pytest.raises(AssertionError, match="the layer's outputs are not the sequential ones"):
        check()
