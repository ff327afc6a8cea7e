"""Modules made parallel by torch and by hand, and functions of DTensors, on simulated ranks whose tensors lie on a real device.

Where there is no device, the same subjects run in memory of the host: so that what is to be seen on one is right.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import strategies as st
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

import adjointlab as al
from adjointlab.core import arrays
from adjointlab.engine.search_result import Budget
from adjointlab.engine.subject import Subject
from adjointlab.worlds.launch import is_launched
from tests.gpu.device_cases import incoherent_in
from tests.gpu.parallel_by_hand import by_hand

pytestmark = pytest.mark.skipif(is_launched(), reason="simulated ranks need no processes of MPI")


class Perceptron(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = (
            torch.nn.Linear(3, 12),
            torch.nn.Linear(12, 2),
        )  # 12, for torch takes equal parts alone

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.tanh(self.up(x)))  # type: ignore[no-any-return]


def tensor_parallel(module: torch.nn.Module, mesh: Any) -> torch.nn.Module:
    return parallelize_module(module, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


def sharded(module: torch.nn.Module, mesh: Any) -> torch.nn.Module:
    fully_shard(module.up, mesh=mesh)
    fully_shard(module, mesh=mesh)
    return module


def replicated(module: torch.nn.Module, mesh: Any) -> torch.nn.Module:
    return DistributedDataParallel(module)


def modules(parallelize: Any, **options: Any) -> Subject:
    @al.subject.parallel(Perceptron, parallelize, **options)
    def cases(draw: Any, ranks: int) -> dict[str, Any]:
        return dict(inputs=(draw(st.integers(ranks, 6)), 3))

    return cases


def redistributions() -> Subject:
    @al.subject.dtensor(
        lambda x, to: x.redistribute(placements=to),
        reference=lambda x, to: x,
        linear=True,
        name="redistribute",
    )
    def cases(draw: Any, ranks: int) -> dict[str, Any]:
        mesh, shape = draw(al.strategies.meshes(ranks)), draw(al.strategies.shapes(2))
        return dict(
            mesh=mesh,
            inputs=shape,
            placements=draw(al.strategies.placements(mesh, 2, partial=True)),
            to=draw(al.strategies.placements(mesh, 2)),
        )

    return cases


def pipelines() -> Subject:
    def in_two_stages(module: Any) -> Any:
        rank = dist.get_rank()
        part = torch.nn.Sequential(module[:2]) if rank == 0 else torch.nn.Sequential(module[2:])
        stage = PipelineStage(part, rank, 2, module[0].weight.device)
        return ScheduleGPipe(stage, 2, loss_fn=mse_loss)

    def sequential() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))

    @al.subject.pipeline(sequential, in_two_stages, loss=mse_loss, ranks=(2,))
    def cases(draw: Any, ranks: int) -> dict[str, Any]:
        return dict(inputs=(4, 3))

    return cases


def found(world: al.SimulatedWorld, subject: Subject, memory: str) -> dict[str, str]:
    return incoherent_in(world, subject, memory, Budget(cases=4, ranks=3, seed=1, shrinking=0))


@pytest.fixture(params=["torch", pytest.param("torch-cuda", marks=pytest.mark.gpu)])
def memory(request: pytest.FixtureRequest) -> str:
    if not arrays.installed(request.param):
        pytest.skip("needs a torch that sees a device")
    return str(request.param)


RIGHT = {
    "tensor parallel": lambda: modules(tensor_parallel),
    "fully sharded": lambda: modules(sharded, data_parallel="mean"),
    "data parallel": lambda: modules(replicated, data_parallel="mean"),
    "by hand": lambda: by_hand(is_summed=True),
    "redistributions": redistributions,
    "a pipeline": pipelines,
}


@pytest.mark.parametrize("make", RIGHT.values(), ids=RIGHT)
def test_right_parallel_code_is_coherent(world: al.SimulatedWorld, make: Any, memory: str) -> None:
    assert found(world, make(), memory) == {}


def test_a_gradient_that_is_not_summed_is_found(world: al.SimulatedWorld, memory: str) -> None:
    assert "input gradient" in found(world, by_hand(is_summed=False), memory)["gradients"]


def test_gradients_that_are_averaged_and_not_added_up_are_found(
    world: al.SimulatedWorld, memory: str
) -> None:
    assert "gradient" in found(world, modules(replicated, data_parallel="sum"), memory)["gradients"]


@pytest.mark.gpu
def test_a_module_is_checked_where_it_lies() -> None:
    if not arrays.installed("torch-cuda"):
        pytest.skip("needs a torch that sees a device")
    seen: list[Any] = []

    def parallelize(module: torch.nn.Module, mesh: Any) -> torch.nn.Module:
        seen.append((mesh.device_type, next(module.parameters()).is_cuda, dist.get_backend()))
        return tensor_parallel(module, mesh)

    x = torch.randn(5, 3, device="cuda")
    al.check_parallel(Perceptron().to("cuda"), parallelize, x, cases=4)
    assert set(seen) == {("cuda", True, "nccl")}
