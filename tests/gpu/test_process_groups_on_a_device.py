"""Simulated process groups of tensors that say that they are on a device: every collective, modules made parallel, and what nccl refuses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

import adjointlab as al
from adjointlab.core import arrays
from adjointlab.core.declaration import SubjectError
from adjointlab.engine.search_result import Budget
from adjointlab.torch_distributed.contiguity import NotContiguous
from adjointlab.worlds.launch import is_launched
from adjointlab.worlds.world import RankContext
from tests.gpu.device_cases import incoherent_in
from tests.gpu.parallel_by_hand import by_hand
from tests.gpu.stand_in.torch_device import copies, torch_device_stand_in
from tests.torch_distributed.programs import PROGRAMS, values
from tests.torch_distributed.test_conformance import equal

pytestmark = [
    pytest.mark.skipif(is_launched(), reason="simulated ranks need no processes of MPI"),
    # torch looks for a timeout of nccl's, and a build for the CPU has none.
    pytest.mark.filterwarnings("ignore:Attempted to get default timeout for nccl"),
]


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if arrays.installed("torch-cuda"):
        pytest.skip("there is a device: tests/gpu/test_parallel_modules_on_a_gpu.py has its tensors")
    # torch asks for both in its own calls, and a build for the CPU does not know.
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 0, 0))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    with torch_device_stand_in():
        yield


def on_host(result: Any) -> Any:
    if isinstance(result, list | tuple):
        return type(result)(map(on_host, result))
    return result.cpu() if isinstance(result, torch.Tensor) else result


def wait(work: Any) -> None:
    if work is not None:
        work.wait()


def body(context: RankContext, name: str) -> list[str]:
    program, wrong = PROGRAMS[name], []
    with arrays.rank_context("torch-cuda", context.rank), al.process_group(context.comm, "cuda"):
        for dtype in program.dtypes:
            result = on_host(program.run(values(context.rank, dtype).to("cuda"), wait, False))
            wanted = program.expected([values(rank, dtype) for rank in range(context.size)], context.rank)
            wrong += [] if equal(result, wanted) else [f"{dtype}: {result}, not {wanted}"]
    return wrong


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_collective_has_its_result(world: al.SimulatedWorld, name: str) -> None:
    run = world.run(body, name, 3)
    assert run.completed, (run.findings, run.outcomes)
    assert list(run.values) == [[]] * 3


@pytest.mark.parametrize("is_summed", [True, False])
def test_a_module_made_parallel_by_hand_is_judged_by_its_backward_pass(
    world: al.SimulatedWorld, is_summed: bool
) -> None:
    budget = Budget(cases=4, ranks=3, seed=1, shrinking=0)
    wrong = incoherent_in(world, by_hand(is_summed=is_summed), "torch-cuda", budget)
    assert ("gradients" in wrong) is not is_summed, wrong
    assert copies["to_host"], "no message of a device was staged"


def refused(context: RankContext, call: str) -> str:
    with arrays.rank_context("torch-cuda", context.rank), al.process_group(context.comm, "cuda"):
        column_major = torch.zeros(3, 2, device="cuda").T
        try:
            if call == "all_reduce":
                dist.all_reduce(column_major)
            else:
                dist.reduce_scatter(column_major, [torch.zeros_like(column_major)] * 2)
        except NotContiguous as error:
            return str(error)
        return ""


@pytest.mark.parametrize("call", ["all_reduce", "reduce_scatter"])
def test_a_tensor_that_nccl_refuses_is_refused(world: al.SimulatedWorld, call: str) -> None:
    run = world.run(refused, call, 2)
    assert run.completed, run.findings
    for message in run.values:
        assert message.startswith(call), message
        assert "nccl refuses it" in message


def asked(context: RankContext, payload: None) -> tuple[str, str, list[str]]:
    with al.device_mesh(context.comm, (2,), device_type="cuda") as mesh:
        group = dist.group.WORLD
        assert group is not None
        return dist.get_backend(), mesh.device_type, [device.type for device in group._device_types]


def test_code_that_asks_is_told_of_the_device(world: al.SimulatedWorld) -> None:
    run = world.run(asked, None, 2)
    assert list(run.values) == [("nccl", "cuda", ["cpu", "cuda"])] * 2


@pytest.mark.parametrize("memory", ["numpy", "torch+torch-cuda"])
def test_a_mesh_of_several_kinds_of_device_is_refused(memory: str) -> None:
    with pytest.raises(SubjectError, match="one kind of device"):
        al.subject.parallel(torch.nn.Linear, lambda module, mesh: module, arrays=[memory])
