"""Training code has more around passes than calls of the module: gradients that it keeps elsewhere, contexts, derivatives in a forward pass."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, loss_parallel, parallelize_module
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import adjointlab as al
from adjointlab.checks.context import InputSetting
from adjointlab.core.declaration import SubjectError
from adjointlab.engine.case import Case
from adjointlab.engine.case_body import body
from adjointlab.engine.run_case import run_case
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget
from tests.torch_distributed.parallel_samples import WithLinear, as_it_is
from tests.torch_distributed.sums import reduce_gradients

pytestmark = pytest.mark.mpi_skip

EXAMPLE = torch.zeros(4, 3)


def linear() -> nn.Linear:
    return nn.Linear(3, 2)


# Gradients that are kept in `main_grad`, as Megatron has it.


def with_main_grads(module: nn.Module, mesh: Any, take: Any = torch.Tensor.add_) -> None:
    def move(parameter: Any) -> None:
        take(parameter.main_grad, parameter.grad)
        parameter.grad = None

    for parameter in module.parameters():
        held: Any = parameter
        held.main_grad = torch.zeros_like(parameter)
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(move)


def clear(module: nn.Module) -> None:
    for parameter in module.parameters():
        held: Any = parameter
        held.main_grad.zero_()


def reduce(module: nn.Module) -> None:
    for parameter in module.parameters():
        held: Any = parameter
        if parameter.requires_grad:
            dist.all_reduce(held.main_grad)
            parameter.grad = held.main_grad


def test_gradients_that_are_kept_elsewhere_are_cleared_before_a_backward_pass() -> None:
    options: Any = dict(data_parallel="sum", after_backward=reduce, cases=6)
    al.check_parallel(linear, with_main_grads, EXAMPLE, before_backward=clear, **options)
    with pytest.raises(AssertionError, match="gradient is not the sequential one"):
        al.check_parallel(linear, with_main_grads, EXAMPLE, **options)


def with_last_grads(module: nn.Module, mesh: Any) -> None:
    with_main_grads(module, mesh, torch.Tensor.copy_)  # a fault: those of the microbatch before are lost


def test_gradients_of_two_passes_are_added_up_between_one_call_of_each_hook() -> None:
    options: Any = dict(data_parallel="sum", before_backward=clear, after_backward=reduce, cases=6)
    al.check_parallel(linear, with_main_grads, EXAMPLE, **options)
    with pytest.raises(AssertionError, match="gradient is not the sequential one") as found:
        al.check_parallel(linear, with_last_grads, EXAMPLE, **options)
    assert "two backward passes, as of two microbatches, between one before_backward" in str(found.value)
    al.check_parallel(linear, with_last_grads, EXAMPLE, accumulates=False, **options)


def reduced_in_every_pass(module: nn.Module, mesh: Any) -> None:
    works: Any = []
    module.works = works
    for parameter in filter(lambda each: each.requires_grad, module.parameters()):
        parameter.register_post_accumulate_grad_hook(
            lambda each: works.append(dist.all_reduce(each.grad, async_op=True))
        )


def wait(module: Any) -> None:
    while module.works:
        module.works.pop().wait()


def test_code_that_clears_nothing_before_a_pass_takes_one_at_a_time_unless_it_says_otherwise() -> None:
    options: Any = dict(data_parallel="sum", after_backward=wait, cases=6)
    al.check_parallel(linear, reduced_in_every_pass, EXAMPLE, **options)
    with pytest.raises(AssertionError):
        al.check_parallel(linear, reduced_in_every_pass, EXAMPLE, accumulates=True, **options)


def forgetting(module: nn.Module, mesh: Any) -> None:
    module.register_forward_pre_hook(
        lambda each, inputs: each.zero_grad()
    )  # a fault: of earlier microbatches


def test_gradients_of_an_earlier_microbatch_stand_there_in_a_forward_pass() -> None:
    with pytest.raises(AssertionError, match="parameter gradient is not the sequential one"):
        al.check_parallel(linear, forgetting, EXAMPLE, mesh=(1,), cases=20, checks=["gradients"])


# Modes.


class Scaled(nn.Module):
    """Divides by the size of the batch as a whole."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / (1 + x.detach().square().sum())


class ScaledTogether(nn.Module):
    always = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size = x.detach().square().sum()
        if self.always or self.training:
            dist.all_reduce(size)
        return x / (1 + size)


class ScaledTogetherInTraining(ScaledTogether):
    always = False


def test_modules_are_put_into_evaluation_mode_in_some_cases() -> None:
    options: Any = dict(data_parallel="sum", mesh=(2,))
    al.check_parallel(Scaled, lambda module, mesh: ScaledTogether(), EXAMPLE, cases=6, **options)
    with pytest.raises(AssertionError, match="evaluated True"):
        al.check_parallel(
            Scaled, lambda module, mesh: ScaledTogetherInTraining(), EXAMPLE, cases=20, **options
        )


class ForTraining(nn.Module):
    """Returns nothing, raises, decodes or keeps what it is given in evaluation mode."""

    def __init__(self, otherwise: str) -> None:
        super().__init__()
        self.linear, self.otherwise = nn.Linear(3, 2), otherwise
        self.kept = torch.zeros(0, 2)

    def forward(self, x: torch.Tensor) -> Any:
        y = self.linear(x)
        if self.training:
            return y
        if self.otherwise == "raises":
            raise RuntimeError("for training alone")
        self.kept = torch.cat([self.kept.to(y.dtype), y])
        return {
            "kept": self.kept,
            "nothing": None,
            "number": 3.0,
            "decoded": y.argmax(1),
            "smaller": y[:1],
            "two": (y, y),
        }[self.otherwise]


@pytest.mark.parametrize(
    "otherwise", ["nothing", "raises", "number", "decoded", "smaller", "two", "kept", "random"]
)
def test_a_module_that_has_other_outputs_in_evaluation_mode_keeps_the_mode_in_which_it_is_made(
    otherwise: str,
) -> None:
    def evaluated(draw: Any, ranks: int) -> dict[str, Any]:
        return dict(inputs=(4, 3), evaluated=True)

    al.check_parallel(
        lambda: ForTraining(otherwise),
        lambda module, mesh: fully_shard(module, mesh=mesh),
        evaluated,
        data_parallel="mean",
        mesh=(2,),
        cases=3,
    )


class ForcesInTraining(nn.Module):
    """An energy and its forces, which keeps the graph of the energy in training alone."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.enable_grad():
            x = x if x.requires_grad else x.detach().requires_grad_()
            energy = self.linear(x).tanh().square().sum(1)
            (slope,) = torch.autograd.grad(energy.sum(), x, create_graph=self.training)
        return energy, -slope


@pytest.mark.filterwarnings("ignore:.*no rank communicated with another")
def test_a_module_that_goes_back_in_training_alone_is_not_put_into_evaluation_mode() -> None:
    def evaluated(draw: Any, ranks: int) -> dict[str, Any]:
        return dict(inputs=(4, 3), evaluated=True)

    al.check_parallel(ForcesInTraining, as_it_is, evaluated, mesh=(2,), cases=3)


def test_a_case_that_trains_and_evaluates_has_both_modules_in_one_mode() -> None:
    def both(draw: Any, ranks: int) -> dict[str, Any]:
        return dict(inputs=(4, 3), training=True, evaluated=True)

    def normalized() -> nn.Module:
        return nn.BatchNorm1d(3)

    al.check_parallel(normalized, lambda module, mesh: normalized().double(), both, mesh=(1,), cases=2)


# Contexts.


class Loss(nn.Module):
    factor = 1

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 8)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = self.head(x)
        loss = F.cross_entropy(z, y)
        return loss * self.factor if isinstance(z, DTensor) else loss


def with_a_sharded_head(module: nn.Module, mesh: Any) -> None:
    plan = {"head": ColwiseParallel(use_local_output=False, output_layouts=Shard(-1))}
    parallelize_module(module, mesh, plan)


def test_passes_run_in_the_context_that_is_given() -> None:
    def doubled(module: Any, mesh: Any) -> None:
        module.factor = 2
        with_a_sharded_head(module, mesh)

    inputs, options = (EXAMPLE, torch.tensor([0, 7, 3, 2])), dict[str, Any](mesh=(2,), cases=3)
    al.check_parallel(Loss, with_a_sharded_head, inputs, context=loss_parallel, **options)
    with pytest.raises(AssertionError, match="outputs are not the sequential ones"):
        al.check_parallel(Loss, doubled, inputs, context=loss_parallel, **options)
    with pytest.raises(AssertionError, match=r"got mixed torch\.Tensor and DTensor"):
        al.check_parallel(Loss, with_a_sharded_head, inputs, **options)


# Derivatives in a forward pass.


class Forces(WithLinear):
    factor = 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x if x.requires_grad else x.detach().requires_grad_()
        energy = self.linear(x).tanh().sum()
        return torch.autograd.grad(energy, x, create_graph=True)[0] * self.factor


class WithPenalty(WithLinear):
    """Returns a penalty where there is a graph, as for training."""

    factor = 1

    def forward(self, x: torch.Tensor) -> Any:
        y = self.linear(x)
        penalty = {"penalty": self.factor * y.pow(2).sum(-1)} if torch.is_grad_enabled() else {}
        return {"y": y, **penalty}


@pytest.mark.filterwarnings("ignore:.*no rank communicated with another")
@pytest.mark.parametrize("made", [Forces, WithPenalty])
def test_modules_with_outputs_that_need_a_graph_have_one_and_are_compared(made: type[nn.Module]) -> None:
    def wrong(module: Any, mesh: Any) -> None:
        module.factor = 2

    al.check_parallel(made, lambda module, mesh: None, EXAMPLE, mesh=(2,), cases=8)
    with pytest.raises(AssertionError, match="outputs are not the sequential ones"):
        al.check_parallel(made, wrong, EXAMPLE, mesh=(2,), cases=12)


def test_a_difference_in_gradients_says_what_required_none() -> None:
    class Block(nn.Module):
        reentrant = False

        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> Any:
            return checkpoint(self.linear, x, use_reentrant=self.reentrant)

    def reentrant(module: Any, mesh: Any) -> None:
        module.reentrant = True

    with pytest.warns(UserWarning, match="None of the inputs"), pytest.raises(AssertionError) as raised:
        al.check_parallel(Block, reentrant, EXAMPLE, cases=10)
    assert "without             gradients of x, which require none here" in str(raised.value)


# Arguments that cannot be right.


def test_a_context_is_given_by_a_function_that_makes_it() -> None:
    with pytest.raises(SubjectError, match="not a function that makes a context"):
        al.check_parallel(linear, lambda m, mesh: None, EXAMPLE, context=torch.no_grad())  # type: ignore[arg-type]


def test_a_function_that_returns_one_and_the_same_module_is_refused() -> None:
    module = linear()
    told = "two calls return modules with one and the same parameter weight: give the module itself"
    with pytest.raises(SubjectError, match=told):
        al.check_parallel(lambda: module, lambda module, mesh: None, EXAMPLE, cases=2)


@pytest.mark.filterwarnings("ignore:The `NO_SHARD` sharding strategy is deprecated:FutureWarning")
def test_modules_with_flattened_parameters_that_are_whole_go_backward_after_every_forward_pass() -> None:
    def whole(module: nn.Module, mesh: Any) -> nn.Module:
        return FullyShardedDataParallel(
            module,
            process_group=mesh.get_group(),
            use_orig_params=True,
            device_id=torch.device("cpu"),
            sharding_strategy=ShardingStrategy.NO_SHARD,
        )

    al.check_parallel(linear, whole, EXAMPLE, data_parallel="mean", mesh=(2,), cases=12, frozen=())


def test_collectives_on_a_thread_of_the_users_own_are_told_where_they_belong() -> None:
    def reduce_elsewhere(module: nn.Module) -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(dist.all_reduce, torch.zeros(2)).result()

    with pytest.raises(
        AssertionError, match="call collectives on the thread that runs the operator or module"
    ):
        al.check_parallel(linear, lambda m, mesh: None, EXAMPLE, after_backward=reduce_elsewhere, cases=2)


def test_outputs_of_another_type_are_compared_within_the_rounding_that_is_declared() -> None:
    def in_half_precision(module: Any, mesh: Any) -> None:
        fully_shard(module, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))

    def declared(draw: Any, ranks: int) -> dict[str, Any]:
        return dict(inputs=(4, 3), dtype="float32", rounding=2.0**-7)

    def undeclared(draw: Any, ranks: int) -> dict[str, Any]:
        return dict(inputs=(4, 3), dtype="float32")

    al.check_parallel(linear, in_half_precision, declared, data_parallel="mean", cases=5)
    advised = 'y is of torch.bfloat16, and the sequential one of torch.float32; .* say rounding="bfloat16"'
    with pytest.raises(AssertionError, match=advised):
        al.check_parallel(linear, in_half_precision, undeclared, data_parallel="mean", cases=5)


def test_gradients_that_are_reduced_in_float16_do_not_overflow() -> None:
    def compressed(module: Any, mesh: Any) -> Any:
        made = DistributedDataParallel(module, process_group=mesh.get_group())
        made.register_comm_hook(None, fp16_compress_hook)
        return made

    def declared(draw: Any, ranks: int) -> dict[str, Any]:
        return dict(inputs=(6, 3), dtype="float32", rounding="float16")

    al.check_parallel(linear, compressed, declared, data_parallel="mean")


@pytest.mark.parametrize(("dtype", "other"), [("float32", torch.bfloat16), ("complex128", torch.complex64)])
def test_the_rounding_that_a_module_declares_holds_for_what_wraps_it(dtype: str, other: torch.dtype) -> None:
    class Cast(nn.Module):
        rounding = 2.0**-6

        def __init__(self) -> None:
            super().__init__()
            self.linear = linear()
            self.is_cast = False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.linear(x)
            return y.to(other) if self.is_cast else y

    def wrapped(module: Any, mesh: Any) -> Any:
        module.is_cast = True
        return DistributedDataParallel(module, process_group=mesh.get_group())

    def drawn(draw: Any, ranks: int) -> dict[str, Any]:
        return dict(inputs=(4, 3), dtype=dtype)

    al.check_parallel(Cast, wrapped, drawn, data_parallel="mean", cases=5)


class AveragedBack(torch.autograd.Function):
    """Hands its gradient over before it is there, as functional collectives allow."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        everyone: Any = dist.group.WORLD
        return functional.all_reduce(gradients[0], "avg", everyone)


class Averaging(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(AveragedBack.apply(x))  # type: ignore[no-untyped-call]


def test_gradients_of_functional_collectives_are_waited_for_after_every_pass() -> None:
    def averaging(module: nn.Linear, mesh: Any) -> nn.Module:
        return Averaging(3, 2)

    al.check_parallel(linear, averaging, EXAMPLE, mesh=(2,))


# Gradients below a threshold.


class Clipped(torch.optim.SGD):
    """Divides gradients by their norm where that is larger than 1; a wrong one does so on several ranks whatever it is."""

    def __init__(self, parameters: Any, *, is_right: bool) -> None:
        super().__init__(parameters, lr=0.1)
        self.is_right = is_right

    def step(self, closure: Any = None) -> None:
        gradients = [parameter.grad for group in self.param_groups for parameter in group["params"]]
        norm = nn.utils.get_total_norm(gradients)
        least = 1.0 if self.is_right or dist.get_world_size() == 1 else 0.0
        for gradient in gradients:
            gradient /= norm.clamp(min=least)
        super().step()


@pytest.mark.parametrize("is_right", [True, False])
def test_gradients_are_below_the_norm_of_a_clip_where_cotangents_are_small(is_right: bool) -> None:
    @al.subject.parallel(
        linear, lambda module, mesh: None, optimizer=partial(Clipped, is_right=is_right), steps=2
    )
    def subject(draw: Any, ranks: int) -> dict[str, Any]:
        return dict(inputs=(4, 3))

    parameters = dict(inputs=(4, 3), mesh=(2,))
    case = Case("subject", "training", 2, parameters, InputSetting(7680, "torch"), 0)
    judgement = al.SimulatedWorld(2).lead(body(subject), lambda run: run_case(run, case))
    assert judgement is not None
    verdict = judgement.verdict
    assert verdict.is_coherent == is_right
    assert is_right or ("cotangents", "far below 1, so that gradients are small") in verdict.lines


class Kinked(nn.Linear):
    """Its derivative where a result is 0 is that of one side or of the other."""

    takes_left = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        return torch.relu(y) if self.takes_left else y * (y >= 0)


@pytest.mark.parametrize("seed", range(4))
def test_gradcheck_looks_at_the_pass_whose_gradient_is_not_the_sequential_one(seed: int) -> None:
    def parallelize(module: nn.Module, mesh: Any) -> None:
        module.takes_left = False

    @al.subject.parallel(lambda: Kinked(1, 2, bias=False), parallelize)
    def subject(draw: Any, ranks: int) -> dict[str, Any]:
        return dict(inputs=(3, 1))

    verdict = investigate(al.SimulatedWorld(1), subject, "gradients", Budget(5, seed=seed)).verdict
    assert dict(verdict.lines)["sequential twin"].startswith("gradcheck fails")


# A buffer that a forward pass changes in place, and its backward pass needs: none goes backward after another forward pass


class Rescaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 3))
        self.register_buffer("largest", torch.ones(()))

    def largest_of_all(self, x: torch.Tensor) -> torch.Tensor:
        return x.abs().amax()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.largest.copy_(self.largest_of_all(x.detach()).clamp(min=1))
        scaled: torch.Tensor = (x @ self.weight.T) / self.largest
        return scaled


class RescaledByAll(Rescaled):
    def largest_of_all(self, x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(largest := super().largest_of_all(x), op=dist.ReduceOp.MAX)
        return largest


def test_a_module_that_changes_in_place_what_its_backward_pass_needs_goes_backward_at_once() -> None:
    def rescaled_by_all(module: nn.Module, mesh: Any) -> None:
        module.__class__ = RescaledByAll

    def reduced(module: nn.Module) -> None:
        for parameter in module.parameters():
            if parameter.requires_grad:
                dist.all_reduce(parameter.grad)

    options: Any = dict(data_parallel="sum", after_backward=reduced, cases=8, mesh=(2,))
    al.check_parallel(Rescaled, rescaled_by_all, EXAMPLE, **options)
    with pytest.raises(AssertionError, match="outputs are not the sequential ones"):
        al.check_parallel(Rescaled, lambda module, mesh: None, EXAMPLE, **options)


# What rectifies in its own way.


class Fused(torch.autograd.Function):
    """A bias and a rectifier in one, as Megatron fuses them; the gradient is stopped unless the output is positive."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        y = (x + bias).relu()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        (y,) = ctx.saved_tensors
        passed = gradient * (y > 0)
        return passed, passed.sum(0)


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(3, 2), nn.Linear(2, 3)

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        return self.up(x).relu()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.hidden(x))


class FusedPerceptron(Perceptron):
    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        return Fused.apply(F.linear(x, self.up.weight), self.up.bias)  # type: ignore[no-any-return, no-untyped-call]


@pytest.mark.parametrize("check", ["gradients", "training"])
def test_a_rectifier_that_passes_no_gradient_through_nan_is_right(check: str) -> None:
    """Infinite inputs of a linear layer make NaN, of which torch's rectifier passes the gradient on."""

    def fused(module: nn.Module, mesh: Any) -> nn.Module:
        made = FusedPerceptron()
        made.up, made.down = module.up, module.down  # type: ignore[assignment]
        return made

    declare = al.subject.parallel(Perceptron, fused, optimizer=partial(torch.optim.SGD, lr=0.1), steps=2)
    subject = declare(lambda draw, ranks: dict(inputs=(2, 3)))
    found = investigate(al.SimulatedWorld(ranks=1), subject, check, Budget(100, seed=1, shrinking=0))
    assert found.verdict.is_coherent, f"{found.case}\n{found.verdict}"


def test_a_module_that_takes_one_size_is_told_of_the_other_batch() -> None:
    class Segments(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 3)

        def forward(self, x: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
            return x.new_zeros(5, 3).index_add(0, segments, self.linear(x))

    def increasing(x: torch.Tensor, numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, torch.arange(len(numbers)) * (numbers.abs().amax() > 0)

    def cases(draw: Any, ranks: int) -> dict[str, Any]:
        return dict(inputs=[(4, 2), (4,)])

    told = r"another batch before, of shape \(8, 2\), \(8,\): for a module that is made for one size, say one_batch_size=True"
    with pytest.raises(AssertionError, match=told):
        al.check_parallel(Segments, as_it_is, cases, mesh=(1,), prepare=increasing, cases=40)
    al.check_parallel(Segments, as_it_is, cases, mesh=(1,), prepare=increasing, one_batch_size=True, cases=40)


class Relative(nn.Linear):
    """Weighs the rows of a sequence by their positions relative to its length, or to the first one if it `keeps` that."""

    def __init__(self) -> None:
        super().__init__(2, 3)
        self.keeps, self.first = False, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.first = self.first if self.keeps and self.first else x.shape[1]
        return super().forward(x) * (torch.arange(x.shape[1]) / self.first)[:, None]


def test_a_length_of_a_sequence_that_is_kept_from_the_first_batch_is_found() -> None:
    def keep_the_first(module: Any, mesh: Any) -> None:
        module.keeps = True

    subject = al.subject.parallel(Relative, keep_the_first)(lambda draw, ranks: dict(inputs=(2, 3, 2)))
    found = investigate(al.SimulatedWorld(ranks=1), subject, "gradients", Budget(20, seed=1, shrinking=0))
    assert not found.verdict.is_coherent
    assert "with a larger batch" in dict(found.verdict.lines)["before"]


# Gradients that are views of a cotangent


class Shifted(nn.Module):
    """Of a batch of one, the gradient of its parameter is the cotangent in another shape."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.shifted()

    def shifted(self) -> torch.Tensor:
        return self.shift.view(1, 3, 1)


class SumsInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view(1, 3, 1)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        (gradient,) = gradients
        if gradient.is_contiguous():
            dist.all_reduce(gradient)
        return gradient.view(3)


class ShiftedWithSums(Shifted):
    def shifted(self) -> torch.Tensor:
        shifted: torch.Tensor = SumsInPlace.apply(self.shift)  # type: ignore[no-untyped-call]
        return shifted


def check_shifted(parallelize: Any, **options: Any) -> None:
    al.check_parallel(Shifted, parallelize, torch.zeros(2, 3, 1), mesh=(2,), frozen=(), cases=6, **options)


def test_gradients_may_be_reduced_in_place_where_torch_makes_them_views_of_a_cotangent() -> None:
    check_shifted(lambda module, mesh: DistributedDataParallel(module), data_parallel="mean")
    check_shifted(as_it_is, data_parallel="sum", after_backward=reduce_gradients)


def test_a_backward_pass_that_sums_a_cotangent_in_place_is_found_though_it_returns_a_view_of_it() -> None:
    with pytest.raises(AssertionError, match="writes into a cotangent"):
        check_shifted(lambda module, mesh: ShiftedWithSums(), data_parallel="sum")
