"""The layer that is made of a pipeline: where each tensor lies, what is frozen, and what follows from the declaration."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

import adjointlab as al
from adjointlab.core.layer import NO_HOOKS, Layer
from adjointlab.torch_distributed.pipelines import PipelineStep, SequentialStep, held_by

pytestmark = pytest.mark.mpi_skip


class First(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.shift = nn.Parameter(torch.ones(2, 3)), nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return x @ self.weight * scale + self.shift


class Last(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.ones(3))
        self.register_buffer("count", torch.zeros(2, dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x + self.bias, x.sum(1).long()


class Model(nn.Module):
    """Two inputs, and two outputs of different types."""

    def __init__(self, scale: int = 1) -> None:
        super().__init__()
        self.scale, self.first, self.last = scale, First(), Last()

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y, sums = self.last(self.first(x, scale))
        return y, sums


def loss_of(outputs: Any, target: torch.Tensor) -> torch.Tensor:
    return (outputs[0] - target).square().mean().double()


def stages(module: Any, microbatches: int = 2) -> ScheduleGPipe:
    rank = dist.get_rank()
    part = (module.first, module.last)[rank]
    return ScheduleGPipe(PipelineStage(part, rank, 2, torch.device("cpu")), microbatches, loss_fn=loss_of)


def on_average(*tensors: Any) -> Any:
    *inputs, target = tensors
    assert all(tensor.dtype.is_floating_point for tensor in tensors)
    return (*inputs, target)


def made(parameters: dict[str, Any], world: Any, **options: Any) -> list[Layer]:
    """The layer of each rank."""
    subject = al.subject.pipeline(Model, stages, loss=loss_of, **options)(lambda draw, ranks: {})

    def make(context: Any, payload: None) -> Any:
        with subject.surroundings(context.comm):
            return subject.make(context.comm, parameters)

    run = world.run(make, None, 2)
    assert run.completed, run
    return list(run.values)


def test_inputs_lie_on_the_first_stage_and_outputs_on_the_last_one(world: al.SimulatedWorld) -> None:
    for layer in made({"inputs": [(4, 2), (4, 1)]}, world):
        space = partial(held_by, [0])
        at_last = partial(held_by, [1])
        assert layer.domain == al.Space(
            space((4, 2), "float64", "x"),
            space((4, 1), "float64", "x1"),
            at_last((4, 3), "float64", "target"),
        )
        assert layer.codomain == al.Space(
            held_by(range(2), (1,), "float64", "loss"),
            at_last((4, 3), "float64", "y"),
            at_last((4,), "int64", "y1"),
        )
        assert layer.parameters == al.Space(
            space((2, 3), "float64", "first.weight"),
            space((3,), "float64", "first.shift"),
            at_last((3,), "float64", "last.bias"),
        )
        assert layer.buffers == al.Space(at_last((2,), "int64", "last.count"))
        assert layer.frozen == {"x", "x1", "target"}
        assert (layer.uniform_requires_grad, layer.accumulates) == (True, True)
        assert (layer.optimizer, layer.steps, layer.averaged) == (None, 0, 1)
        assert isinstance(layer.module, PipelineStep)
        assert layer.module.training
        assert layer.module._step.by_inputs is False
        assert layer.module._results == (torch.float64, torch.float64, torch.int64)


@pytest.mark.parametrize("training", [True, False])
def test_a_case_and_a_declaration_say_what_is_not_the_default(
    world: al.SimulatedWorld, training: bool
) -> None:
    parameters = {
        "inputs": [(6, 2), (6, 1)],
        "target": [6, 1],
        "dtype": "float32",
        "input_gradient": 1,
        "frozen": ["first.weight"],
        "training": training,
        "scale": 3,
        "pipeline": {"microbatches": 3},
    }
    sgd = partial(torch.optim.SGD, lr=0.1)
    synchronize: Any = lambda module: None  # noqa: E731
    options = {"reduction": "sum", "prepare": on_average, "optimizer": sgd, "steps": 2}
    layers = made(parameters, world, after_backward=synchronize, **options)
    for rank, layer in enumerate(layers):
        assert layer.domain.tensors[2] == held_by([1], (6, 1), "float32", "target")
        assert [tensor.dtype for tensor in layer.codomain.tensors] == ["float64", "float32", "int64"]
        assert layer.frozen == {"first.weight", "target"}
        assert (layer.accumulates, layer.optimizer, layer.steps) == (False, sgd, 2)
        assert layer.prepare is on_average
        module: Any = layer.module
        assert module.training == training
        assert module._stages.stages[0].submod.training == training
        assert module._stages.schedule._n_microbatches == 3
        assert (module._step.loss, module._step.reduction) == (loss_of, "sum")
        assert module._step.by_inputs is True
        held = module._stages.parameters
        assert list(held) == [["first.weight", "first.shift"], ["last.bias"]][rank]
        for name, parameter in held.items():
            assert parameter.requires_grad == (name != "first.weight")
            assert module.get_parameter(name).dtype == torch.float32


def test_the_twin_is_one_step_of_the_sequential_module() -> None:
    subject = al.subject.pipeline(Model, stages, loss=loss_of)(lambda draw, ranks: {})
    parameters = {
        "inputs": [(4, 2), (4, 1)],
        "dtype": "float32",
        "training": False,
        "scale": 2,
        "pipeline": {},
    }
    assert subject.reference is not None
    twin = subject.reference(**parameters, input_gradient=True)
    assert isinstance(twin, SequentialStep)
    assert (twin._step.reduction, twin._step.by_inputs) == ("mean", True)
    module: Any = twin.made
    assert (module.scale, module.training, module.first.weight.dtype) == (2, False, torch.float32)


def test_what_a_pipeline_function_returns_on_one_rank_is_told_on_all(world: al.SimulatedWorld) -> None:
    def half(module: Any) -> Any:
        return stages(module) if dist.get_rank() == 0 else 3

    for pipeline, name in ((half, "half"), (partial(half), "pipeline")):
        subject = al.subject.pipeline(Model, pipeline, loss=loss_of, name="P")(lambda draw, ranks: {})

        def make(context: Any, payload: None, subject: Any = subject) -> Any:
            with subject.surroundings(context.comm):
                return subject.make(context.comm, {"inputs": [(4, 2), (4, 1)]})

        told = f"what {name} returned: 3 is not a schedule of torch.distributed.pipelining (rank 1)"
        outcomes: Any = world.run(make, None, 2).outcomes
        assert [(each.kind, each.message) for each in outcomes] == [("ValueError", told)] * 2


@pytest.mark.parametrize(
    ("rows", "fault"),
    [
        (2, ""),
        (4, ""),
        (1, "the batch has 1 rows, too few for 2 microbatches"),
        (3, "the batch has 3 rows, which 2 microbatches cannot share evenly: "),
    ],
)
def test_the_rows_of_the_first_input_are_shared_evenly_by_the_microbatches(
    world: al.SimulatedWorld, rows: int, fault: str
) -> None:
    subject = al.subject.pipeline(Model, stages, loss=loss_of)(lambda draw, ranks: {})

    def make(context: Any, payload: None) -> Any:
        with subject.surroundings(context.comm):
            return subject.make(context.comm, {"inputs": [(rows, 2), (1, 1)]})

    run = world.run(make, None, 2)
    assert run.completed == (not fault)
    if fault:
        outcomes: Any = run.outcomes
        assert outcomes[0].message.startswith(fault)


@pytest.mark.parametrize(("microbatches", "fits"), [(1, True), (2, False)])
def test_an_input_without_dimensions_is_one_row(
    world: al.SimulatedWorld, microbatches: int, fits: bool
) -> None:
    def scalars(module: Any) -> Any:
        rank = dist.get_rank()
        stage = PipelineStage(module[rank : rank + 1], rank, 2, torch.device("cpu"))
        return ScheduleGPipe(stage, microbatches, loss_fn=difference)

    def difference(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return output - target

    subject = al.subject.pipeline(
        lambda: nn.Sequential(nn.Identity(), nn.Identity()), scalars, loss=difference, name="Scalars"
    )(lambda draw, ranks: {})

    def make(context: Any, payload: None) -> Any:
        with subject.surroundings(context.comm):
            return subject.make(context.comm, {"inputs": [()]})

    run = world.run(make, None, 2)
    assert run.completed == fits
    assert fits or "the batch has 1 rows, too few for 2 microbatches" in str(run)


def test_the_random_stream_of_the_caller_is_left_alone(world: al.SimulatedWorld) -> None:
    from adjointlab.engine.pipeline import PipelineRecipe

    def noisy() -> nn.Module:
        return nn.Linear(2, 2)

    recipe = PipelineRecipe(noisy, stages, lambda y, target: (y - target).sum())
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    assert recipe._target({"inputs": (3, 2)}) == (3, 2)
    loss, output = recipe._results(recipe.twin(inputs=(3, 2)), {"inputs": (3, 2)}, (3, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert (loss.shape, output.shape, loss.dtype) == ((1,), (3, 2), torch.float64)
    assert not loss.requires_grad
    assert recipe._target({"inputs": (3, 2), "target": [3]}) == (3,)
    seen: list[Any] = []

    def prepare(*tensors: Any) -> Any:
        seen.append([(tuple(tensor.shape), tensor.dtype) for tensor in tensors])
        return tensors

    # A target whose shape is not known yet has no elements.
    prepared = PipelineRecipe(noisy, stages, loss_of, prepare=prepare)
    assert prepared._target({"inputs": (3, 2)}) == (3, 2)
    assert seen == [[((3, 2), torch.float64), ((0,), torch.float32)]]
    assert PipelineRecipe(noisy, stages, loss_of) == PipelineRecipe(
        noisy, stages, loss_of, "mean", recipe.prepare, None, 0, NO_HOOKS
    )
