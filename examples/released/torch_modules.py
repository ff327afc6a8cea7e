"""Parallel modules of torch: a step of training has the gradients of the sequential step.

Tensor parallelism, FSDP2, DDP and pipelines, each over drawn sizes. But for pipelines, which are subjects of their own kind, the output
is the gradient of every parameter, whole, and that of the input where each rank has the whole input; nothing is differentiated further.

What is a convention is declared: DDP and FSDP average over the ranks of data parallelism, so that their gradients are multiplied by the
number of these.

    adjointlab check examples/released/torch_modules.py --check sequential
    adjointlab check examples/released/torch_modules.py:pipelines --check gradients
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from hypothesis import strategies as st
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.pipelining import PipelineStage, schedules
from torch.distributed.tensor import DTensor, Replicate, Shard, init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.functional import interpolate, mse_loss
from torch.nn.parallel import DistributedDataParallel

import adjointlab as al

warnings.filterwarnings("ignore", module="torch.distributed")

IN, OUT = 3, 2

Gradients = list[torch.Tensor]


class Step(nn.Module):
    """A step as a module: from the inputs to the gradients."""

    forward_mode = False

    def __init__(self, step: Callable[..., Gradients], arguments: dict[str, Any]):
        super().__init__()
        self.step, self.arguments = step, arguments

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.enable_grad():
            gradients = self.step(x.detach() / 4, **self.arguments)
        return tuple(whole(g).detach() for g in gradients)


def whole(tensor: Any) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def filled(module: nn.Module) -> nn.Module:
    """The module with parameters that follow from their places."""
    for number, parameter in enumerate(module.parameters()):
        values = torch.arange(parameter.numel(), dtype=torch.float64).add(number).sin()
        parameter.data = values.reshape(parameter.shape)
    return module


def perceptron(hidden: int) -> nn.Module:
    return filled(nn.Sequential(nn.Linear(IN, hidden), nn.Tanh(), nn.Linear(hidden, OUT)))


def loss(y: torch.Tensor, *_: Any) -> torch.Tensor:
    return y.square().sum()


def back(module: nn.Module, x: torch.Tensor) -> Gradients:
    """Gradients of all parameters; zero for those that have none."""
    loss(module(x)).backward()
    return gradients_of(module)


def gradients_of(module: nn.Module) -> Gradients:
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in module.parameters()]


def training_step(
    name: str, make: Callable[..., nn.Module], draw_case: Callable[..., Any], **subject: Any
) -> Any:
    """Check a step: ``step(x, **arguments)``, on each rank, against ``make(...)``'s gradients for all rows.

    ``draw_case(draw, ranks)`` returns the rows that the ranks hold (a placement), the number of rows, and the arguments, of which those
    in ``arguments["model"]`` make the sequential module.
    """

    def declare(step: Callable[..., Gradients]) -> Any:
        def sequentially(x: torch.Tensor, model: Any, by_input: bool = False, **_: Any) -> Gradients:
            x.requires_grad_(by_input)
            found = back(make(**model), x)
            return [*found, x.grad] if by_input else found  # type: ignore[list-item]

        def cases(draw: Any, ranks: int) -> dict[str, Any]:
            placement, rows, arguments = draw_case(draw, ranks)
            shapes = [tuple(p.shape) for p in make(**arguments["model"]).parameters()]
            shapes += [(rows, IN)] * bool(arguments.get("by_input"))
            each = [
                al.Space.of_dtensor((ranks,), [Replicate()], shape, name=f"gradient{k}").tensors[0]
                for k, shape in enumerate(shapes)
            ]
            return dict(
                arguments=arguments,
                domain=al.Space.of_dtensor((ranks,), [placement], (rows, IN)),
                codomain=al.Space(*each),
            )

        return al.subject.layer(
            lambda arguments: Step(step, arguments),
            sequential=lambda arguments: Step(sequentially, arguments),
            process_group=True,
            name=name,
            **subject,
        )(cases)

    return declare


# Tensor parallelism


def of_tensor_parallel(draw: Any, ranks: int) -> Any:
    # Local outputs are taken for even shards, as `DTensor.from_local` says. Not a hidden layer of one: see below.
    model = dict(hidden=ranks * draw(st.integers(2, 3)))
    style = draw(st.sampled_from(sorted(PLANS)))
    rows = ranks * draw(st.integers(1, 2)) if "rows" in style or "input" in style else draw(st.integers(1, 4))
    return Replicate(), rows, dict(model=model, style=style, by_input=True)


PLANS: dict[str, Callable[[], dict[str, Any]]] = {
    "colwise, rowwise": lambda: {"0": ColwiseParallel(), "2": RowwiseParallel()},
    "colwise to whole, rowwise of whole": lambda: {
        "0": ColwiseParallel(output_layouts=Replicate()),
        "2": RowwiseParallel(input_layouts=Replicate()),
    },
    "rowwise, colwise": lambda: {
        "0": RowwiseParallel(input_layouts=Replicate()),
        "2": ColwiseParallel(output_layouts=Replicate()),
    },
    "colwise alone": lambda: {"0": ColwiseParallel(output_layouts=Replicate())},
    "rowwise alone": lambda: {"2": RowwiseParallel(input_layouts=Replicate())},
    "sharded rows between": lambda: {
        "0": ColwiseParallel(output_layouts=Shard(0)),
        "1": SequenceParallel(sequence_dim=0, use_local_output=True),
        "2": ColwiseParallel(input_layouts=Shard(0), output_layouts=Replicate()),
    },
    "input sharded first": lambda: {
        "": PrepareModuleInput(
            input_layouts=Replicate(), desired_input_layouts=Shard(0), use_local_output=True
        ),
        "0": ColwiseParallel(input_layouts=Shard(0)),
        "2": RowwiseParallel(),
    },
}


def tensor_parallel_step(x: torch.Tensor, model: Any, style: str, by_input: bool) -> Gradients:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    module = parallelize_module(perceptron(**model), mesh, PLANS[style]())
    x.requires_grad_()
    return [*back(module, x), x.grad]  # type: ignore[list-item]


tensor_parallel = training_step("torch.tensor_parallel", perceptron, of_tensor_parallel)(tensor_parallel_step)


def of_one(draw: Any, ranks: int) -> Any:
    return Replicate(), 2, dict(model=dict(hidden=1), style="colwise, rowwise", by_input=True)


tensor_parallel_of_one = training_step("torch.tensor_parallel.one", perceptron, of_one)(tensor_parallel_step)


# FSDP2


def of_fsdp(draw: Any, ranks: int) -> Any:
    model = dict(hidden=draw(st.integers(1, 7)))
    mesh = draw(al.strategies.meshes(ranks))
    options = dict(
        mesh=mesh,
        reshard=draw(st.booleans()),
        nested=draw(st.booleans()),
        accumulated=draw(st.booleans()),
    )
    return Shard(0), draw(st.integers(0, 6)), dict(model=model, **options)


@training_step("torch.fully_shard", perceptron, of_fsdp)
def fsdp(x: torch.Tensor, model: Any, mesh: Any, reshard: bool, nested: bool, accumulated: bool) -> Gradients:
    module = perceptron(**model)
    device_mesh = init_device_mesh("cpu", tuple(mesh), mesh_dim_names=("replicate", "shard")[-len(mesh) :])
    for part in [module[0], module[2]] * nested:
        fully_shard(part, mesh=device_mesh, reshard_after_forward=reshard)
    fully_shard(module, mesh=device_mesh, reshard_after_forward=reshard)
    if accumulated:  # rows one after the other, the first ones without communication
        half = (len(x) + 1) // 2
        module.set_requires_gradient_sync(False)
        back(module, x[:half])
        module.set_requires_gradient_sync(True)
        x = x[half:]
    return [whole(g) * dist.get_world_size() for g in back(module, x)]


# DDP


def of_ddp(draw: Any, ranks: int) -> Any:
    model = dict(hidden=draw(st.integers(1, 5)))
    passes = draw(st.integers(1, 3))
    options = dict(
        static_graph=passes == 1 and draw(st.booleans()),  # not with no_sync in the first pass: see below
        find_unused_parameters=draw(st.booleans()),
        gradient_as_bucket_view=draw(st.booleans()),
        bucket_cap_mb=draw(st.sampled_from([25, 1e-5])),
    )
    return Shard(0), draw(st.integers(0, 6)), dict(model=model, options=options, passes=passes)


def of_static_graph(draw: Any, ranks: int) -> Any:
    return Shard(0), ranks, dict(model=dict(hidden=1), options=dict(static_graph=True), passes=2)


def ddp(x: torch.Tensor, model: Any, options: Any, passes: int) -> Gradients:
    module = DistributedDataParallel(perceptron(**model), **options)
    parts = x.tensor_split(passes)
    for part in parts[:-1]:
        with module.no_sync():
            back(module, part)
    return [g * dist.get_world_size() for g in back(module, parts[-1])]


data_parallel = training_step("torch.DistributedDataParallel", perceptron, of_ddp)(ddp)
static_graph_without_sync = training_step(
    "torch.DistributedDataParallel.static_graph", perceptron, of_static_graph
)(ddp)


class Branches(nn.Module):
    """A module of which each branch is used where its rows are not empty."""

    def __init__(self, hidden: int):
        super().__init__()
        self.left, self.right = nn.Linear(IN, hidden), nn.Linear(IN, hidden)
        filled(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = x.sum(1) > 0
        parts = [
            branch(x[rows]) for branch, rows in ((self.left, chosen), (self.right, ~chosen)) if rows.any()
        ]
        return torch.cat(parts) if parts else self.left(x)


def of_branches(draw: Any, ranks: int) -> Any:
    return Shard(0), draw(st.integers(0, 6)), dict(model=dict(hidden=draw(st.integers(1, 3))))


@training_step("torch.DistributedDataParallel.unused", Branches, of_branches)
def ddp_with_unused(x: torch.Tensor, model: Any) -> Gradients:
    module = DistributedDataParallel(Branches(**model), find_unused_parameters=True)
    return [g * dist.get_world_size() for g in back(module, x)]


# Parts of the above, each in the case in which it is wrong


complex_adam = al.subject.parallel(
    lambda: nn.Linear(IN, 3),
    lambda module, mesh: fully_shard(module, mesh=mesh),
    data_parallel="mean",
    optimizer=partial(torch.optim.Adam, lr=0.1),
    steps=1,
    name="torch.Adam.uneven_complex",
    ranks=[2],
)(lambda draw, ranks: dict(inputs=(2, IN), dtype="complex128", frozen=0))

frozen_norm = al.subject.parallel(
    lambda: nn.Sequential(nn.LayerNorm(IN).requires_grad_(False), nn.Linear(IN, OUT)),
    lambda module, mesh: parallelize_module(module, mesh, {"0": SequenceParallel(use_local_output=True)}),
    name="torch.SequenceParallel.frozen",
    ranks=[1],
)(lambda draw, ranks: dict(inputs=(2, 1, IN), frozen=0))


def flattened(module: Any, mesh: Any) -> nn.Module:
    """A step goes forward, clears the gradients and goes backward, as `optimizer.zero_grad()` after the loss does."""
    wrap: Any = partial(
        FullyShardedDataParallel,
        process_group=mesh.get_group(),
        use_orig_params=True,
        device_id=torch.device("cpu"),
        sharding_strategy=ShardingStrategy.SHARD_GRAD_OP,
    )
    module[0] = wrap(module[0])
    result: nn.Module = wrap(module)
    return result


cleared_after_the_loss = al.subject.parallel(
    lambda: nn.Sequential(nn.Linear(IN, OUT)),
    flattened,
    data_parallel="mean",
    name="torch.FullyShardedDataParallel.zero_grad",
    ranks=[2],
)(lambda draw, ranks: dict(inputs=(2, IN), frozen=0))

penalty_on_a_column = al.subject.parallel(
    lambda: nn.Sequential(nn.Linear(IN, 2), nn.Tanh(), nn.Linear(2, OUT)),
    lambda module, mesh: parallelize_module(module, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()}),
    twice_differentiable=True,
    name="torch.ColwiseParallel.second_derivative",
    ranks=[1],
)(lambda draw, ranks: dict(inputs=(1, IN), frozen=0))

penalty_on_shards = al.subject.parallel(
    lambda: nn.Sequential(nn.Linear(IN, OUT), nn.Tanh()),
    lambda module, mesh: fully_shard(module, mesh=mesh),
    data_parallel="mean",
    twice_differentiable=True,
    name="torch.fully_shard.second_derivative",
    ranks=[1],
)(lambda draw, ranks: dict(inputs=(1, IN), frozen=0))

log_probabilities = al.subject.parallel(
    lambda: nn.Sequential(nn.Linear(IN, 2), nn.LogSoftmax(-1)),
    lambda module, mesh: parallelize_module(
        module, mesh, {"0": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)}
    ),
    context=loss_parallel,
    name="torch.loss_parallel.log_softmax",
    ranks=[2],
)(lambda draw, ranks: dict(inputs=(1, IN), frozen=0))


# Pipelines


def of_pipeline(draw: Any, ranks: int) -> dict[str, Any]:
    drawn = draw(al.strategies.pipelines(ranks))
    rows = drawn["microbatches"] * draw(st.integers(1, 2))
    return dict(inputs=(rows, IN), hidden=draw(st.integers(1, 3)), layers=drawn["cuts"][-1], pipeline=drawn)


def blocks(hidden: int, layers: int) -> nn.Module:
    sides = [IN, *[hidden] * (layers - 1), OUT]
    return nn.Sequential(*(nn.Sequential(nn.Linear(m, n), nn.Tanh()) for m, n in pairwise(sides)))


def pipeline(model: Any, schedule: str, cuts: Any, microbatches: int) -> Any:
    rank, size, count = dist.get_rank(), dist.get_world_size(), len(cuts) - 1
    mine = [rank, count - 1 - rank] if "V" in schedule else range(rank, count, size)
    parts = {k: model[cuts[k] : cuts[k + 1]] for k in mine}
    stages = [PipelineStage(part, k, count, torch.device("cpu")) for k, part in parts.items()]
    made = getattr(schedules, schedule)
    several = issubclass(made, schedules.PipelineScheduleMulti)
    return made(stages if several else stages[0], microbatches, loss_fn=mse_loss)


pipelines = al.subject.pipeline(blocks, pipeline, loss=mse_loss, name="torch.pipelining")(of_pipeline)


def case_of(schedule: str, cuts: tuple[int, ...], microbatches: int = 1, **case: Any) -> Any:
    """A strategy of one case, on a batch of two rows."""
    return lambda draw, ranks: dict(
        inputs=(2, IN), pipeline=dict(schedule=schedule, cuts=cuts, microbatches=microbatches), **case
    )


behind_a_frozen_stage = al.subject.pipeline(
    blocks, pipeline, loss=mse_loss, name="torch.pipelining.frozen_stage", ranks=[1]
)(case_of("ScheduleZBVZeroBubble", (0, 1, 2), hidden=1, layers=2, frozen=["0.0.weight", "0.0.bias"]))

running_statistics = al.subject.pipeline(
    lambda: nn.Sequential(nn.Linear(IN, OUT), nn.BatchNorm1d(OUT)),
    pipeline,
    loss=mse_loss,
    name="torch.pipelining.running_statistics",
    ranks=[2],
)(case_of("ScheduleGPipe", (0, 1, 2)))


def tied() -> nn.Module:
    module = nn.Sequential(nn.Linear(IN, IN), nn.Linear(IN, IN))
    module[1].weight = module[0].weight
    return module


tied_weight = al.subject.pipeline(
    tied, pipeline, loss=mse_loss, name="torch.pipelining.tied_weight", ranks=[1]
)(case_of("ScheduleZBVZeroBubble", (0, 1, 2), microbatches=2))


# Interpolation, which is a matter of each rank alone


def interpolated(x: torch.Tensor) -> torch.Tensor:
    return interpolate(x, scale_factor=1.2)


@al.subject.autograd(interpolated, process_group=True, name="torch.interpolate.nearest", ranks=[1])
def interpolations(draw: Any, ranks: int) -> dict[str, Any]:
    pair = al.Layout((1, 1, 2), al.Partition((1, 1, 1)))
    return dict(domain=al.Space(pair), codomain=al.Space(pair))
