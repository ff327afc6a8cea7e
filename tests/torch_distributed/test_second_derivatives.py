"""Second derivatives of parallel modules, as a penalty on gradients needs them: by inputs and parameters, with all that training code has around a pass."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis.strategies import DrawFn
from torch import nn
from torch.distributed.tensor import Shard
from torch.nn.parallel import DistributedDataParallel

import adjointlab as al
from tests.torch_distributed.sums import all_reduced, reduce_gradients

pytestmark = pytest.mark.mpi_skip

EXAMPLE = torch.zeros(4, 3)


class Perceptron(nn.Module):
    """A perceptron of one hidden layer, or a rank's part of one."""

    def __init__(self, hidden: int = 4) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(hidden, 3))
        self.second = nn.Parameter(torch.randn(2, hidden))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ self.first.T) @ self.second.T


class Copied(torch.autograd.Function):
    """The identity on copies, whose backward pass sums up."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return Summed.apply(gradient)


class Summed(torch.autograd.Function):
    """The sum of what the ranks have, whose backward pass is the identity."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return all_reduced(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return Copied.apply(gradient)


class SummedAgain(Summed):
    """A sum whose backward pass sums up once more."""

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return SummedAgain.apply(gradient)


class CopiedWithSums(Copied):
    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return SummedAgain.apply(gradient)


class TensorParallel(Perceptron):
    """Hidden features are cut."""

    def __init__(self, module: Perceptron, copied: Any) -> None:
        rank, size = dist.get_rank(), dist.get_world_size()
        super().__init__(4 // size)
        self.copied: Any = copied.apply
        self.first.data = module.first.data.chunk(size)[rank].clone()
        self.second.data = module.second.data.chunk(size, 1)[rank].clone()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        summed: Any = Summed.apply
        result: torch.Tensor = summed(super().forward(self.copied(x)))
        return result


def of_two_ranks(draw: DrawFn, ranks: int) -> dict[str, Any]:
    return dict(inputs=(2, 3), parameter_placements={"first": [Shard(0)], "second": [Shard(1)]})


def check(copied: Any, **options: Any) -> Any:
    return al.check_parallel(
        Perceptron,
        lambda module, mesh: TensorParallel(module, copied),
        of_two_ranks,
        mesh=(2,),
        cases=6,
        **options,
    )


def test_a_backward_pass_with_another_derivative_is_found() -> None:
    assert "double_backward" in check(Copied, twice_differentiable=True)
    assert "double_backward" not in check(CopiedWithSums)
    with pytest.raises(AssertionError, match="double_backward: the layer's second derivative by an input"):
        check(CopiedWithSums, twice_differentiable=True)


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 2))


def in_data_parallel(module: nn.Module, mesh: Any) -> nn.Module:
    if not any(parameter.requires_grad for parameter in module.parameters()):
        return module
    return DistributedDataParallel(module, process_group=mesh.get_group(0))


def test_ranks_that_share_the_batch_add_up_the_gradients_of_a_penalty_too() -> None:
    options: Any = dict(twice_differentiable=True, cases=6)
    al.check_parallel(perceptron, in_data_parallel, EXAMPLE, data_parallel="mean", **options)
    sums = dict(data_parallel="sum", after_backward=reduce_gradients, **options)
    al.check_parallel(perceptron, lambda module, mesh: None, EXAMPLE, **sums)


class Detached(nn.Module):
    """Right, but for a penalty: the gradient by the input is no function of anything."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        if x.requires_grad:
            x.register_hook(torch.Tensor.detach)
        result: torch.Tensor = self.module(x)
        return result


def test_a_gradient_without_a_graph_is_found() -> None:
    with pytest.raises(AssertionError, match="double_backward: the layer's second derivative"):
        al.check_parallel(
            perceptron,
            lambda module, mesh: Detached(module),
            EXAMPLE,
            data_parallel="sum",
            after_backward=reduce_gradients,
            twice_differentiable=True,
            cases=6,
        )


def test_where_no_input_has_a_gradient_nothing_is_said() -> None:
    with pytest.raises(AssertionError, match="no input of the module has a gradient"):
        al.check_parallel(
            lambda: nn.Embedding(4, 2),
            lambda module, mesh: None,
            torch.tensor([3, 1]),
            twice_differentiable=True,
            cases=3,
        )
