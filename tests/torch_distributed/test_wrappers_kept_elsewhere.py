"""A data-parallel wrapper may be kept where no module has it as a submodule, as by an engine: it is one all the same."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import adjointlab as al
from adjointlab.core.declaration import SubjectError

pytestmark = pytest.mark.mpi_skip

EXAMPLE = torch.zeros(4, 3)


def perceptron() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


class Engine(nn.Module):
    """Has the module that it trains as a submodule, and not the wrapper that it calls."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.inner = module
        self.held = SimpleNamespace(wrapper=DistributedDataParallel(module))

    def forward(self, x: torch.Tensor) -> Any:
        return self.held.wrapper(x)


def test_a_module_that_calls_a_wrapper_kept_elsewhere_goes_backward_after_each_forward_pass() -> None:
    al.check_parallel(
        perceptron,
        lambda module, mesh: Engine(module),
        EXAMPLE,
        data_parallel="mean",
        mesh=(2,),
        cases=4,
        checks=["gradients"],
    )


def test_a_wrapper_kept_elsewhere_needs_a_batch_for_each_rank_too() -> None:
    with pytest.raises(SubjectError, match="averages gradients over ranks"):
        al.check_parallel(perceptron, lambda module, mesh: Engine(module), EXAMPLE, mesh=(2,), cases=1)


def test_a_wrapper_that_nothing_calls_averages_no_gradients() -> None:
    def wrapped_and_returned_bare(module: Any, mesh: Any) -> nn.Module:
        bare: nn.Module = DistributedDataParallel(module).module
        return bare

    with pytest.raises(AssertionError, match="a mean over the ranks is missing"):
        al.check_parallel(
            perceptron,
            wrapped_and_returned_bare,
            EXAMPLE,
            data_parallel="mean",
            mesh=(2,),
            cases=1,
            checks=["gradients"],
        )
