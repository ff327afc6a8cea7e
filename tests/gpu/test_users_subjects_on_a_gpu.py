"""Subjects as users declare them, with tensors on a real device: right ones are coherent, and wrong ones are found.

Where there is no device, the same subjects run in memory of the host: so that what is to be seen on one is right.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch

import adjointlab as al
from adjointlab.core import arrays
from adjointlab.engine.search_result import Budget
from adjointlab.engine.subject import Subject
from adjointlab.worlds.launch import is_launched
from tests.gpu.device_cases import incoherent_in

pytestmark = pytest.mark.skipif(is_launched(), reason="simulated ranks need no processes of MPI")


def gathered(comm: Any, x: torch.Tensor) -> list[torch.Tensor]:
    """The tensors of all ranks, through the host, on the device of `x`."""
    return [part.to(x.device) for part in comm.allgather(x.detach().cpu())]


class SumOverRanks(torch.autograd.Function):
    """Each rank's own tensor summed on every rank, whose copies are of use to each: its adjoint is the sum of theirs."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, comm: Any) -> Any:
        ctx.comm = comm
        return sum(gathered(comm, x))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return sum(gathered(ctx.comm, gradients[0])), None


class GradientKept(SumOverRanks):
    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        gathered(ctx.comm, gradients[0])
        return gradients[0].clone(), None


class GradientOnTheHost(SumOverRanks):
    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return sum(gathered(ctx.comm, gradients[0].cpu())), None


def sums(function: type[torch.autograd.Function]) -> Subject:
    @al.subject.autograd(function, arrays=["torch"])
    def cases(draw: Any, ranks: int) -> dict[str, Any]:
        copies = al.Layout(draw(al.strategies.shapes(2)), al.Partition((ranks,)), axes=(None, None))
        return dict(domain=al.Space(copies), codomain=al.Space(copies))

    return cases


class CopyToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, comm: Any, anchor: torch.Tensor, is_summed: bool) -> torch.Tensor:
        ctx.comm, ctx.is_summed = comm, is_summed
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        parts = gathered(ctx.comm, gradients[0])
        return sum(parts) if ctx.is_summed else gradients[0], None, None, None


class ColumnParallelLinear(torch.nn.Module):
    """Each rank computes some of the output features, from the whole input."""

    forward_mode = False
    is_summed = True

    def __init__(self, comm: Any, in_features: int, out_features: int) -> None:
        super().__init__()
        self.comm, rank, size = comm, comm.Get_rank(), comm.Get_size()
        rows = out_features // size + (rank < out_features % size)
        self.weight = torch.nn.Parameter(torch.randn(rows, in_features, dtype=torch.float32))
        self.bias = torch.nn.Parameter(torch.zeros(rows, dtype=torch.float32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        anchor = torch.zeros(0, requires_grad=True, device=x.device)
        x = CopyToAll.apply(x, self.comm, anchor, self.is_summed)  # type: ignore[no-untyped-call]
        return torch.nn.functional.linear(x, self.weight, self.bias)


class InputGradientNotSummed(ColumnParallelLinear):
    is_summed = False


def linear(in_features: int, out_features: int) -> torch.nn.Linear:
    return torch.nn.Linear(in_features, out_features, dtype=torch.float32)


def linears(layer: type[ColumnParallelLinear]) -> Subject:
    @al.subject.layer(layer, linear)
    def cases(draw: Any, ranks: int) -> dict[str, Any]:
        batch, inputs, outputs = (max(1, side) for side in draw(al.strategies.shapes(3)))
        workers = al.Partition((ranks,))
        x = al.Layout((batch, inputs), workers, axes=(None, None))
        weight, bias = (
            al.Layout((outputs, inputs), workers, axes=(0, None)),
            al.Layout((outputs,), workers, axes=(0,)),
        )
        y = al.Layout((batch, outputs), workers, axes=(None, 0))
        return dict(
            in_features=inputs,
            out_features=outputs,
            domain=al.Space(al.Tensor(x, dtype="float32", types=("invariant",))),
            codomain=al.Space(al.Tensor(y, dtype="float32"), name="y"),
            parameter_space=al.Space(
                al.Tensor(weight, dtype="float32", name="weight"),
                al.Tensor(bias, dtype="float32", name="bias"),
            ),
        )

    return cases


def moved(comm: Any, x: Any, step: int) -> Any:
    """The array of the rank `step` before this one, by messages of device memory itself."""
    rank, size = comm.Get_rank(), comm.Get_size()
    source, result = x.copy(order="C"), x.copy(order="C")
    wait_for(x)  # MPI knows nothing of streams
    comm.Sendrecv(source, (rank + step) % size, 0, result, (rank - step) % size, 0)
    return result


def wait_for(x: Any) -> None:
    if not isinstance(x, np.ndarray):
        sys.modules["cupy"].cuda.get_current_stream().synchronize()


def sent_too_early(comm: Any, x: Any) -> Any:
    """The same without a wait, where the device has been given a long work before the copy."""
    cupy: Any = sys.modules["cupy"]
    rank, size = comm.Get_rank(), comm.Get_size()
    wait_for(x)
    late = cupy.zeros(2**24)
    for _ in range(100):
        late += 1
    source, result = x.copy(order="C"), x.copy(order="C")
    comm.Sendrecv(source, (rank + 1) % size, 0, result, (rank - 1) % size, 0)
    return result


def shifted(comm: Any, x: Any) -> Any:
    return moved(comm, x, 1)


def shifted_back(comm: Any, y: Any) -> Any:
    return moved(comm, y, -1)


def rings(adjoint: Any, forward: Any = shifted) -> Subject:
    @al.subject.pair(forward, adjoint)
    def cases(draw: Any, ranks: int) -> dict[str, Any]:
        copies = al.Layout(draw(al.strategies.shapes(2)), al.Partition((ranks,)), axes=(None, None))
        return dict(domain=al.Space(copies), codomain=al.Space(copies))

    return cases


def found(world: al.SimulatedWorld, subject: Subject, memory: str) -> dict[str, str]:
    return incoherent_in(world, subject, memory, Budget(cases=5, ranks=4, seed=1, shrinking=0))


@pytest.fixture(params=["torch", pytest.param("torch-cuda", marks=pytest.mark.gpu)])
def of_torch(request: pytest.FixtureRequest) -> str:
    if not arrays.installed(request.param):
        pytest.skip("needs a torch that sees a device")
    return str(request.param)


@pytest.fixture(params=["numpy", pytest.param("cupy", marks=pytest.mark.gpu)])
def of_arrays(request: pytest.FixtureRequest) -> str:
    if not arrays.installed(request.param):
        pytest.skip("needs CuPy, and a device")
    return str(request.param)


def test_right_subjects_of_torch_are_coherent(world: al.SimulatedWorld, of_torch: str) -> None:
    for subject in (sums(SumOverRanks), linears(ColumnParallelLinear)):
        assert found(world, subject, of_torch) == {}


def test_a_gradient_that_is_not_summed_is_found(world: al.SimulatedWorld, of_torch: str) -> None:
    assert "transpose" in found(world, sums(GradientKept), of_torch)["adjoint"]
    assert "input gradient" in found(world, linears(InputGradientNotSummed), of_torch)["gradients"]


@pytest.mark.gpu
def test_a_gradient_that_comes_back_on_the_host_is_found(world: al.SimulatedWorld) -> None:
    if not arrays.installed("torch-cuda"):
        pytest.skip("needs a torch that sees a device")
    assert "adjoint" in found(world, sums(GradientOnTheHost), "torch-cuda")


def test_a_right_pair_of_functions_is_coherent_and_a_wrong_one_found(
    world: al.SimulatedWorld, of_arrays: str
) -> None:
    assert found(world, rings(shifted_back), of_arrays) == {}
    assert "transpose" in found(world, rings(shifted), of_arrays)["adjoint"]


@pytest.mark.gpu
def test_memory_that_is_sent_before_the_device_has_written_it_is_found(world: al.SimulatedWorld) -> None:
    if not arrays.installed("cupy"):
        pytest.skip("needs CuPy, and a device")
    assert found(world, rings(shifted_back, sent_too_early), "cupy") != {}
