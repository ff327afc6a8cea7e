"""Optimisers of parallel modules, which may keep their state in parts, elsewhere or under other names."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

import adjointlab as al
from adjointlab.checks.verdict import Status, Verdict
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget
from tests.torch_distributed.parallel_samples import (
    MOMENTUM,
    as_it_is,
    averaged,
    batches,
    model,
    replicated,
    tensor_parallel,
)
from tests.torch_distributed.sums import reduce_gradients


def test_what_goes_wrong_from_the_second_step_on_is_found(world: al.SimulatedWorld) -> None:
    def reduced_once(module: Any) -> None:
        if not hasattr(module, "is_reduced"):
            reduce_gradients(module)
        module.is_reduced = True

    subject = al.subject.parallel(
        model, as_it_is, data_parallel="sum", after_backward=reduced_once, optimizer=MOMENTUM, steps=2
    )(batches)
    verdict = investigate(world, subject, "training", Budget(4, ranks=2, seed=0, shrinking=0)).verdict
    assert verdict.headline == "the layer's parameters after the steps are not the sequential ones"


class SteppedByAnother(torch.optim.SGD):
    """Steps by an optimiser of its own, as sharded ones do, and on several ranks passes its learning rate on to that if it `passes_on`."""

    def __init__(self, parameters: Any, *, passes_on: bool) -> None:
        of_all = list(parameters)
        super().__init__(of_all, lr=0.5)
        self.inner = torch.optim.SGD(of_all, lr=0.5)
        self.passes_on = passes_on or dist.get_world_size() == 1

    def step(self, closure: Any = None) -> None:
        if self.passes_on:
            self.inner.param_groups[0]["lr"] = self.param_groups[0]["lr"]
        self.inner.step()


@pytest.mark.parametrize("passes_on", [True, False])
def test_learning_rates_change_between_steps_in_some_cases(world: al.SimulatedWorld, passes_on: bool) -> None:
    """As of fairscale#66."""
    optimizer = partial(SteppedByAnother, passes_on=passes_on)
    subject = al.subject.parallel(model, replicated, data_parallel="mean", optimizer=optimizer, steps=2)(
        lambda draw, ranks: {"inputs": (2 * ranks, 3)}
    )
    verdict = investigate(world, subject, "training", Budget(8, ranks=2, seed=0, shrinking=0)).verdict
    assert verdict.is_coherent is passes_on, str(verdict)
    assert passes_on or "the learning rates are halved after each" in dict(verdict.lines)["steps"]


class ReducedInBackward(torch.optim.SGD):
    """Keeps gradients that are reduced as soon as they are there; of several microbatches the last alone, unless it `adds_up`."""

    def __init__(self, parameters: Any, *, adds_up: bool) -> None:
        of_all = list(parameters)
        super().__init__(of_all, lr=0.5)
        self.kept: dict[Any, torch.Tensor] = {}
        self.adds_up = adds_up or dist.get_world_size() == 1
        for parameter in of_all:
            parameter.register_post_accumulate_grad_hook(self.take)

    def take(self, parameter: torch.Tensor) -> None:
        gradient, parameter.grad = parameter.grad, None
        assert gradient is not None
        dist.all_reduce(gradient)
        before = self.kept.get(parameter, 0.0) if self.adds_up else 0.0
        self.kept[parameter] = before + gradient / dist.get_world_size()

    def step(self, closure: Any = None) -> None:
        for parameter, gradient in self.kept.items():
            parameter.grad = gradient
        super().step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        self.kept.clear()


def of_two_microbatches(world: al.SimulatedWorld, optimizer: Any, accumulates: bool | None) -> Verdict:
    """The verdict on steps that in some cases add up two microbatches, unless `accumulates` is false."""
    subject = al.subject.parallel(
        model, as_it_is, data_parallel="mean", optimizer=optimizer, steps=2, accumulates=accumulates
    )(lambda draw, ranks: {"inputs": (2 * ranks, 3)})
    return investigate(world, subject, "training", Budget(8, ranks=2, seed=0, shrinking=0)).verdict


@pytest.mark.parametrize(
    ("adds_up", "accumulates", "is_right"), [(True, None, True), (False, None, False), (False, False, True)]
)
def test_a_step_adds_up_the_gradients_of_two_microbatches_in_some_cases(
    world: al.SimulatedWorld, adds_up: bool, accumulates: bool | None, is_right: bool
) -> None:
    """As of open-instruct#1498."""
    verdict = of_two_microbatches(world, partial(ReducedInBackward, adds_up=adds_up), accumulates)
    assert verdict.is_coherent is is_right, str(verdict)
    assert is_right or "of two microbatches" in dict(verdict.lines)["steps"]


class OnceInAStep(ReducedInBackward):
    """Refuses a second backward pass before a step, as Horovod's optimiser does by default."""

    def take(self, parameter: torch.Tensor) -> None:
        if parameter in self.kept:
            raise AssertionError("gradients were computed more than once before a step")
        super().take(parameter)


def test_an_exception_in_the_second_microbatch_of_a_step_says_that_there_were_two(
    world: al.SimulatedWorld,
) -> None:
    def check(accumulates: bool | None) -> str:
        return str(of_two_microbatches(world, partial(OnceInAStep, adds_up=True), accumulates))

    report = check(None)
    assert "raised in the second microbatch of a step" in report, report
    assert "accumulates=False" in report
    assert check(accumulates=False).startswith("coherent")


def sharded_optimizer(parameters: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # torch compiles with torch.jit what this module has, and warns of that itself
        from torch.distributed.optim import ZeroRedundancyOptimizer
    return ZeroRedundancyOptimizer(parameters, optimizer_class=torch.optim.Adam, lr=0.1)


def either_optimizer(parameters: Any) -> Any:
    return (sharded_optimizer if dist.get_world_size() > 1 else partial(torch.optim.Adam, lr=0.1))(parameters)


@pytest.mark.parametrize("optimizer", [sharded_optimizer, either_optimizer])
def test_the_sequential_module_is_alone_in_its_process_group(
    world: al.SimulatedWorld, optimizer: Callable[..., Any]
) -> None:
    subject = al.subject.parallel(model, replicated, data_parallel="mean", optimizer=optimizer, steps=2)(
        lambda draw, ranks: {"inputs": (2 * ranks, 3)}
    )
    verdict = investigate(world, subject, "training", Budget(4, ranks=2, seed=0, shrinking=0)).verdict
    assert verdict.is_coherent, str(verdict)


class OwnParameters(torch.optim.SGD):
    """Keeps a momentum of every second parameter on each of two ranks, as ZeRO does, and sends what it has stepped."""

    def __init__(self, parameters: Any) -> None:
        self.all = list(parameters)
        own = self.all[dist.get_rank() :: 2] if dist.get_world_size() > 1 else self.all
        super().__init__(own or [torch.zeros(0, requires_grad=True)], lr=0.1, momentum=0.5)

    def step(self, closure: Any = None) -> None:
        super().step(closure)
        if dist.get_world_size() > 1:
            for position, parameter in enumerate(self.all):
                dist.broadcast(parameter.detach(), position % 2)

    def zero_grad(self, set_to_none: bool = True) -> None:
        for parameter in self.all:
            parameter.grad = None


class ForgetsMomentum(OwnParameters):
    def step(self, closure: Any = None) -> None:
        super().step(closure)
        if dist.get_rank() == 1:
            self.state.clear()


@pytest.mark.parametrize(("optimizer", "is_right"), [(OwnParameters, True), (ForgetsMomentum, False)])
def test_ranks_may_keep_state_of_other_parameters(
    world: al.SimulatedWorld, optimizer: Callable[..., Any], is_right: bool
) -> None:
    subject = al.subject.parallel(model, replicated, data_parallel="mean", optimizer=optimizer, steps=3)(
        lambda draw, ranks: {"inputs": (2 * ranks, 3)}
    )
    verdict = investigate(world, subject, "training", Budget(4, ranks=2, seed=0, shrinking=0)).verdict
    assert verdict.is_coherent is is_right, str(verdict)


class OfMasterWeights:
    """Steps copies of the parameters by an optimiser of their own, and is none itself: it has no state."""

    def __init__(self, parameters: Any, *, rates: Sequence[float]) -> None:
        self.parameters = list(parameters)
        self.masters = [parameter.detach().clone() for parameter in self.parameters]
        self.inner = torch.optim.SGD(self.masters, lr=rates[dist.get_rank()], momentum=0.5)

    def step(self) -> None:
        for master, parameter in zip(self.masters, self.parameters, strict=True):
            master.grad = parameter.grad
        self.inner.step()
        for master, parameter in zip(self.masters, self.parameters, strict=True):
            parameter.detach().copy_(master)

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None


@pytest.mark.parametrize(("rates", "is_right"), [((0.5, 0.5), True), ((0.5, 0.25), False)])
def test_what_wraps_an_optimiser_needs_no_state(
    world: al.SimulatedWorld, rates: Sequence[float], is_right: bool
) -> None:
    optimizer = partial(OfMasterWeights, rates=rates)
    subject = al.subject.parallel(model, replicated, data_parallel="mean", optimizer=optimizer, steps=2)(
        lambda draw, ranks: {"inputs": (2 * ranks, 3)}
    )
    verdict = investigate(world, subject, "training", Budget(4, ranks=2, seed=0, shrinking=0)).verdict
    assert verdict.is_coherent or "parameters after the steps" in str(verdict), str(verdict)
    assert verdict.is_coherent is is_right, str(verdict)


class Averaging(torch.optim.SGD):
    """Keeps an average of each weight, a plain tensor: of this rank's part, or of the whole on every rank."""

    def __init__(self, parameters: Any, *, is_whole: bool, decays: Sequence[float]) -> None:
        super().__init__(parameters, lr=0.1)
        self.is_whole, self.decay = is_whole, decays[dist.get_rank()]

    def step(self, closure: Any = None) -> None:
        super().step(closure)
        for parameter in self.param_groups[0]["params"]:
            if parameter.ndim < 2:  # a bias, which may be a copy
                continue
            held: Any = parameter.detach()
            if isinstance(held, DTensor):
                held = held.full_tensor() if self.is_whole else held.to_local()
            average = self.state[parameter].setdefault("average", torch.zeros_like(held))
            average.lerp_(held, self.decay)


@pytest.mark.parametrize("is_whole", [False, True])
@pytest.mark.parametrize(("decays", "is_right"), [((0.5, 0.5), True), ((0.5, 0.25), False)])
def test_state_of_a_sharded_parameter_may_be_a_plain_tensor_of_the_part_or_of_the_whole(
    world: al.SimulatedWorld, is_whole: bool, decays: Sequence[float], is_right: bool
) -> None:
    optimizer = partial(Averaging, is_whole=is_whole, decays=decays)
    subject = al.subject.parallel(model, tensor_parallel, optimizer=optimizer, steps=1, ranks=(2,))(
        lambda draw, ranks: {"inputs": (2, 3)}
    )
    verdict = investigate(world, subject, "training", Budget(4, ranks=2, seed=0, shrinking=0)).verdict
    assert verdict.is_coherent is is_right, str(verdict)


class NoSteps(torch.optim.SGD):
    """Takes no step where there are several ranks."""

    def step(self, closure: Any = None) -> None:
        if dist.get_world_size() == 1:
            super().step(closure)


@pytest.mark.mpi_skip
@pytest.mark.parametrize(("lr", "status"), [(0.0001, Status.UNJUDGED), (1.0, Status.INCOHERENT)])
def test_steps_that_a_declared_rounding_would_hide_are_not_judged(lr: float, status: Status) -> None:
    subject = al.subject.parallel(
        model, replicated, data_parallel="mean", optimizer=partial(NoSteps, lr=lr), steps=2
    )(lambda draw, ranks: dict(inputs=(4, 3), dtype="float32", rounding=2**-6))
    result = investigate(al.SimulatedWorld(2), subject, "training", Budget(10, seed=1))
    assert result.status is status
    told = "change no parameter by more than the declared rounding"
    assert (told in str(result.verdict)) is (status is Status.UNJUDGED)


class OwnElements(torch.optim.Optimizer):
    """Keeps a momentum of its own elements of each flattened parameter, as ZeRO does, and gathers what each rank has stepped."""

    def __init__(self, parameters: Any, *, steps_of: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__(parameters, {})
        self.steps_of = steps_of

    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            ranks, rank = dist.get_world_size(), dist.get_rank()
            padding = (0, -parameter.numel() % ranks)
            values, gradient = (
                nn.functional.pad(each.flatten(), padding).chunk(ranks)[rank]
                for each in (parameter.detach(), parameter.grad)
            )
            momentum = self.state[parameter].setdefault("momentum", torch.zeros_like(values))
            momentum.mul_(0.5).add_(gradient)
            parts = [torch.empty_like(values) for _ in range(ranks)]
            dist.all_gather(parts, values - self.steps_of(momentum))
            parameter.detach().copy_(torch.cat(parts)[: parameter.numel()].view_as(parameter))


@pytest.mark.parametrize(("rate", "is_right"), [(0.1, True), (0.2, False)])
def test_state_of_flat_shards_is_not_compared_and_their_steps_are(
    world: al.SimulatedWorld, rate: float, is_right: bool
) -> None:
    def steps_of(momentum: torch.Tensor) -> torch.Tensor:
        return momentum * (rate if dist.get_rank() else 0.1)

    optimizer = partial(OwnElements, steps_of=steps_of)
    given: Any = dict(data_parallel="mean", after_backward=averaged, optimizer=optimizer, steps=2)
    subject = al.subject.parallel(model, as_it_is, **given)(lambda draw, ranks: {"inputs": (2 * ranks, 3)})
    verdict = investigate(world, subject, "training", Budget(4, ranks=2, seed=0, shrinking=0)).verdict
    assert verdict.is_coherent is is_right, str(verdict)
