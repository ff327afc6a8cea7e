"""torch's own parallel code runs unchanged on simulated ranks, and equals the sequential result."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as nn_functional
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor, init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import adjointlab as al
from adjointlab.worlds.world import RankContext, World, WorldName

HIDDEN = 12  # what 2, 3 and 4 ranks share evenly: torch's tensor parallelism asks for that


@pytest.fixture
def ranks(adjointlab_world: World) -> tuple[int, ...]:
    return (2, 3, 4) if adjointlab_world.name is WorldName.SIMULATED else (adjointlab_world.ranks,)


def model() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(5, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 3)).double()


def batch() -> torch.Tensor:
    return torch.arange(20.0, dtype=torch.float64).reshape(4, 5) / 7 - 1


def loss(output: torch.Tensor) -> torch.Tensor:
    return output.square().sum()


def whole(tensor: torch.Tensor | None) -> torch.Tensor:
    assert tensor is not None
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def gradients(module: nn.Module, inputs: torch.Tensor) -> list[torch.Tensor]:
    loss(module(inputs)).backward()
    return [whole(parameter.grad) for parameter in module.parameters()]


def tensor_parallel() -> nn.Module:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return parallelize_module(model(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def sharded() -> nn.Module:
    module = model()
    fully_shard(module[0])
    return fully_shard(module)


def data_parallel() -> nn.Module:
    return DistributedDataParallel(model())


@pytest.mark.parametrize("parallel", [tensor_parallel, sharded, data_parallel])
def test_the_gradients_of_a_parallel_module_are_the_sequential_ones(
    adjointlab_world: World, ranks: tuple[int, ...], parallel: Callable[[], nn.Module]
) -> None:
    def body(context: RankContext, payload: None) -> float:
        with al.process_group(context.comm):
            found = gradients(parallel(), batch())
        wanted = gradients(model(), batch())
        return max(float((one - other).abs().max()) for one, other in zip(found, wanted, strict=True))

    for count, seed in product(ranks, (0, 1)):
        run = adjointlab_world.run(body, None, count, seed=seed)
        assert run.completed, run
        assert max(run.values) < 1e-12


def test_a_pipeline_has_the_gradients_of_the_sequential_module(adjointlab_world: World) -> None:
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    def body(context: RankContext, payload: None) -> float:
        module = model()
        mine = [module[:2], module[2:]][context.rank]
        with al.process_group(context.comm):
            stage = PipelineStage(mine, context.rank, 2, torch.device("cpu"))
            schedule = ScheduleGPipe(stage, 2, loss_fn=lambda output, _: loss(output), scale_grads=False)
            if context.rank:
                schedule.step(target=torch.zeros(4, 3))
            else:
                schedule.step(batch())
        sequential = model()
        gradients(sequential, batch())
        pairs = zip(
            mine.parameters(), [sequential[:2], sequential[2:]][context.rank].parameters(), strict=True
        )
        return max(float((whole(one.grad) - whole(other.grad)).abs().max()) for one, other in pairs)

    for seed in (0, 1):
        run = adjointlab_world.run(body, None, 2, seed=seed)
        assert run.completed, run
        assert max(run.values) < 1e-12


MESHES = ((2,), (3,), (4,), (2, 2))
PLACEMENTS: tuple[Placement, ...] = (Shard(0), Shard(1), Replicate())


def redistributed(context: RankContext, mesh_shape: tuple[int, ...]) -> list[str]:
    """The pairs of placements between which a DTensor of uneven shards moves wrongly, or its gradient back."""
    wrong = []
    tensor = torch.arange(10.0, dtype=torch.float64).reshape(5, 2)
    weights = tensor.flip(0) + 1
    with al.device_mesh(context.comm, mesh_shape) as mesh:
        for source in product(PLACEMENTS, repeat=mesh.ndim):
            for target in product(PLACEMENTS, repeat=mesh.ndim):
                x = distribute_tensor(tensor, mesh, source).requires_grad_()
                moved = x.redistribute(placements=target)
                (moved * distribute_tensor(weights, mesh, [Replicate()] * mesh.ndim)).sum().backward()
                if not torch.equal(moved.full_tensor(), tensor) or not torch.equal(whole(x.grad), weights):
                    wrong.append(f"{source} to {target}")
    return wrong


@pytest.mark.parametrize("mesh", MESHES)
def test_a_dtensor_moves_between_placements_and_its_gradient_back(
    adjointlab_world: World, ranks: tuple[int, ...], mesh: tuple[int, ...]
) -> None:
    size = torch.Size(mesh).numel()
    if size not in ranks:
        pytest.skip(f"a mesh of {size} ranks, and there are {ranks}")
    run = adjointlab_world.run(redistributed, mesh, size, seed=1)
    assert run.completed, run
    assert run.values == ([],) * size


@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch 2.13 renames some
def test_functional_collectives_have_their_results(adjointlab_world: World, ranks: tuple[int, ...]) -> None:
    def body(context: RankContext, payload: None) -> list[float]:
        n, x = context.size, torch.ones(4)
        with al.process_group(context.comm) as group:
            results = [
                functional.all_reduce(x, "avg", group),
                *functional.all_reduce_coalesced([x, x], "sum", group),
                functional.all_gather_tensor(x, 0, group),
                *functional.all_gather_into_tensor_coalesced([x], group),
                functional.reduce_scatter_tensor(torch.ones(4 * n), "sum", 0, group),
                *functional.reduce_scatter_tensor_coalesced([torch.ones(4 * n)], "sum", [0], group),
                functional.all_to_all_single(torch.ones(n), None, None, group),
                functional.broadcast(x, 0, group),
            ]
            return [float(result.sum()) / n for result in results]

    for count in ranks:
        run = adjointlab_world.run(body, None, count, seed=1)
        assert run.completed, run
        assert run.values == ([4 / count, 4, 4, 4, 4, 4, 4, 1, 4 / count],) * count


@pytest.mark.filterwarnings("ignore:torch.distributed.nn.functional:FutureWarning")
def test_the_differentiable_collectives_of_torch_go_back(
    adjointlab_world: World, ranks: tuple[int, ...]
) -> None:
    def body(context: RankContext, payload: None) -> list[float]:
        n, x = context.size, torch.ones(3, requires_grad=True)
        with al.process_group(context.comm):
            outputs = [
                nn_functional.all_reduce(x),
                *nn_functional.all_gather(x),
                nn_functional.reduce_scatter(torch.empty(3), [x] * n),
                *nn_functional.all_to_all([torch.empty(3) for _ in range(n)], [x] * n),
            ]
            sum(output.sum() for output in outputs).backward()
        assert x.grad is not None
        return list(map(float, x.grad))

    for count in ranks:
        run = adjointlab_world.run(body, None, count, seed=1)
        assert run.completed, run
        assert run.values == ([4.0 * count] * 3,) * count
