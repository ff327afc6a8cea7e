"""Functions that torch differentiates: what they return is taken as a caller takes it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

import adjointlab as al
from adjointlab.checks.verdict import Status
from adjointlab.engine.search import Budget, investigate

BUDGET = Budget(10, ranks=3, seed=1)


def summed(x: torch.Tensor) -> torch.Tensor:
    return functional.all_reduce(x, "sum", dist.group.WORLD)


def summed_on_first(x: torch.Tensor) -> torch.Tensor:
    total = functional.all_reduce(x, "sum", dist.group.WORLD)
    return total if dist.get_rank() == 0 else total[:0]  # nothing, in another shape than (0, 0)


@pytest.mark.parametrize("function", [summed, summed_on_first])
def test_results_of_functional_collectives_are_waited_for_and_differentiated(
    world: al.SimulatedWorld, function: Any
) -> None:
    @al.subject.autograd(function, process_group=True)
    def sums(draw: Any, ranks: int) -> dict[str, Any]:
        each = al.Space(al.Layout((2 * ranks, 3), al.Partition((ranks, 1))))
        first = al.Space(al.Layout((2, 3), al.Partition((1, 1), (0,))))
        return dict(domain=each, codomain=each if function is summed else first)

    result = investigate(world, sums, "adjoint", BUDGET)
    assert result.status is Status.COHERENT, result.verdict
