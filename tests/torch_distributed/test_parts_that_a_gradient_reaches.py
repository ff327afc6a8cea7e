"""Indices that name rows of one rank alone leave the others unchecked: how many parts of a cut parameter have a gradient is a figure."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import RowwiseParallel, parallelize_module

import adjointlab as al
from adjointlab.checks.verdict import Figure
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget

pytestmark = pytest.mark.mpi_skip


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(8, 2)
        self.unused = nn.Embedding(8, 2)

    def forward(self, indices: torch.Tensor) -> Any:
        return self.table(indices)


def rows_cut(module: nn.Module, mesh: Any) -> None:
    style = RowwiseParallel(input_layouts=Replicate())
    parallelize_module(module, mesh, {"table": style, "unused": style})


def as_it_is(module: nn.Module, mesh: Any) -> None:
    return None


@pytest.mark.parametrize(
    ("rows", "parallelize", "reached"), [(4, rows_cut, 1), (8, rows_cut, 2), (4, as_it_is, None)]
)
def test_the_parts_of_a_cut_parameter_that_a_gradient_reaches_are_counted(
    rows: int, parallelize: Any, reached: int | None
) -> None:
    @al.subject.parallel(Words, parallelize, prepare=lambda i: i % rows, ranks=(2,))
    def subject(draw: Any, ranks: int) -> dict[str, Any]:
        return dict(inputs=(4, 3), input_dtypes=["int64"], frozen=0)

    result = investigate(al.SimulatedWorld(2), subject, "gradients", Budget(6, seed=1))
    assert result.verdict.is_coherent
    assert result.figures.get(Figure.REACHED) == reached
    assert result.figures.get(Figure.LEAST_REACHED) == (reached and "table.weight")


class Scaled(nn.Module):
    """Each rank's rows times a weight, of which the ranks have replicated copies: each has a summand of the gradient."""

    def __init__(self, comm: Any, rows: int) -> None:
        super().__init__()
        self.comm, ranks = comm, comm.size
        self.weight = nn.Parameter(torch.ones(2, dtype=torch.float64))
        self.domain = self.codomain = al.Space(al.Layout((rows, 2), al.Partition((ranks, 1))))
        copies = al.Layout((2,), al.Partition((ranks,)), axes=(None,))
        self.parameter_space = al.Space(al.Tensor(copies, name="weight", types=(al.LocalType.REPLICATED,)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


class WholeScaled(nn.Module):
    def __init__(self, rows: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


def test_a_replicated_parameter_is_not_cut_though_the_ranks_have_summands_of_its_gradient() -> None:
    @al.subject.layer(Scaled, WholeScaled, ranks=(2,))
    def subject(draw: Any, ranks: int) -> dict[str, Any]:
        return dict(rows=4)

    result = investigate(al.SimulatedWorld(2), subject, "gradients", Budget(6, seed=1))
    assert result.verdict.is_coherent
    assert Figure.REACHED not in result.figures
