"""A module that is made parallel is compared with the module that it is made from, with no space declared by hand."""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import strategies as st
from torch import nn
from torch.distributed._composable.replicate import replicate
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.prune import l1_unstructured

import adjointlab as al
from adjointlab.checks.context import InputSetting
from adjointlab.checks.verdict import Status, coherent
from adjointlab.core.declaration import SubjectError
from adjointlab.engine.case import Case
from adjointlab.engine.meshes import as_mesh
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget, SearchResult
from adjointlab.engine.sequential_module import shapes_of
from adjointlab.session import replay
from tests.planted.parallel_modules import CopiedIn, SummedUp
from tests.torch_distributed.sums import reduce_gradients

Parallelize = Callable[[nn.Module, DeviceMesh], object]
ADAM = partial(torch.optim.Adam, lr=0.1)
MOMENTUM = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


def model(hidden: int = 12) -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, hidden), nn.Tanh(), nn.Linear(hidden, 2))


def batches(draw: Any, ranks: int) -> dict[str, Any]:
    """Batches that some ranks have no part of, and hidden layers that the ranks share unevenly, for what can do with both."""
    return dict(inputs=(draw(st.integers(0, 5)), 3), hidden=draw(st.integers(1, 7)))


def tensor_parallel(module: nn.Module, mesh: DeviceMesh) -> None:
    parallelize_module(module, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def sharded(module: Any, mesh: DeviceMesh) -> None:
    fully_shard(module[0], mesh=mesh)
    fully_shard(module, mesh=mesh)


def replicated(module: nn.Module, mesh: DeviceMesh) -> nn.Module:
    return DistributedDataParallel(module, process_group=mesh.get_group())


def replicated_in_place(module: nn.Module, mesh: DeviceMesh) -> None:
    composable: Any = replicate
    composable(module, process_group=mesh.get_group())


def in_both(module: nn.Module, mesh: DeviceMesh) -> None:
    tensor_parallel(module, mesh["tp"])
    sharded(module, mesh["dp"])


def sequence_parallel(module: nn.Module, mesh: DeviceMesh) -> None:
    plan = {"0": SequenceParallel(), "1": ColwiseParallel(input_layouts=Shard(1)), "2": RowwiseParallel()}
    parallelize_module(module, mesh, plan)


def as_it_is(module: nn.Module, mesh: DeviceMesh) -> None:
    pass


def averaged(module: nn.Module) -> None:
    reduce_gradients(module)
    for parameter in module.parameters():
        if parameter.grad is not None:
            parameter.grad /= dist.get_world_size()


EXAMPLE = torch.zeros(4, 3)


@pytest.mark.parametrize(
    ("parallelize", "inputs", "options"),
    [
        (tensor_parallel, EXAMPLE, {}),
        (sharded, batches, dict(data_parallel="mean", optimizer=ADAM, steps=2)),
        (sharded, EXAMPLE, {}),
        (replicated, batches, dict(data_parallel="mean", optimizer=MOMENTUM, steps=2)),
        (replicated_in_place, batches, dict(data_parallel="mean", optimizer=MOMENTUM, steps=2)),
        (as_it_is, batches, dict(data_parallel="sum", after_backward=reduce_gradients)),
        (as_it_is, batches, dict(data_parallel="mean", after_backward=averaged)),
    ],
)
def test_torchs_parallel_modules_are_the_sequential_ones(
    world: al.SimulatedWorld, parallelize: Parallelize, inputs: Any, options: dict[str, Any]
) -> None:
    verdicts = al.check_parallel(model, parallelize, inputs, cases=3, world=world, **options)
    assert {"sequential", "gradients", "jacobian"} <= set(verdicts)


def test_cases_are_on_up_to_four_simulated_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    most: set[int] = set()

    def judged(world: al.SimulatedWorld, subject: Any, check: str, budget: Budget) -> SearchResult:
        most.add(max(subject.ranks_up_to(budget.ranks or world.ranks)))
        return SearchResult("", check, "simulated", coherent())

    monkeypatch.setattr("adjointlab.engine.subject_check.investigate", judged)
    al.check_parallel(nn.Linear(3, 2), as_it_is, EXAMPLE)
    assert most == {4}


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
def test_a_mesh_of_two_dimensions_shares_batch_and_layers(world: al.SimulatedWorld) -> None:
    al.check_parallel(
        model,
        in_both,
        EXAMPLE,
        mesh=("dp", "tp"),
        data_parallel={"dp": "mean"},
        optimizer=MOMENTUM,
        steps=2,
        cases=3,
        world=world,
    )


def test_inputs_may_be_dtensors(world: al.SimulatedWorld) -> None:
    al.check_parallel(
        lambda: nn.Sequential(nn.LayerNorm(3), nn.Linear(3, 12), nn.Linear(12, 2)),
        sequence_parallel,
        lambda draw, ranks: dict(inputs=(2, 4, 3), dtensors=True, input_placements=[[Shard(1)]]),
        cases=3,
        world=world,
    )


def test_indices_stay_within_those_of_the_example(world: al.SimulatedWorld) -> None:
    def parallelize(module: nn.Module, mesh: DeviceMesh) -> None:
        plan = {
            "0": RowwiseParallel(input_layouts=Replicate()),
            "1": ColwiseParallel(output_layouts=Replicate()),
        }
        parallelize_module(module, mesh, plan)

    module = nn.Sequential(nn.Embedding(7, 12), nn.Linear(12, 4))
    al.check_parallel(module, parallelize, torch.tensor([[0, 6], [1, 2]]), cases=3, world=world)


class RowsOfAVocabulary(nn.Module):
    """An embedding of which each rank has some rows; the first row of the next rank is taken for one more of its own."""

    def __init__(self, embedding: nn.Module, mesh: DeviceMesh) -> None:
        super().__init__()
        self.weight = nn.Parameter(distribute_tensor(embedding.get_parameter("weight"), mesh, [Shard(0)]))

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        held: Any = self.weight
        rows = held.to_local()
        own = index - dist.get_rank() * len(rows)
        is_elsewhere = (own < 0) | (own > len(rows))  # should be >=
        vectors = rows[own.masked_fill(is_elsewhere, 0).clamp(max=len(rows) - 1)]
        return SummedUp.apply(vectors.masked_fill(is_elsewhere[..., None], 0))


def test_what_is_wrong_for_one_index_in_the_middle_of_many_is_found(world: al.SimulatedWorld) -> None:
    with pytest.raises(AssertionError, match="the layer's outputs are not the sequential ones"):
        al.check_parallel(
            nn.Embedding(24, 2), RowsOfAVocabulary, torch.tensor([[0, 1, 2, 23]] * 3), mesh=(2,), world=world
        )


class Columns(nn.Module):
    """A linear layer of one's own, of which each rank has some rows of the weight."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight = nn.Parameter(linear.weight.chunk(dist.get_world_size())[dist.get_rank()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return CopiedIn.apply(x) @ self.weight.T


def test_layers_of_ones_own_say_how_their_parameters_are_shared(world: al.SimulatedWorld) -> None:
    def cases(draw: Any, ranks: int) -> dict[str, Any]:
        return dict(
            inputs=(2, 3), parameter_placements={"weight": [Shard(0)]}, output_placements=[[Shard(1)]]
        )

    def columns(module: Any, mesh: DeviceMesh) -> nn.Module:
        return Columns(module)

    linear = partial(nn.Linear, 3, 12, bias=False)
    al.check_parallel(linear, columns, cases, cases=3, world=world)
    with pytest.raises(AssertionError, match="say how the ranks share it"):
        al.check_parallel(linear, columns, EXAMPLE, cases=3, world=world)


class InPlace(nn.Module):
    """Works in the memory of its input, where the sequential module does not."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight = linear.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x @ self.weight.T
        x.detach().zero_()
        return y


def test_a_parallel_module_that_overwrites_its_input_is_not_told_to_declare_what_it_cannot(
    world: al.SimulatedWorld,
) -> None:
    linear = partial(nn.Linear, 3, 12, bias=False)
    with pytest.raises(AssertionError, match="the layer writes into an input") as told:
        al.check_parallel(linear, lambda module, mesh: InPlace(module), EXAMPLE, cases=3, world=world)
    assert "x.clone()" in str(told.value)
    assert "overwrites_inputs" not in str(told.value)


def columns_of(**placements: Any) -> Any:
    def cases(draw: Any, ranks: int) -> dict[str, Any]:
        return dict(inputs=(2, 3), parameter_placements={"weight": [Shard(0)]}) | placements

    return partial(
        al.check_parallel, partial(nn.Linear, 3, 12, bias=False), lambda module, mesh: Columns(module), cases
    )


def test_placements_of_one_output_are_a_list_or_a_list_of_that(world: al.SimulatedWorld) -> None:
    for outputs in ([Shard(1)], [[Shard(1)]]):
        columns_of(output_placements=outputs)(cases=2, world=world)


@pytest.mark.parametrize(
    ("placements", "told"),
    [
        ({"output_placements": Shard(1)}, "output_placements: Shard(dim=1) is no list of placements"),
        ({"output_placements": ["s"]}, "output_placements: 's' is no list of placements along the 1 dimension of"),
        ({"input_placements": [[Shard(0), Shard(1)]]}, "input_placements: [Shard(dim=0), Shard(dim=1)] is no list"),
        ({"output_placements": [[Shard(1)]] * 2}, "output_placements: 2 lists of placements, for 1 tensor"),
        ({"parameter_placements": {"weight": Shard(0)}}, "parameter_placements['weight']: Shard(dim=0) is no list"),
        ({"parameter_placements": {"w": [Shard(0)]}}, "parameter_placements: 'w' is none of the parameters weight"),
    ],
)  # fmt: skip
def test_wrong_placements_are_refused_by_name(
    world: al.SimulatedWorld, placements: dict[str, Any], told: str
) -> None:
    with pytest.raises(SubjectError, match=re.escape(told)):
        columns_of(**placements)(cases=2, world=world)


def without_last_sum(module: Any, mesh: DeviceMesh) -> nn.Module:
    """Tensor-parallel but for the sum over what the ranks have of the hidden layer."""
    tensor_parallel(module, mesh)
    hidden = module[:2]

    class Wrong(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, x: Any) -> Any:
            return hidden(x) @ module[2].weight.to_local().T + module[2].bias.to_local()

    return Wrong()


@pytest.mark.parametrize(
    ("parallelize", "options", "named"),
    [
        (without_last_sum, {}, "sequential: the layer's outputs are not the sequential ones"),
        (as_it_is, dict(data_parallel="mean"), "gradients: the layer's parameter gradient"),
    ],
)
def test_what_is_wrong_is_named_on_two_ranks(
    world: al.SimulatedWorld, parallelize: Parallelize, options: dict[str, Any], named: str
) -> None:
    with pytest.raises(AssertionError, match=named) as failure:
        al.check_parallel(model, parallelize, EXAMPLE, cases=4, world=world, **options)
    assert {"  ranks 2", "  mesh (2,)"} <= set(str(failure.value).splitlines())
    # In pytest and IPython, at the line of the call.
    assert all("__tracebackhide__" in entry.locals for entry in failure.traceback[1:])


def test_what_goes_wrong_from_the_second_step_on_is_found(world: al.SimulatedWorld) -> None:
    def reduced_once(module: Any) -> None:
        if not hasattr(module, "is_reduced"):
            reduce_gradients(module)
        module.is_reduced = True

    subject = al.subject.parallel(
        model,
        as_it_is,
        data_parallel="sum",
        after_backward=reduced_once,
        optimizer=MOMENTUM,
        steps=2,
    )(batches)
    verdict = investigate(world, subject, "training", Budget(4, ranks=2, seed=0, shrinking=0)).verdict
    assert verdict.headline == "the layer's parameters after the steps are not the sequential ones"


def renamed(module: Any, mesh: DeviceMesh) -> nn.Module:
    return nn.ModuleDict({"first": module[0], "last": module[2]})


@pytest.mark.parametrize(
    ("parallelize", "mesh", "message"),
    [
        (renamed, None, "has a parameter first.weight, and the sequential one none of that name"),
        (lambda module, mesh: mesh["tp"], (2,), "mesh"),
    ],
)
def test_what_cannot_be_compared_is_said(
    world: al.SimulatedWorld, parallelize: Parallelize, mesh: Any, message: str
) -> None:
    with pytest.raises(AssertionError, match=message):
        al.check_parallel(model, parallelize, EXAMPLE, mesh=mesh, cases=1, world=world)


def test_a_part_may_have_a_second_name_in_the_parallel_module(world: al.SimulatedWorld) -> None:
    class Named(nn.Module):
        def __init__(self, module: Any) -> None:
            super().__init__()
            self.first, self.norm, self.layers = module[0], module[1], module

        def forward(self, x: torch.Tensor) -> Any:
            return self.norm(self.first(x))

    sequential = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # no rank communicates
        verdicts = al.check_parallel(
            sequential, lambda module, mesh: Named(module), EXAMPLE, cases=2, world=world
        )
    assert all(verdict.is_coherent for verdict in verdicts.values())


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.inner = nn.Parameter(torch.ones(3)), nn.Linear(3, 4, bias=False)

    def forward(self, x: torch.Tensor) -> Any:
        return self.inner(self.weight * x)


def test_a_second_name_in_a_wrapper_may_end_in_that_of_another_parameter(world: al.SimulatedWorld) -> None:
    class Wrapped(nn.Module):
        def __init__(self, scaled: Any) -> None:
            super().__init__()
            self.last, self.scaled = scaled.inner, scaled

        def forward(self, x: torch.Tensor) -> Any:
            return self.scaled(x)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # no rank communicates
        verdicts = al.check_parallel(
            Scaled(), lambda module, mesh: Wrapped(module), EXAMPLE, cases=2, world=world
        )
    assert all(verdict.is_coherent for verdict in verdicts.values())


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.there, self.back = nn.Linear(3, 3), nn.Linear(3, 3)
        self.back.weight = self.there.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.back(self.there(x).tanh())
        return result


def test_a_tied_parameter_of_which_two_are_made_is_said_to_be_so(world: al.SimulatedWorld) -> None:
    def untied(module: nn.Module, mesh: DeviceMesh) -> None:
        plan = {"there": ColwiseParallel(), "back": RowwiseParallel()}
        parallelize_module(module, mesh, plan)

    message = "has back.weight and there.weight as two parameters, and the sequential one as a single one"
    with pytest.raises(AssertionError, match=message):
        al.check_parallel(Tied(), untied, EXAMPLE, cases=1, world=world)


def test_placements_are_proposed_that_fit_the_mesh_and_the_part(world: al.SimulatedWorld) -> None:
    def halved(module: nn.Module, mesh: DeviceMesh) -> None:
        last: Any = module.get_submodule("2")
        last.weight = nn.Parameter(last.weight[:, : last.weight.shape[1] // 2].detach().clone())

    with pytest.raises(
        AssertionError, match=re.escape('parameter_placements={"2.weight": [Replicate(), Shard(1)]}')
    ):
        al.check_parallel(model, halved, EXAMPLE, mesh={"dp": 1, "tp": 2}, cases=1, world=world)


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


def test_parameters_of_which_each_rank_has_some_are_said_to_be_stacked(world: al.SimulatedWorld) -> None:
    def own_layer(module: Any, mesh: DeviceMesh) -> None:
        module[2 - 2 * mesh.get_rank()] = nn.Identity()

    for others in ("2.weight, .* but 0.weight: .* stack", "0.weight, .* but 2.weight: .* stack"):
        with pytest.raises(
            AssertionError, match=f"the parallel module has no parameter {others} the weights"
        ):
            al.check_parallel(model, own_layer, EXAMPLE, mesh=(2,), cases=1, world=world)


def test_a_flattened_part_of_a_parameter_is_said_to_have_no_placement(world: al.SimulatedWorld) -> None:
    def flattened(module: nn.Module, mesh: DeviceMesh) -> None:
        last: Any = module.get_submodule("2")
        last.weight = nn.Parameter(last.weight.detach().flatten().chunk(mesh.size())[mesh.get_rank()].clone())

    with pytest.raises(AssertionError, match="Flatten the sequential one too"):
        al.check_parallel(model, flattened, EXAMPLE, mesh=(2,), cases=1, world=world)


def test_a_module_that_rounds_otherwise_says_by_how_much(world: al.SimulatedWorld) -> None:
    def in_half_precision(module: Any, mesh: Any) -> None:
        fully_shard(
            module,
            mesh=mesh,
            mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, output_dtype=torch.float64),
        )

    def check(**declared: Any) -> Any:
        subject = al.subject.parallel(model, in_half_precision, data_parallel="mean")(
            lambda draw, ranks: {"inputs": (2 * ranks, 3)} | declared
        )
        return investigate(world, subject, "sequential", Budget(4, ranks=2, seed=0, shrinking=0)).verdict

    assert not check().is_coherent
    assert check(rounding=2.0**-6).is_coherent
    assert check(rounding="bfloat16").is_coherent
    assert not check(rounding="float32").is_coherent
    wrong = "rounding: 'much' is no number from 0 on, nor one of float64, float32, float16, bfloat16"
    assert wrong in check(rounding="much").headline


def test_a_sparse_gradient_is_compared_as_a_dense_one(world: al.SimulatedWorld) -> None:
    subject = al.subject.parallel(
        lambda: nn.Embedding(5, 2, sparse=True), as_it_is, prepare=lambda x: [x.long() % 5]
    )(lambda draw, ranks: {"inputs": (3,)})
    verdict = investigate(world, subject, "gradients", Budget(4, ranks=2, seed=0, shrinking=0)).verdict
    assert verdict.is_coherent, str(verdict)


@pytest.mark.parametrize(
    ("inputs", "mesh", "told"),
    [
        ("abc", None, "inputs: a str is no torch.Tensor, no list of them, and no strategy"),
        ([], None, "inputs: a list is no torch.Tensor"),
        (EXAMPLE, ["dp", "dp"], "mesh: ['dp', 'dp'] has one name twice"),
    ],
)
def test_examples_and_meshes_that_are_none_are_refused(inputs: Any, mesh: Any, told: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(told)):
        al.check_parallel(model, as_it_is, inputs, mesh=mesh)


@pytest.mark.filterwarnings("ignore:.*no rank communicated with another")
def test_an_example_may_have_negative_integers_alone(world: al.SimulatedWorld) -> None:
    class Counts(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.double() * 2

    al.check_parallel(Counts(), as_it_is, torch.tensor([-1, -1]), world=world, cases=2)


class WithAuxiliaryLoss(torch.autograd.Function):
    """Returns x; the backward pass adds the gradient of `loss`, which is 1."""

    @staticmethod
    def forward(ctx: Any, x: Any, loss: Any) -> Any:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient, torch.ones((), dtype=gradient.dtype)


class Gated(nn.Module):
    """A layer of experts: how they are loaded is an auxiliary loss, as in Megatron's router."""

    def __init__(self, *, takes_mean: bool) -> None:
        super().__init__()
        self.gate, self.takes_mean = nn.Linear(4, 3), takes_mean

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        loads = self.gate(x).softmax(-1).square().sum(-1)
        return WithAuxiliaryLoss.apply(self.gate(x), loads.mean() if self.takes_mean else loads.sum())


@pytest.mark.parametrize("takes_mean", [True, False])
def test_under_data_parallelism_an_auxiliary_loss_is_right_that_is_a_mean_over_what_a_rank_has(
    takes_mean: bool,
) -> None:
    @al.subject.parallel(
        partial(Gated, takes_mean=takes_mean),
        lambda module, mesh: DistributedDataParallel(module),
        data_parallel="mean",
        optimizer=partial(torch.optim.SGD, lr=0.125),
        steps=1,
    )
    def subject(draw: Any, ranks: int) -> dict[str, Any]:
        return dict(inputs=(2 * ranks, 4))

    for check in ("gradients", "training", "jacobian"):
        verdict = investigate(al.SimulatedWorld(3), subject, check, Budget(12, seed=1, shrinking=0)).verdict
        assert verdict.is_coherent == takes_mean, (check, verdict)


class RowsOfTokens(nn.Module):
    """A layer that views its input as rows, as many of transformers do: of transposed memory there is no such view."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x.view(-1, 3)).view(*x.shape[:2], -1)


TOKENS = torch.zeros(4, 2, 3)


def test_inputs_lie_in_memory_as_the_sequential_module_takes_them(world: al.SimulatedWorld) -> None:
    def column_wise(module: nn.Module, mesh: DeviceMesh) -> None:
        parallelize_module(module, mesh, {"linear": ColwiseParallel(output_layouts=Replicate())})

    al.check_parallel(RowsOfTokens, column_wise, TOKENS, world=world, cases=12)


def test_inputs_in_another_memory_order_than_that_of_the_case_are_told(world: al.SimulatedWorld) -> None:
    def doubled(module: nn.Module, mesh: DeviceMesh) -> None:
        module.register_forward_hook(lambda module, inputs, output: 2 * output)

    @al.subject.parallel(RowsOfTokens, doubled)
    def tokens(draw: Any, ranks: int) -> dict[str, Any]:
        raise NotImplementedError

    parameters = {"inputs": (4, 2, 3), "mesh": (2,)}
    for order, told in (("column-major", True), ("row-major", False)):
        case = Case("tokens", "gradients", 2, parameters, InputSetting(0, "torch", order), 0)
        verdict = replay(world, tokens, case).verdict
        line = "inputs", "row-major, for the sequential module takes none in column-major memory"
        assert (line in verdict.lines) == told, verdict


def test_what_is_made_parallel_takes_the_memory_orders_that_the_sequential_module_takes(
    world: al.SimulatedWorld,
) -> None:
    class AnyTokens(RowsOfTokens):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x)

    def with_views(module: nn.Module, mesh: DeviceMesh) -> nn.Module:
        module.__class__ = RowsOfTokens
        return module

    with pytest.raises(
        AssertionError, match=r"view size is not compatible(?s:.*)memory torch, x column-major"
    ):
        al.check_parallel(AnyTokens, with_views, TOKENS, world=world, cases=12)


# What the lab freezes, and options that cannot be right


def hooked(module: nn.Module, mesh: DeviceMesh) -> None:
    for parameter in module.parameters():
        parameter.register_post_accumulate_grad_hook(lambda each: None)


@pytest.mark.filterwarnings("ignore:.*no rank communicated with another")
def test_code_that_cannot_do_with_frozen_parameters_is_told_how_to_forbid_them(
    world: al.SimulatedWorld,
) -> None:
    with pytest.raises(AssertionError, match=r"forbid it by frozen=\(\) of check_parallel"):
        al.check_parallel(model, hooked, EXAMPLE, mesh=(2,), cases=6, world=world)
    al.check_parallel(model, hooked, EXAMPLE, mesh=(2,), frozen=(), cases=6, world=world)


def test_code_whose_sizes_a_mesh_cannot_cut_is_told_how_to_leave_that_mesh_out() -> None:
    def hidden(size: int) -> nn.Module:
        return nn.Sequential(nn.Linear(4, size), nn.Linear(size, 4))

    def parallelize(module: nn.Module, mesh: DeviceMesh) -> nn.Module:
        return parallelize_module(module, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})

    batch = torch.randn(2, 4)
    with pytest.raises(AssertionError, match=r"such as mesh=\(2,\) of check_parallel"):
        al.check_parallel(partial(hidden, 10), parallelize, batch, cases=12)
    al.check_parallel(partial(hidden, 10), parallelize, batch, mesh=(2,), cases=2)


class SummedAndAveragedBack(torch.autograd.Function):
    """A sum over the ranks, whose gradient is the mean of what they hold."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(total := x.clone())
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(mean := gradients[0].clone(), op=dist.ReduceOp.AVG)
        return mean


class Tables(nn.Module):
    """Tables of which each rank looks up its own ones alone."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(4, 2) for _ in range(3))

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        own = self.tables[dist.get_rank() :: dist.get_world_size()]
        return SummedAndAveragedBack.apply(torch.stack([table(indices) for table in own]).sum(0))


def add_up(module: Any) -> None:
    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            dist.all_reduce(parameter.grad)


def test_where_one_rank_has_nothing_but_frozen_parameters_users_are_told_how_to_forbid_that(
    world: al.SimulatedWorld,
) -> None:
    """Torch leaves out the backward pass on that rank, and the others wait for it."""
    check = partial(
        al.check_parallel,
        Tables,
        lambda module, mesh: module,
        torch.arange(4),
        mesh=(2,),
        after_backward=add_up,
        cases=8,
        world=world,
    )
    with pytest.raises(AssertionError, match=r"(?s)mismatched.*forbid it by frozen=\(\) of check_parallel"):
        check()
    check(frozen=())


@pytest.mark.filterwarnings("ignore:.*no rank communicated with another")
def test_parameters_may_be_frozen_by_name(world: al.SimulatedWorld) -> None:
    seen: set[tuple[str, ...]] = set()

    def parallelize(module: nn.Module, mesh: DeviceMesh) -> None:
        seen.add(tuple(name for name, parameter in module.named_parameters() if not parameter.requires_grad))

    al.check_parallel(model, parallelize, EXAMPLE, mesh=(2,), frozen=("0.weight",), cases=3, world=world)
    assert seen == {("0.weight",)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mesh": 2}, r"mesh: 2 is a number; give the extents of dimensions as \(2,\)"),
        ({"mesh": "dp"}, r"mesh: 'dp' is a text; give the names of dimensions as \('dp',\)"),
        ({"mesh": ("dp", 2)}, r"mesh: \('dp', 2\) are neither names of dimensions nor their extents"),
        ({"mesh": (2.0,)}, r"mesh: \(2.0,\) are neither names of dimensions nor their extents"),
        ({"mesh": ()}, r"mesh: \(\) are neither names of dimensions nor their extents"),
        ({"after_backward": 3}, "after_backward: an int is no function"),
        ({"prepare": 3}, "prepare: an int is no function"),
        ({"context": 3}, "context: 3 is no function that makes a context"),
        (
            {"optimizer": torch.optim.SGD([torch.zeros(1)], lr=0.1), "steps": 1},
            r"optimizer: .* is no function that makes one of a list of parameters",
        ),
    ],
)
def test_options_of_another_kind_are_refused_with_what_is_legal(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises((TypeError, SubjectError), match=message):
        al.check_parallel(model, as_it_is, EXAMPLE, **options)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"dtype": "f32"}, "dtype: 'f32' is not one of float64, float32,"),
        ({"frozen": ["nope"]}, "frozen: 'nope' is none of the parameters 0.weight, 0.bias,"),
        ({"frozen": "0.weight"}, r"frozen: '0.weight' is no list of names, such as \['0.weight'\]"),
        ({"parameter_placements": [Shard(0)]}, r"parameter_placements: \[.*\] is no dictionary"),
        ({"inputs": 8}, r"inputs: 8 is no shape, such as \(4, 6\), and no list of shapes"),
        ({"inputs": "4, 6"}, "inputs: '4, 6' is no shape"),
        ({"inputs": (-4, 6)}, r"inputs: \(-4, 6\) is no shape"),
        ({"inputs": [(4, 6), 3]}, r"inputs: \[\(4, 6\), 3\] is no shape"),
        ({"mesh": 2}, r"mesh: 2 is no list of extents, such as \(2, 2\), nor \{\"dp\": 2, \"tp\": 2\}"),
        ({"mesh": ("dp",)}, r"mesh: \('dp',\) is no list of extents"),
        ({"mesh": {"dp": 0}}, r"mesh: \{'dp': 0\} is no list of extents"),
    ],
)
def test_entries_of_another_kind_are_refused_with_what_is_legal(
    entry: dict[str, Any], message: str, world: al.SimulatedWorld
) -> None:
    def cases(draw: Any, ranks: int) -> dict[str, Any]:
        return {"mesh": (ranks,), "inputs": tuple(EXAMPLE.shape), **entry}

    with pytest.raises(SubjectError, match=message):
        al.check_parallel(model, as_it_is, cases, cases=1, world=world)


def test_shapes_and_meshes_may_have_integers_of_numpy() -> None:
    four, six = np.int64(4), np.int64(6)
    assert shapes_of((four, six)) == shapes_of([(four, six)]) == ((4, 6),)
    assert as_mesh((four,)) == ((4,), None)
    assert as_mesh({"dp": four}) == ((4,), ("dp",))


def test_a_function_that_takes_no_mesh_is_told_how_it_is_called(world: al.SimulatedWorld) -> None:
    def parallelize(module: nn.Module) -> None: ...

    given: Any = parallelize
    told = r"parallelize is called as parallelize\(module, mesh\), but parallelize\(module\) "
    with pytest.raises(SubjectError, match=told):
        al.check_parallel(model, given, EXAMPLE, cases=1, world=world)


def test_a_function_that_makes_no_module_is_told_so(world: al.SimulatedWorld) -> None:
    with pytest.raises(SubjectError, match="parallelize returned a tuple, and neither a module nor None"):
        al.check_parallel(model, lambda module, mesh: (module, mesh), EXAMPLE, cases=1, world=world)
    nothing: Any = lambda: None  # noqa: E731
    given = EXAMPLE.shape
    with pytest.raises(
        SubjectError, match=r"called as Sequential\(width=…\), but Sequential\(\) takes no `width`"
    ):
        al.check_parallel(model(), as_it_is, lambda draw, ranks: dict(inputs=given, width=3), world=world)
    with pytest.raises(SubjectError, match="sequential: it returned None, and no module"):
        al.check_parallel(nothing, as_it_is, EXAMPLE, cases=1, world=world)


def test_a_module_whose_weight_is_computed_in_each_call_is_given_as_it_is(world: al.SimulatedWorld) -> None:
    module = model()
    l1_unstructured(module[0], "weight", 0.5)
    al.check_parallel(module, replicated, EXAMPLE, data_parallel="mean", cases=2, world=world)


class ComputedOnce(nn.Linear):
    def __init__(self) -> None:
        super().__init__(3, 2)
        self.doubled = 2 * self.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + self.doubled


def test_a_module_that_computes_from_a_parameter_when_it_is_made_does_not_pass_without_its_gradient(
    world: al.SimulatedWorld,
) -> None:
    with pytest.raises(AssertionError, match="the sequential layer gives NaN"):
        al.check_parallel(ComputedOnce(), replicated, EXAMPLE, data_parallel="mean", cases=4, world=world)


class Tangent(nn.Module):
    """Adds to a network its derivative along the input, as consistency models and physics-informed networks need it."""

    def __init__(self) -> None:
        super().__init__()
        self.network = model()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, tangent = torch.func.jvp(self.network, (x,), (x,))
        return y + tangent  # type: ignore[no-any-return]


@pytest.mark.usefixtures("forward_mode")
def test_a_module_may_take_derivatives_in_forward_mode_itself(world: al.SimulatedWorld) -> None:
    verdicts = al.check_parallel(Tangent(), replicated, EXAMPLE, data_parallel="mean", cases=2, world=world)
    assert verdicts["jacobian"].is_coherent


class Locked(nn.Linear):
    def __init__(self) -> None:
        super().__init__(3, 2)
        self.lock = threading.Lock()


def test_a_module_that_has_no_copy_is_asked_for_as_a_function(world: al.SimulatedWorld) -> None:
    options: Any = dict(data_parallel="mean", cases=2, world=world)
    with pytest.raises(SubjectError, match=r"cannot be copied \(.*lock.*\): give a function that makes it"):
        al.check_parallel(Locked(), replicated, EXAMPLE, **options)
    al.check_parallel(Locked, replicated, EXAMPLE, **options)


class MeanLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).square().mean()


def test_a_module_that_raises_before_it_is_parallelized_is_said_to_be_the_sequential_one() -> None:
    module = nn.Sequential(nn.Linear(4, 6), nn.Unflatten(1, (4, 2)))
    told = r"(?s)rank 0 raised RuntimeError.*raised by the sequential module, before it was parallelized, given zeros of shape \(3, 4\)"
    with pytest.raises(AssertionError, match=told):
        al.check_parallel(module, lambda module, mesh: module, torch.randn(3, 4), cases=1)


def test_a_loss_of_a_whole_batch_that_ranks_share_is_refused(world: al.SimulatedWorld) -> None:
    with pytest.raises(SubjectError, match=r"returns a scalar .*return a value for each row"):
        al.check_parallel(
            MeanLoss, replicated, EXAMPLE, mesh=(2,), data_parallel="mean", cases=2, world=world
        )


class Dropping(nn.Module):
    """Drops the same elements in every call."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.random.fork_rng():
            torch.manual_seed(7)
            return self.linear(nn.functional.dropout(x, 0.5))  # type: ignore[no-any-return]


@pytest.mark.mpi_skip
def test_dropout_from_one_seed_drops_the_same_elements_in_every_memory_order() -> None:
    subject = al.subject.parallel(Dropping, as_it_is)(lambda draw, ranks: dict(inputs=(4, 3)))
    world = al.SimulatedWorld(2)
    assert investigate(world, subject, "sequential", Budget(40, seed=4)).verdict.is_coherent


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


def test_code_that_opens_a_process_group_in_a_case_is_told_that_there_is_one() -> None:
    def opening(module: nn.Module, mesh: DeviceMesh) -> None:
        dist.init_process_group("gloo")

    with pytest.raises(AssertionError, match=r"only if not dist\.is_initialized"):
        al.check_parallel(model, opening, torch.ones(4, 3), cases=2, mesh=(2,))
    assert dist.init_process_group.__module__.startswith("torch.")
