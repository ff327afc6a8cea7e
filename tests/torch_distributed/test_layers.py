"""Modules with DTensor parameters are checked as layers, against the sequential module that they are made from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from hypothesis import strategies as st
from torch import nn
from torch.distributed.tensor import Replicate, Shard, init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import adjointlab as al
from adjointlab.checks.check import checks_of
from adjointlab.checks.verdict import Status
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget
from adjointlab.engine.subject import Subject

BUDGET = Budget(4, ranks=3, seed=2)


def sequential(hidden: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, hidden), nn.Tanh(), nn.Linear(hidden, 2)).double()


def tensor_parallel(hidden: int) -> nn.Module:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    return parallelize_module(sequential(hidden), mesh, plan)


class WithoutSum(nn.Module):
    """Tensor-parallel, with its own sum over the ranks left out."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self._modules.update(tensor_parallel(hidden)._modules)  # by the names of the sequential module

    def forward(self, x: Any) -> Any:
        hidden = self._modules["1"](self._modules["0"](x))
        weight, bias = self._modules["2"].weight, self._modules["2"].bias
        return hidden @ weight.to_local().T + bias.to_local()


def space(placement: Any, shape: tuple[int, ...], ranks: int, name: str) -> Any:
    return al.Space.of_dtensor((ranks,), [placement], shape, name=name).tensors[0]


def cases_of_tensor_parallel(draw: Any, ranks: int) -> dict[str, Any]:
    # Not one alone: torch 2.13 fails in the backward pass of a hidden layer of one, on gloo too.
    hidden = ranks * draw(st.integers(2, 3))
    return dict(
        hidden=hidden,
        domain=al.Space(space(Replicate(), (2, 3), ranks, "x")),
        codomain=al.Space(space(Replicate(), (2, 2), ranks, "y")),
        parameter_space=al.Space(
            space(Shard(0), (hidden, 3), ranks, "0.weight"),
            space(Shard(0), (hidden,), ranks, "0.bias"),
            space(Shard(1), (2, hidden), ranks, "2.weight"),
            space(Replicate(), (2,), ranks, "2.bias"),
        ),
        uniform_requires_grad=True,
    )


def verdicts(world: al.SimulatedWorld, subject: Subject) -> dict[str, str]:
    found = {check: investigate(world, subject, check, BUDGET).verdict for check in checks_of(subject)}
    return {check: str(verdict) for check, verdict in found.items() if verdict.status is not Status.COHERENT}


def subject_of(layer: Callable[..., nn.Module]) -> Subject:
    return al.subject.layer(layer, sequential=sequential, process_group=True)(cases_of_tensor_parallel)


def test_a_tensor_parallel_module_is_coherent(world: al.SimulatedWorld) -> None:
    assert verdicts(world, subject_of(tensor_parallel)) == {}


def test_a_missing_sum_is_found(world: al.SimulatedWorld) -> None:
    result = investigate(world, subject_of(WithoutSum), "sequential", BUDGET)
    assert result.verdict.status is Status.INCOHERENT
    assert result.case is not None
    assert result.case.ranks == 2
