"""A parallel module has parameters that are marked and trained as those of the sequential one are."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.functional import mse_loss

import adjointlab as al

pytestmark = pytest.mark.mpi_skip

EXAMPLE = torch.zeros(4, 3)
SGD = dict(optimizer=partial(torch.optim.SGD, lr=0.1), steps=2)


def model() -> nn.Sequential:
    made = nn.Sequential(nn.Linear(3, 12), nn.Tanh(), nn.Linear(12, 2))
    made[0].weight.requires_grad_(False)
    return made


def with_a_new_weight(module: Any, mesh: Any) -> None:
    module[0].weight = nn.Parameter(module[0].weight.detach().clone())


def frozen_elsewhere(module: Any, mesh: Any) -> None:
    module[2].weight.requires_grad_(False)


@pytest.mark.parametrize("options", [{}, SGD])
@pytest.mark.parametrize(
    ("parallelize", "told"),
    [
        (with_a_new_weight, "the sequential layer's parameter 0.weight does not require a gradient"),
        (frozen_elsewhere, "the layer's parameter 2.weight does not require a gradient"),
    ],
)
def test_a_parallel_module_trains_what_the_sequential_one_trains(
    parallelize: Any, told: str, options: Any
) -> None:
    with pytest.raises(AssertionError, match=told):
        al.check_parallel(model, parallelize, EXAMPLE, cases=6, **options)


@pytest.mark.filterwarnings("ignore:.*no rank communicated with another")
@pytest.mark.parametrize(
    ("parallelize", "data_parallel"),
    [
        (lambda module, mesh: None, None),
        (lambda module, mesh: fully_shard(module, mesh=mesh), "mean"),
        (
            lambda module, mesh: parallelize_module(
                module, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()}
            ),
            None,
        ),
    ],
)
def test_modules_with_frozen_parameters_are_the_sequential_ones(parallelize: Any, data_parallel: Any) -> None:
    al.check_parallel(model, parallelize, EXAMPLE, cases=3, data_parallel=data_parallel, **SGD)


def test_a_stage_trains_what_the_sequential_module_trains() -> None:
    def pipeline(module: Any, *, freezes: bool) -> Any:
        rank = dist.get_rank()
        part = module[:2] if rank == 0 else module[2:]
        if rank == 0 and freezes:
            part[0].bias.requires_grad_(False)
        return ScheduleGPipe(PipelineStage(part, rank, 2, torch.device("cpu")), 4, loss_fn=mse_loss)

    options: Any = dict(loss=mse_loss, ranks=2, cases=3, **SGD)
    example = torch.zeros(8, 3)
    al.check_pipeline(model, partial(pipeline, freezes=False), example, **options)
    with pytest.raises(AssertionError, match=r"the layer's parameter 0.bias does not require a gradient"):
        al.check_pipeline(model, partial(pipeline, freezes=True), example, **options)


@pytest.mark.filterwarnings("ignore:.*no rank communicated with another")
def test_an_instance_is_copied_with_the_marks_of_its_parameters() -> None:
    module = nn.Linear(3, 2)
    marked: Any = module.weight
    marked.is_shared, marked.twin, marked.lock = [True], module.bias, threading.Lock()
    seen: list[Any] = []

    def parallelize(module: Any, mesh: Any) -> None:
        seen.append((module.weight.is_shared, module.weight.twin is module.bias))
        assert module.weight.lock is marked.lock  # which cannot be copied

    al.check_parallel(module, parallelize, EXAMPLE, cases=2)
    assert all(each == ([True], True) for each in seen)
    assert all(shared is not marked.is_shared for shared, _ in seen)
