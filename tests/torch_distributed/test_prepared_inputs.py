"""A preparation makes legal inputs of whole tensors, of which each rank gets its part."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import Partial, Shard
from torch.nn import functional as F

import adjointlab as al
from adjointlab.core.declaration import SubjectError
from tests.planted.parallel_modules import SummedUp
from tests.torch_distributed.parallel_samples import as_it_is, averaged
from tests.torch_distributed.sums import reduce_gradients

pytestmark = pytest.mark.mpi_skip


class Columns(nn.Module):
    """A product with the columns of a weight that belong to the columns of the input."""

    def __init__(self, whole: nn.Parameter) -> None:
        super().__init__()
        own = whole.detach().chunk(dist.get_world_size(), 1)[dist.get_rank()]
        self.weight = nn.Parameter(own.clone(), whole.requires_grad)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return SummedUp.apply(F.linear(x, self.weight))


def normalised(x: torch.Tensor) -> torch.Tensor:
    return F.normalize(x + 0.5, dim=1)


def test_rows_that_a_preparation_normalises_may_be_cut() -> None:
    def parallelize(module: nn.Module, mesh: Any) -> nn.Module:
        return Columns(module.weight)

    def cases(draw: Any, ranks: int) -> dict[str, Any]:
        columns = [Shard(1)]
        return dict(inputs=(3, 4), input_placements=[columns], parameter_placements={"weight": columns})

    made = partial(nn.Linear, 4, 2, bias=False)
    al.check_parallel(made, parallelize, cases, mesh=(2,), prepare=normalised, cases=6)


class Looked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8, 3)

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        return self.embedding(numbers)


def test_a_preparation_may_count_rows_of_a_batch_that_ranks_share() -> None:
    def numbered(numbers: torch.Tensor) -> torch.Tensor:
        return (numbers.long() + torch.arange(len(numbers))) % 8

    given: Any = dict(data_parallel="mean", after_backward=averaged, prepare=numbered, cases=6)
    al.check_parallel(Looked, as_it_is, lambda draw, ranks: dict(inputs=(5,)), **given)


def test_a_preparation_that_changes_shapes_is_refused() -> None:
    def one_hot(numbers: torch.Tensor) -> torch.Tensor:
        return F.one_hot(numbers.long() % 4, 4).to(numbers.dtype)

    told = re.escape("prepare= returned shape (5, 4) in the place of (5,): let the module change shapes")
    with pytest.raises(SubjectError, match=told):
        al.check_parallel(
            lambda: nn.Linear(4, 2), as_it_is, lambda draw, ranks: dict(inputs=(5,)), prepare=one_hot
        )


def test_a_preparation_gets_the_summands_of_ranks() -> None:
    class Weighted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.weight

    def cases(draw: Any, ranks: int) -> dict[str, Any]:
        return dict(inputs=(4, 3), input_placements=[[Partial()]], output_placements=[[Partial()]])

    given: Any = dict(prepare=lambda x: 2 * x, after_backward=reduce_gradients, cases=6)
    al.check_parallel(Weighted, as_it_is, cases, mesh=(2,), **given)
