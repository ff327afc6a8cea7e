"""A module that is made parallel is compared with the module that it is made from, with no space declared by hand."""

from __future__ import annotations

import re
import threading
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.prune import l1_unstructured

import adjointlab as al
from adjointlab.checks.context import InputSetting
from adjointlab.checks.verdict import coherent
from adjointlab.core.declaration import SubjectError
from adjointlab.engine.case import Case
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget, SearchResult
from adjointlab.replaying import replay
from tests.planted.parallel_modules import CopiedIn, SummedUp
from tests.torch_distributed.parallel_samples import (
    ADAM,
    EXAMPLE,
    MOMENTUM,
    Parallelize,
    as_it_is,
    averaged,
    batches,
    in_both,
    model,
    replicated,
    replicated_in_place,
    sequence_parallel,
    sharded,
    tensor_parallel,
)
from tests.torch_distributed.sums import reduce_gradients


@pytest.mark.parametrize(
    ("parallelize", "inputs", "options"),
    [
        (tensor_parallel, EXAMPLE, {}),
        (sharded, batches, dict(data_parallel="mean", optimizer=ADAM, steps=2)),
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
    placements: Any = dict(parameter_placements={"weight": [Shard(0)]}, output_placements=[[Shard(1)]])
    al.check_parallel(linear, columns, EXAMPLE, **placements, cases=3, world=world)
    with pytest.raises(
        AssertionError,
        match=r"say how the ranks share it, .*\[Shard\(0\)\].*, an argument of check_parallel",
    ):
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
        ({"output_placements": Shard(1)}, "output_placements: Shard(dim=1) is not a list of placements"),
        ({"output_placements": ["s"]}, "output_placements: 's' is not a list of placements along the 1 dimension of"),
        ({"input_placements": [[Shard(0), Shard(1)]]}, "input_placements: [Shard(dim=0), Shard(dim=1)] is not a list"),
        ({"output_placements": [[Shard(1)]] * 2}, "output_placements: 2 lists of placements, for 1 tensor"),
        ({"parameter_placements": {"weight": Shard(0)}}, "parameter_placements['weight']: Shard(dim=0) is not a list"),
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
    wrong = "rounding: 'much' is not a number of at least 0, nor one of float64, float32, float16, bfloat16"
    assert wrong in check(rounding="much").headline


def test_a_sparse_gradient_is_compared_as_a_dense_one(world: al.SimulatedWorld) -> None:
    subject = al.subject.parallel(
        lambda: nn.Embedding(5, 2, sparse=True), as_it_is, prepare=lambda x: [x.long() % 5]
    )(lambda draw, ranks: {"inputs": (3,)})
    verdict = investigate(world, subject, "gradients", Budget(4, ranks=2, seed=0, shrinking=0)).verdict
    assert verdict.is_coherent, str(verdict)


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
        line = "inputs", "row-major, because the sequential module takes none in column-major memory"
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


@pytest.mark.parametrize("is_sequential", [True, False])
def test_an_error_that_speaks_of_double_says_how_a_module_is_run_in_another_type(
    world: al.SimulatedWorld, is_sequential: bool
) -> None:
    class InSinglePrecision(nn.Linear):
        is_refused = is_sequential

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.float() if self.is_refused else x)

    def parallelize(module: Any, mesh: DeviceMesh) -> None:
        module.is_refused = True

    told = 'Double.*\\n.*modules run in float64, unless .* such as dtype="float32"'
    with pytest.raises(AssertionError, match=told):
        al.check_parallel(InSinglePrecision(3, 2), parallelize, EXAMPLE, cases=1, world=world)


@pytest.mark.parametrize("hook", ["before_backward", "after_backward"])
def test_an_error_of_code_around_a_backward_pass_that_speaks_of_double_says_so_too(hook: str) -> None:
    def take_single_precision(module: Any) -> None:
        for parameter in module.parameters():
            parameter.grad = torch.zeros(parameter.shape)

    given: Any = {hook: take_single_precision}
    with pytest.raises(AssertionError, match=r"Double.*\n.*modules run in float64"):
        al.check_parallel(nn.Linear(3, 2), as_it_is, EXAMPLE, checks=["gradients"], cases=2, **given)


def take_single(tensor: torch.Tensor) -> None:
    """Raises where a flat buffer of torch's default type does not take the tensor's."""
    torch.dot(torch.zeros(tensor.numel()), tensor.flatten())


class TakesSingle(torch.optim.SGD):
    def step(self, closure: Any = None) -> None:
        take_single(self.param_groups[0]["params"][0])


def of_single_precision(module: Any, mesh: DeviceMesh) -> None:
    take_single(module.weight.detach())


def hooked(module: Any, mesh: DeviceMesh) -> None:
    module.weight.register_hook(take_single)


@pytest.mark.parametrize(
    ("parallelize", "options"),
    [
        (of_single_precision, dict(checks=["gradients"])),
        (hooked, dict(checks=["gradients"])),
        (as_it_is, dict(checks=["training"], optimizer=partial(TakesSingle, lr=0.1), steps=1)),
    ],
)
def test_an_error_on_a_buffer_made_without_a_dtype_says_that_it_is_of_another_type(
    parallelize: Any, options: Any
) -> None:
    with pytest.raises(AssertionError, match=r"modules run in float64, .*without a dtype"):
        al.check_parallel(nn.Linear(3, 2), parallelize, EXAMPLE, frozen=(), cases=1, **options)


def test_gradients_that_a_buffer_made_without_a_dtype_has_rounded_may_be_due_to_it() -> None:
    def in_a_flat_buffer(module: Any) -> None:
        weight = module.get_parameter("0.weight")
        flat = torch.zeros(weight.numel())
        flat.copy_(weight.grad.flatten())
        weight.grad.copy_(flat.view_as(weight))

    model, options = nn.Sequential(nn.Linear(3, 2), nn.Tanh()), dict(frozen=(), checks=["gradients"])
    with pytest.raises(AssertionError, match=r"perhaps .*makes without a dtype"):
        al.check_parallel(model, as_it_is, EXAMPLE, after_backward=in_a_flat_buffer, cases=4, **options)


def test_an_error_of_a_rank_without_rows_says_that_it_has_none(world: al.SimulatedWorld) -> None:
    """Four rows on three ranks are 2, 2 and none."""

    class PerRow(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.reshape(len(x), -1))

    told = r"ambiguous\n.*this rank has nothing of an input of shape \(4, 3\), .* fix the mesh"
    given: Any = dict(mesh=(3,), data_parallel="mean", cases=1, world=world)
    with pytest.raises(AssertionError, match=told):
        al.check_parallel(PerRow(3, 2), replicated, torch.zeros(4, 3), **given)


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


def test_code_that_opens_a_process_group_in_a_case_is_told_that_there_is_one() -> None:
    def opening(module: nn.Module, mesh: DeviceMesh) -> None:
        dist.init_process_group("gloo")

    with pytest.raises(AssertionError, match=r"only if not dist\.is_initialized"):
        al.check_parallel(model, opening, torch.ones(4, 3), cases=2, mesh=(2,))
    assert dist.init_process_group.__module__.startswith("torch.")
