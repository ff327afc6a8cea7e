"""Slips around schedules of torch.distributed.pipelining: in how stages are made, in losses, and in what follows the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from hypothesis import strategies as st
from torch import nn
from torch.distributed.pipelining import PipelineStage, schedules
from torch.nn.functional import mse_loss

import adjointlab as al
from adjointlab.engine.subject import Subject
from tests.planted.bug import PlantedBug


def model(layers: int, bound: bool = False) -> nn.Sequential:
    """Layers between two linear ones, which share a weight if they are bound."""
    module = nn.Sequential(
        nn.Linear(2, 2),
        *(nn.Sequential(nn.Linear(2, 2), nn.Tanh()) for _ in range(layers - 2)),
        nn.Linear(2, 2),
    )
    if bound:
        first: Any = module[0]
        last: Any = module[-1]
        last.weight = first.weight
    return module


def made(schedule: str, stages: list[PipelineStage], microbatches: int, loss: Any, **options: Any) -> object:
    cls: Any = getattr(schedules, schedule)
    several = issubclass(cls, schedules.PipelineScheduleMulti)
    return cls(stages if several else stages[0], microbatches, loss_fn=loss, **options)


def parts(
    module: Any, cuts: Any, schedule: str, place: Callable[[int, int], int] = lambda stage, count: stage
) -> list[PipelineStage]:
    """The stages of this rank; stage k is made of the layers that belong in place ``place(k, count)``."""
    rank, size, count = dist.get_rank(), dist.get_world_size(), len(cuts) - 1
    numbers = [rank, count - 1 - rank] if "V" in schedule else range(rank, count, size)
    at = {stage: place(stage, count) for stage in numbers}
    return [
        PipelineStage(module[cuts[k] : cuts[k + 1]], stage, count, torch.device("cpu"))
        for stage, k in at.items()
    ]


def right(module: Any, cuts: Any, schedule: str, microbatches: int) -> object:
    return made(schedule, parts(module, cuts, schedule), microbatches, mse_loss)


def not_divided(module: Any, cuts: Any, schedule: str, microbatches: int) -> object:
    return made(schedule, parts(module, cuts, schedule), microbatches, mse_loss, scale_grads=False)


def adding_up(module: Any, cuts: Any, schedule: str, microbatches: int) -> Any:
    """A schedule whose steps add up their gradients: losses are divided instead."""

    def shared_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return mse_loss(output, target) / microbatches

    return made(schedule, parts(module, cuts, schedule), microbatches, shared_loss, scale_grads=False)


def changing_gradients_before(change: Callable[[torch.Tensor], None]) -> Callable[..., object]:
    """Schedules each step of which changes the gradients of the steps before."""

    def pipeline(module: Any, **drawn: Any) -> object:
        schedule = adding_up(module, **drawn)
        step = schedule.step

        def changed_step(*args: Any, **options: Any) -> object:
            for parameter in module.parameters():
                if parameter.grad is not None:
                    change(parameter.grad)
            return step(*args, **options)

        schedule.step = changed_step
        return schedule

    return pipeline


def in_wrong_order(module: Any, cuts: Any, schedule: str, microbatches: int) -> object:
    def swapped(stage: int, count: int) -> int:
        return stage ^ 1 if stage | 1 < count else stage

    return made(schedule, parts(module, cuts, schedule, swapped), microbatches, mse_loss)


class LeavesOneOut:
    """A loss that is 0 for the last microbatch of a step."""

    def __init__(self, microbatches: int) -> None:
        self.microbatches, self.calls = microbatches, 0

    def __call__(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        loss = mse_loss(output, target)
        return loss * 0 if self.calls % self.microbatches == 0 else loss


def without_one_loss(module: Any, cuts: Any, schedule: str, microbatches: int) -> object:
    return made(schedule, parts(module, cuts, schedule), microbatches, LeavesOneOut(microbatches))


def of_the_first_rows(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return mse_loss(output[:1], target[:1])


def with_fewer_rows(module: Any, cuts: Any, schedule: str, microbatches: int) -> object:
    return made(schedule, parts(module, cuts, schedule), microbatches, of_the_first_rows)


class Scaled(nn.Module):
    """A stage that sends twice its gradient back."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> Any:
        return self.inner(x * 2 - x.detach())


def with_a_scaled_gradient(module: Any, cuts: Any, schedule: str, microbatches: int) -> object:
    stages = parts(module, cuts, schedule)
    for stage in stages:
        if stage.is_last and not stage.is_first:
            stage.submod = Scaled(stage.submod)
    return made(schedule, stages, microbatches, mse_loss)


def sum_bound(module: Any) -> None:
    """Add up the gradients of the weight that the first and the last stage share."""
    size, rank = dist.get_world_size(), dist.get_rank()
    if size == 1:
        return
    group: Any = dist.new_group([0, size - 1])
    if rank in (0, size - 1):
        dist.all_reduce(module[0].weight.grad, group=group)


def checked(
    pipeline: Any,
    *,
    drawn_from: tuple[str, ...] = ("ScheduleGPipe", "Schedule1F1B", "ScheduleInterleaved1F1B"),
    bound: bool = False,
    **options: Any,
) -> Subject:
    @al.subject.pipeline(model, pipeline, loss=mse_loss, **options)
    def cases(draw: Any, ranks: int) -> dict[str, Any]:
        drawn = draw(al.strategies.pipelines(ranks, schedules=drawn_from))
        layers = max(2, drawn["cuts"][-1])
        drawn = {**drawn, "cuts": (*drawn["cuts"][:-1], layers)}
        rows = drawn["microbatches"] * draw(st.integers(1, 2))
        return dict(inputs=(rows, 2), layers=layers, bound=bound, pipeline=drawn)

    return cases


SINGLE = ("ScheduleGPipe", "Schedule1F1B")

RIGHT = {
    "pipeline": (checked(right), "gradients"),
    "pipeline whose steps add up": (checked(adding_up, reduction="sum"), "gradients"),
    "pipeline of bound layers": (
        checked(right, drawn_from=SINGLE, bound=True, after_backward=sum_bound),
        "gradients",
    ),
}

WRONG = (
    PlantedBug("gradient not divided by the number of microbatches", checked(not_divided), "gradients", 1),
    PlantedBug(
        "gradients of earlier steps halved",
        checked(changing_gradients_before(lambda gradient: gradient.mul_(0.5)), reduction="sum"),
        "gradients",
        1,
    ),
    PlantedBug(
        "gradients of earlier steps dropped",
        checked(changing_gradients_before(torch.Tensor.zero_), reduction="sum"),
        "gradients",
        1,
    ),
    PlantedBug("stages in the wrong order", checked(in_wrong_order), "sequential"),
    PlantedBug("loss of one microbatch left out", checked(without_one_loss), "sequential", 1),
    PlantedBug("loss of some rows", checked(with_fewer_rows), "sequential", 1),
    PlantedBug("gradient between stages twice too large", checked(with_a_scaled_gradient), "gradients"),
    PlantedBug(
        "gradient of a bound weight not added up", checked(right, drawn_from=SINGLE, bound=True), "gradients"
    ),
)
