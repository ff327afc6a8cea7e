"""A schedule of torch.distributed.pipelining is compared with the module of whose parts its stages are made."""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import strategies as st
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe, schedules
from torch.nn.functional import cross_entropy, mse_loss

import adjointlab as al
from adjointlab.core.strategies import SCHEDULES
from adjointlab.engine.discovery import find_subject
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget

EXAMPLE = find_subject(f"{Path(__file__).parents[2]}/examples/pipeline.py:pipelines")
CPU = torch.device("cpu")


def model(layers: int = 3, biased: bool = True) -> nn.Sequential:
    return nn.Sequential(*(nn.Sequential(nn.Linear(2, 2, bias=biased), nn.Tanh()) for _ in range(layers)))


def sum_of_squares(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output - target).square().sum()


def stage_of(module: nn.Sequential, cuts: Any) -> PipelineStage:
    rank = dist.get_rank()
    return PipelineStage(module[slice(*cuts[rank : rank + 2])], rank, len(cuts) - 1, CPU)


def gpipe(
    module: Any, cuts: Any, microbatches: int, loss: Any = mse_loss, scale_grads: bool = True, **_: Any
) -> ScheduleGPipe:
    return ScheduleGPipe(stage_of(module, cuts), microbatches, loss_fn=loss, scale_grads=scale_grads)


def cases(draw: Any, ranks: int, schedules: Any = ("ScheduleGPipe",)) -> dict[str, Any]:
    drawn = draw(al.strategies.pipelines(ranks, schedules=schedules))
    rows = drawn["microbatches"] * draw(st.integers(1, 2))
    return dict(inputs=(rows, 2), layers=drawn["cuts"][-1], pipeline=drawn)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_steps_of_torchs_schedules_are_the_sequential_step(world: al.SimulatedWorld, schedule: str) -> None:
    pipeline = EXAMPLE.target
    drawn = partial(cases, schedules=(schedule,))
    subject = al.subject.pipeline(model, pipeline, loss=mse_loss)(lambda draw, ranks: drawn(draw, ranks))
    for check in ("sequential", "gradients"):
        assert investigate(world, subject, check, Budget(3, ranks=3, seed=1)).verdict.is_coherent


class Tied(nn.Module):
    """A weight at the beginning and at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = (nn.Linear(2, 2, bias=False) for _ in range(3))
        self.last.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.last(self.middle(self.first(x)).tanh())
        return y


class FirstStage(nn.Module):
    def __init__(self, first: nn.Module) -> None:
        super().__init__()
        self.first = first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.first(x)
        return y


class LastStage(nn.Module):
    """With a copy of the weight, whose gradients are added up where the copies are."""

    def __init__(self, middle: nn.Module, last: nn.Module) -> None:
        super().__init__()
        self.middle, self.last = middle, copy.deepcopy(last)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.last(self.middle(x).tanh())
        return y


def in_two_stages(module: Any) -> ScheduleGPipe:
    rank = dist.get_rank()
    stage = LastStage(module.middle, module.last) if rank else FirstStage(module.first)
    module.tied = [stage.last if rank else stage.first]  # in a list, in which it is no part of the module
    return ScheduleGPipe(PipelineStage(stage, rank, 2, CPU), 2, loss_fn=mse_loss)


def add_up(module: Any) -> None:
    (part,) = module.tied
    if part.weight.grad is not None:
        dist.all_reduce(part.weight.grad)


def test_stages_may_have_copies_of_a_tied_weight_under_each_of_its_names() -> None:
    options: Any = dict(loss=mse_loss, ranks=2, cases=3, checks=["gradients"])
    al.check_pipeline(Tied, in_two_stages, torch.zeros(4, 2), after_backward=add_up, **options)
    with pytest.raises(AssertionError, match="parameter gradient is not the sequential one"):
        al.check_pipeline(Tied, in_two_stages, torch.zeros(4, 2), **options)


def test_gradients_by_the_input_are_compared_where_it_is_asked(world: al.SimulatedWorld) -> None:
    def by_input(draw: Any, ranks: int) -> dict[str, Any]:
        return dict(inputs=(2, 2), input_gradient=True, pipeline=dict(cuts=(0, 1, 3), microbatches=2))

    check = partial(al.check_pipeline, model, inputs=by_input, ranks=2, cases=2, world=world)
    summed = partial(gpipe, loss=sum_of_squares, scale_grads=False)
    assert {"sequential", "gradients", "jacobian"} <= set(check(summed, loss=sum_of_squares, reduction="sum"))
    # torch divides the gradients of parameters by the number of microbatches, and not that of the input.
    divided = al.subject.pipeline(model, gpipe, loss=mse_loss, ranks=[2])(by_input)
    found = investigate(world, divided, "gradients", Budget(2, seed=1, shrinking=0)).verdict
    assert found.headline == "the layer's input gradient is not the sequential one"


def test_one_call_checks_a_pipeline_of_fixed_stages(world: al.SimulatedWorld) -> None:
    def two_stages(module: Any) -> ScheduleGPipe:
        return gpipe(module, (0, 1, 3), 2, cross_entropy)

    verdicts = al.check_pipeline(
        model(),
        two_stages,
        torch.zeros(4, 2),
        torch.tensor([0, 1, 1, 0]),
        loss=cross_entropy,
        optimizer=partial(torch.optim.SGD, lr=0.1, momentum=0.9),
        steps=2,
        ranks=2,
        cases=2,
        world=world,
    )
    assert "training" in verdicts


class AddAuxiliaryLoss(torch.autograd.Function):
    """Adds the gradient of a loss, as libraries do for the balance of experts, without asking for the cotangent of the main one."""

    @staticmethod
    def forward(ctx: Any, y: torch.Tensor, auxiliary: torch.Tensor) -> torch.Tensor:
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0], torch.ones(())


class Balanced(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.scale = nn.Linear(2, 2), 0.5

    def forward(self, x: torch.Tensor) -> Any:
        y = self.linear(x)
        return AddAuxiliaryLoss.apply(y, self.scale * y.square().sum())  # type: ignore[no-untyped-call]


def test_a_loss_that_a_stage_adds_in_its_backward_pass_is_that_of_the_sequential_module(
    world: al.SimulatedWorld,
) -> None:
    def check(microbatches_in_scale: int) -> None:
        def balanced(module: Any) -> ScheduleGPipe:
            module[0].scale *= microbatches_in_scale
            return gpipe(module, (0, 1, 2), 2)

        al.check_pipeline(
            lambda: nn.Sequential(Balanced(), nn.Linear(2, 2)),
            balanced,
            torch.zeros(4, 2),
            loss=mse_loss,
            ranks=2,
            cases=5,
            world=world,
        )

    check(2)  # by which torch divides the gradients
    with pytest.raises(AssertionError, match="the layer's parameter gradient is not the sequential one"):
        check(1)


def test_buffers_are_compared_where_their_stages_are(world: al.SimulatedWorld) -> None:
    def evaluated(draw: Any, ranks: int) -> dict[str, Any]:
        # In training, the schedule's first step spoils running statistics (docs/findings.md).
        return dict(inputs=(4, 2), training=False)

    def normalized() -> nn.Sequential:
        return nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 2))

    def overwrite(norm: Any, *_: object) -> None:
        norm.num_batches_tracked += 1

    def overwritten(module: Any) -> ScheduleGPipe:
        module[1].register_forward_hook(overwrite)
        return gpipe(module, (0, 1, 3), 2)

    check = partial(al.check_pipeline, loss=mse_loss, ranks=2, cases=1, world=world)
    check(normalized, partial(gpipe, cuts=(0, 1, 3), microbatches=2), evaluated)
    with pytest.raises(AssertionError, match="buffers are not the sequential ones"):
        check(normalized, overwritten, evaluated)


class Blocks(nn.Module):
    """Blocks in a list, of which each has a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(2, width), nn.BatchNorm1d(width), nn.Linear(width, 2))
            for width in (2, 3, 2, 3)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


@pytest.mark.parametrize("cut", [2, 1])
def test_stages_may_be_copies_that_count_their_layers_from_0(world: al.SimulatedWorld, cut: int) -> None:
    factor = 1

    def evaluated(draw: Any, ranks: int) -> dict[str, Any]:
        return dict(inputs=(4, 2), training=False)

    def copied(module: Any) -> ScheduleGPipe:
        stage, rank = copy.deepcopy(module), dist.get_rank()
        stage.blocks = stage.blocks[cut:] if rank else stage.blocks[:cut]
        stage.blocks[0][2].weight.register_hook(lambda gradient: gradient * (factor if rank else 1))
        return gpipe_of(PipelineStage(stage, rank, 2, CPU))

    check = partial(al.check_pipeline, Blocks, copied, evaluated, loss=mse_loss, ranks=2, cases=2)
    check(world=world)
    factor = 2
    with pytest.raises(AssertionError, match=rf"parameter gradient +blocks\.{cut}\.2\.weight"):
        check(world=world)


# Bad input: the same sentence on every rank, and never a hang


def without_loss(module: Any) -> object:
    return ScheduleGPipe(stage_of(module, (0, 1, 3)), 2, loss_fn=mse_loss if dist.get_rank() else None)


def on_the_wrong_rank(module: Any) -> object:
    rank = dist.get_rank()
    return gpipe_of(PipelineStage(module[rank : rank + 1], 1 - rank, 2, CPU))


def gpipe_of(stage: PipelineStage) -> ScheduleGPipe:
    return ScheduleGPipe(stage, 2, loss_fn=mse_loss)


def with_copied_stages(module: Any) -> object:
    rank = dist.get_rank()
    return gpipe_of(PipelineStage(nn.ModuleDict({"copy": nn.Linear(2, 2)}), rank, 2, CPU))


@pytest.mark.parametrize(
    ("pipeline", "message"),
    [
        (lambda module: None, "what <lambda> returned: None is not a schedule"),
        (lambda module: module if dist.get_rank() else gpipe(module, (0, 1, 3), 2), "is not a schedule of"),
        (lambda module: gpipe(module, (0, 1, 2, 3), 2), "no rank has stage 2 of 3: ScheduleGPipe has"),
        (on_the_wrong_rank, "rank 0 has stage 1, and ScheduleGPipe looks for it on rank 1"),
        (
            lambda module: gpipe(module, (0, 1, 3), 1 + dist.get_rank()),
            "rank 1 a ScheduleGPipe of 2 microbatches",
        ),
        (without_loss, "the schedule has no loss_fn, so that it has no backward pass (rank 0)"),
        (lambda module: gpipe(module, (0, 1, 3), 9), "the batch has 4 rows, too few for 9 microbatches"),
        (lambda module: gpipe(module, (0, 1, 2), 2), "no stage has the parameter 2.0.weight"),
        (with_copied_stages, "a stage has a parameter copy.weight, and the sequential module none"),
        (lambda module: schedules.Schedule1F1B(stage_of(module, (0, 1, 3)), 1, mse_loss), "microbatches (1)"),
    ],
)
def test_what_fits_no_pipeline_is_said(world: al.SimulatedWorld, pipeline: Any, message: str) -> None:
    with pytest.raises(AssertionError) as failure:
        al.check_pipeline(model, pipeline, torch.zeros(4, 2), loss=mse_loss, ranks=2, cases=1, world=world)
    assert message in str(failure.value)


def test_fixed_stages_on_another_number_of_ranks_are_told_where_to_say_that(world: al.SimulatedWorld) -> None:
    def two_stages(module: Any) -> ScheduleGPipe:
        return gpipe(module, (0, 1, 3), 2)

    with pytest.raises(
        AssertionError, match=r"no rank has stage 1 of 2: .* `ranks` says on how many they are"
    ):
        al.check_pipeline(model, two_stages, torch.zeros(4, 2), loss=mse_loss, cases=1, world=world)


def test_a_loss_that_is_no_scalar_is_said(world: al.SimulatedWorld) -> None:
    with pytest.raises(AssertionError, match="the loss of a batch has shape"):
        al.check_pipeline(
            model,
            lambda module: gpipe(module, (0, 1, 3), 2),
            torch.zeros(4, 2),
            loss=partial(mse_loss, reduction="none"),
            ranks=2,
            cases=1,
            world=world,
        )
