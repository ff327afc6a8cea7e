"""Modules that `torch.compile` compiles, collectives and all: the compiler traces what the lab puts around process groups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives

import adjointlab as al
from adjointlab.checks.verdict import Status
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget

pytestmark = pytest.mark.mpi_skip


class Scaled(nn.Module):
    """The module's result, times the mean over the ranks of a number that is one, or `off`."""

    def __init__(self, module: nn.Module, off: float) -> None:
        super().__init__()
        self.module, self.off = module, off

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # Not `torch.tensor`, a constant, on which the compiler itself calls collectives while it traces.
        number = torch.full((1,), self.off)
        total = _functional_collectives.all_reduce(number, "sum", dist.group.WORLD)
        result: torch.Tensor = self.module(x) * (total / dist.get_world_size())
        return result


@pytest.fixture(autouse=True)
def _nothing_compiled_is_left() -> Iterator[None]:
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize(("off", "expected"), [(1.0, Status.COHERENT), (1.5, Status.INCOHERENT)])
def test_a_compiled_module_is_compared_with_the_one_that_is_not(off: float, expected: Status) -> None:
    def compiled(module: nn.Module, mesh: Any) -> Any:
        return torch.compile(Scaled(module, off), backend="aot_eager")

    @al.subject.parallel(lambda: nn.Linear(3, 2), compiled)
    def subject(draw: Any, ranks: int) -> dict[str, Any]:
        return {"inputs": (2, 3), "parameter_placements": {}}

    budget = Budget(cases=3, seed=1, shrinking=0)
    verdict = investigate(al.SimulatedWorld(2), subject, "gradients", budget).verdict
    assert verdict.status is expected, verdict
