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
