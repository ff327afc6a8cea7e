"""Some ranks alone may have a parameter, such as those of an expert, and ranks may cut one otherwise than ``torch.chunk`` does."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard

import adjointlab as al
from adjointlab.torch_distributed.dtensors import tensor_on
from adjointlab.torch_distributed.held_parts import HeldPart, agreed, as_held, grid_of_holders
from adjointlab.worlds.world import RankContext

pytestmark = pytest.mark.mpi_skip

EXAMPLE = torch.zeros(4, 3)


class CopiedIn(torch.autograd.Function):
    """A copy that every rank of a group uses in its own way."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        dist.all_reduce(total := gradient.contiguous().clone(), group=ctx.group)
        return total, None


class SummedUp(torch.autograd.Function):
    """Summands of all ranks of a group added up."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        dist.all_reduce(total := x.clone(), group=group)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        return gradient, None


class Experts(nn.Module):
    """A mixture of experts, of which each rank of the mesh computes those that it has."""

    def __init__(self, experts: int = 3) -> None:
        super().__init__()
        self.router = nn.Linear(3, experts)
        self.experts = nn.ModuleDict({str(number): nn.Linear(3, 3) for number in range(experts)})
        self.mesh: DeviceMesh | None = None
        self.scales: Mapping[str, float] = {}
        self.number_of: Callable[[str], int] = int

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gates = torch.softmax(self.router(x), -1)
        group = None if self.mesh is None else self.mesh.get_group()
        if group is not None:
            x, gates = CopiedIn.apply(x, group), CopiedIn.apply(gates, group)
        total = torch.zeros_like(x) + x[:0].sum() + gates[:0].sum()  # in the graph, also without experts
        for number, expert in self.experts.items():
            total = total + self.scales.get(number, 1.0) * gates[:, self.number_of(number), None] * expert(x)
        return total if group is None else SummedUp.apply(total, group)


def own_experts(module: Any, mesh: DeviceMesh) -> None:
    module.mesh, ranks = mesh, mesh.size()
    own = {key: each for key, each in module.experts.items() if int(key) % ranks == mesh.get_local_rank()}
    module.experts = nn.ModuleDict(own)


def counted_from_0(module: Any, mesh: DeviceMesh) -> None:
    own_experts(module, mesh)
    rank, ranks = mesh.get_local_rank(), mesh.size()
    module.experts = nn.ModuleDict({str(place): each for place, each in enumerate(module.experts.values())})
    module.number_of = lambda key: rank + int(key) * ranks


def test_experts_may_be_on_the_ranks_that_have_them_alone(world: al.SimulatedWorld) -> None:
    def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        assert all(parameter.numel() for parameter in parameters)  # none of those that others have
        return torch.optim.Adam(parameters, lr=0.1)

    al.check_parallel(Experts, own_experts, EXAMPLE, optimizer=optimizer, steps=2, cases=8, world=world)


def test_experts_may_be_shared_by_the_ranks_of_another_mesh_dimension(world: al.SimulatedWorld) -> None:
    def parallelize(module: Any, mesh: DeviceMesh) -> None:
        own_experts(module, mesh["ep"])
        for expert in module.experts.values():
            fully_shard(expert, mesh=mesh["dp"])
        fully_shard(module, mesh=mesh["dp"])

    given: Any = dict(mesh={"dp": 2, "ep": 2}, data_parallel={"dp": "mean"}, cases=4, world=world)
    al.check_parallel(Experts, parallelize, EXAMPLE, **given)


@pytest.mark.parametrize("what", ["output", "gradient", "values", "twice"])
def test_a_fault_of_an_expert_of_one_rank_is_found(world: al.SimulatedWorld, what: str) -> None:
    def parallelize(module: Any, mesh: DeviceMesh) -> None:
        first = module.experts["0"]
        own_experts(module, mesh)
        if what == "twice":
            module.experts["0"] = first
        if mesh.get_local_rank() != 1:
            return
        module.scales = {"1": 2.0} if what == "output" else {}
        expert = module.experts["1"]
        if what == "gradient":
            expert.bias.register_hook(lambda gradient: 2 * gradient)
        if what == "values":
            expert.weight = nn.Parameter(first.weight.detach().clone())

    with pytest.raises(AssertionError, match=r"outputs are not|parameter gradient is not|other elements"):
        al.check_parallel(Experts, parallelize, EXAMPLE, frozen=(), mesh=(2,), cases=4, world=world)


def test_experts_may_be_counted_from_0_on_each_rank(world: al.SimulatedWorld) -> None:
    al.check_parallel(Experts, counted_from_0, EXAMPLE, frozen=(), cases=8, world=world)


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("gradient", r"^parallelize gradients: .*\n  parameter gradient +experts.1.bias"),
        ("values", "no parameter experts.1.weight, which the sequential one has, but experts.0.weight: "),
        ("twice", "no parameter experts.3.weight, which the sequential one has, but experts."),
    ],
)
def test_a_fault_of_an_expert_that_is_counted_from_0_is_found(
    world: al.SimulatedWorld, what: str, told: str
) -> None:
    def parallelize(module: Any, mesh: DeviceMesh) -> None:
        first = module.experts["0"]
        counted_from_0(module, mesh)
        if mesh.get_local_rank() != 1:
            return
        expert = module.experts["0"]
        if what == "twice":
            module.experts["1"].load_state_dict(expert.state_dict())
        elif what == "gradient":
            expert.bias.register_hook(lambda gradient: 2 * gradient)
        else:
            expert.weight = nn.Parameter(first.weight.detach().clone())
            expert.bias = nn.Parameter(first.bias.detach().clone())

    with pytest.raises(AssertionError, match=told):
        al.check_parallel(
            partial(Experts, 4), parallelize, EXAMPLE, frozen=(), mesh=(2,), cases=4, world=world
        )


class Sent(torch.autograd.Function):
    """Rows that the ranks of a pipeline hand on to the next one; the first one receives nothing."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, source: int) -> torch.Tensor:
        ctx.source = source
        dist.broadcast(result := x.contiguous().clone(), source)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        dist.all_reduce(total := gradient.contiguous().clone())
        return total if dist.get_rank() == ctx.source else torch.zeros_like(total), None


class Blocks(nn.Module):
    """Blocks with a buffer each, of which each rank has some, in their order."""

    def __init__(self, blocks: int = 4) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3, momentum=0.5)) for _ in range(blocks)
        )
        self.stages = 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.stages == 1:
            return self._through(x)
        x = CopiedIn.apply(x + torch.zeros((), requires_grad=True), None)  # in the graph on every rank
        for stage in range(self.stages):
            x = Sent.apply(self._through(x) if dist.get_rank() == stage else x, stage)
        return x / self.stages + (x - x / self.stages).detach()  # every rank has the whole cotangent

    def _through(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def in_stages(module: Any, mesh: DeviceMesh, *, momentum: float = 0.5) -> None:
    module.stages, rank = mesh.size(), mesh.get_local_rank()
    share = len(module.blocks) // mesh.size()
    module.blocks = module.blocks[rank * share : (rank + 1) * share]
    module.blocks[-1][1].momentum = momentum


@pytest.mark.parametrize("momentum", [0.5, 0.25])
def test_layers_of_stages_may_be_counted_from_0_with_buffers_that_each_has_alone(
    world: al.SimulatedWorld, momentum: float
) -> None:
    def check() -> None:
        parallelize = partial(in_stages, momentum=momentum)
        al.check_parallel(Blocks, parallelize, EXAMPLE, frozen=(), mesh=(2,), cases=4, world=world)

    if momentum == 0.5:
        check()
        return
    with pytest.raises(AssertionError, match=r"buffers .*\n *buffers +blocks\.[13]\.1\.running_"):
        check()


class Rows(nn.Module):
    """A table of which each rank has rows from `ends`."""

    def __init__(self, rows: int = 7) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(rows, 2))
        self.ends: list[int] = []

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        if not self.ends:
            return self.weight[index]
        start, stop = self.ends[dist.get_rank() : dist.get_rank() + 2]
        chosen = torch.arange(start, stop) == index[:, None]
        return SummedUp.apply(chosen.to(self.weight.dtype) @ self.weight, None)


def rows_of(module: Any, mesh: DeviceMesh, *, shift: int = 0, factor: int = 1) -> None:
    ranks = mesh.size()
    ends = [part * len(module.weight) // ranks for part in range(ranks + 1)]
    start, stop = ends[dist.get_rank() : dist.get_rank() + 2]
    held = module.weight.detach().roll(shift, 0)[start:stop].clone()
    module.ends, module.weight = ends, nn.Parameter(held, module.weight.requires_grad)
    if module.weight.requires_grad:
        module.weight.register_hook(lambda gradient: gradient * (factor if dist.get_rank() else 1))


@pytest.mark.parametrize(
    ("wrong", "told"),
    [({}, ""), ({"shift": 1}, "values of other elements"), ({"factor": 2}, "parameter gradient is not")],
)
def test_plain_parts_of_a_parameter_are_cut_as_the_ranks_hold_them(
    world: al.SimulatedWorld, wrong: Any, told: str
) -> None:
    """Seven rows on four ranks are 1, 2, 2 and 2; ``torch.chunk`` makes 2, 2, 2 and 1 of them."""

    def cases(draw: Any, ranks: int) -> Any:
        placements = {"weight": [Shard(0)]}
        return dict(inputs=[(5,)], mesh=(ranks,), parameter_placements=placements, frozen=0)

    def check() -> None:
        parallelize = partial(rows_of, **wrong)
        al.check_parallel(Rows, parallelize, cases, prepare=lambda x: x.long() % 7, cases=6, world=world)

    if not told:
        check()
        return
    with pytest.raises(AssertionError, match=told):
        check()


@pytest.mark.parametrize(
    ("holders", "shape", "ranks"),
    [
        ([0, 1, 2, 3, 4, 5], (2, 3), [0, 1, 2, 3, 4, 5]),
        ([4], (1, 1), [4]),
        ([1, 4], (2, 1), [1, 4]),
        ([5, 3], (1, 2), [3, 5]),
    ],
)
def test_ranks_that_hold_a_parameter_are_a_part_of_the_mesh(
    world: al.SimulatedWorld, holders: list[int], shape: Any, ranks: list[int]
) -> None:
    def body(context: RankContext, payload: None) -> Any:
        with al.device_mesh(context.comm, (2, 3)) as mesh:
            told = f"the parameter w is on ranks [0, 4], and not on [1, 3], which lie between them on the mesh of shape {(2, 3)}"
            with pytest.raises(TypeError, match=f"^{re.escape(told)}$"):
                grid_of_holders(mesh, "w", [0, 4])
            return grid_of_holders(mesh, "w", holders)

    assert set(world.run(body, None, 6).values) == {al.Partition(shape, ranks)}


def part(*local_shape: int | None) -> HeldPart:
    whole = None if None in local_shape else local_shape
    return HeldPart((Shard(0), Replicate()), (7, 2), whole, "float64")  # type: ignore[arg-type]


def test_ranks_say_the_same_of_a_parameter_but_for_their_own_parts() -> None:
    assert agreed("w", {1: part(4, 2), 3: part(3, 2)}) == part(4, 2)
    others = [replace(part(4, 2), placements=(Replicate(),)), replace(part(4, 2), dtype="float32")]
    for other in [*others, replace(part(4, 2), shape=(8, 2))]:
        with pytest.raises(TypeError, match=r"^the ranks have different parameters w: .* rank 1, .* rank 3$"):
            agreed("w", {1: part(4, 2), 2: part(3, 2), 3: other})


@pytest.mark.parametrize(
    ("lengths", "cut"),
    [
        ((1, 1, 6, 6), (0, 1, 7)),
        ((0, 0, 7, 7), (0, 0, 7)),
        ((4, 4, 3, 3), (0, 4, 7)),
        # Not as long as the whole, of different lengths, and of a DTensor, which cuts as `torch.chunk` does.
        ((1, 1, 5, 5), (0, 4, 7)),
        ((1, 2, 6, 6), (0, 4, 7)),
        ((None, None, None, None), (0, 4, 7)),
    ],
)
def test_lengths_of_plain_parts_that_are_the_whole_together_are_where_it_is_cut(
    lengths: Any, cut: tuple[int, ...]
) -> None:
    partition = al.Partition((2, 2))
    tensor = tensor_on(partition, [Shard(0), Replicate()], (7, 2), "float64", "w")
    held = {rank: part(length, 2) for rank, length in enumerate(lengths)}
    found, padding = as_held(tensor, held, rank=0)
    assert padding is None
    assert found.layout.windows[0] == tuple(pairwise(cut))
    assert (found.types, found.name, found.layout.axes) == (tensor.types, "w", tensor.layout.axes)
