"""Passes without gradients, with some of them, or through a graph again give what one with all does, and leave nothing behind."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import adjointlab as al
from adjointlab.checks.context import InputSetting
from adjointlab.checks.memory_orders import RESTORED
from adjointlab.checks.told import hints_told
from adjointlab.checks.verdict import Verdict
from adjointlab.engine.case import Case
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget
from adjointlab.replaying import replay

pytestmark = pytest.mark.mpi_skip


def is_differentiated(x: torch.Tensor) -> bool:
    return torch.is_grad_enabled() and x.requires_grad


def doubled(comm: Any, x: torch.Tensor) -> torch.Tensor:
    return 2 * x


def doubled_in_place(comm: Any, x: torch.Tensor) -> torch.Tensor:
    return doubled(comm, x) if is_differentiated(x) else x.mul_(2)


def doubled_in_training(comm: Any, x: torch.Tensor) -> torch.Tensor:
    return doubled(comm, x) if is_differentiated(x) else x.clone()


def of_function(function: Any) -> Verdict:
    @al.subject.autograd(function)
    def lines(draw: Any, ranks: int) -> dict[str, Any]:
        space = al.Space(draw(al.strategies.layouts(ranks)))
        return dict(domain=space, codomain=space)

    return investigate(al.SimulatedWorld(2), lines, "purity", Budget(20, seed=1, shrinking=0)).verdict


def test_a_function_does_the_same_without_gradients() -> None:
    assert of_function(doubled).is_coherent

    wrong = of_function(doubled_in_place)
    assert wrong.headline == "forward writes into its argument"
    assert dict(wrong.lines)["only"] == "under torch.no_grad()"

    wrong = of_function(doubled_in_training)
    assert wrong.headline == "forward under torch.no_grad() gives something else than with gradients"
    assert {"element", "with gradients", "under torch.no_grad()"} <= set(dict(wrong.lines))


class Restoring(torch.autograd.Function):
    """Twice x; the backward pass works in the memory of its argument, and leaves there what there was."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        (gradient,) = gradients
        result = -2 * gradient.neg_()
        gradient.neg_()
        return result


def test_what_is_written_and_restored_is_found() -> None:
    wrong = of_function(lambda comm, x: Restoring.apply(x))
    assert wrong.headline == "adjoint writes into its argument"
    assert RESTORED in wrong.lines


def hooked(comm: Any, x: torch.Tensor) -> torch.Tensor:
    y = 2 * x
    y.register_hook(lambda gradient: gradient)
    return y


def test_a_function_that_needs_a_gradient_has_no_form_without_one() -> None:
    assert of_function(hooked).is_coherent


class SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, comm: Any) -> torch.Tensor:
        ctx.comm = comm
        return torch.as_tensor(comm.allreduce(x.numpy()))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return torch.as_tensor(ctx.comm.allreduce(gradients[0].numpy())), None


def hooked_on_one_rank(comm: Any, x: torch.Tensor) -> torch.Tensor:
    """Rank 0 looks at its gradient; without one it raises, while the others wait for it in the sum."""
    if comm.rank == 0:
        x = x.clone()
        x.register_hook(lambda gradient: gradient)
    return SumOverRanks.apply(x, comm)  # type: ignore[no-any-return]


class FreedOnOneRank(SumOverRanks):
    """Rank 0 does not go through its graph again."""

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        total = SumOverRanks.backward(ctx, *gradients)
        if ctx.comm.rank == 0:
            del ctx.comm
        return total


def test_a_form_that_one_rank_refuses_while_others_wait_for_it_is_left_out() -> None:
    for function in (hooked_on_one_rank, FreedOnOneRank):
        verdict = of_copies(function)
        assert verdict.is_coherent, verdict


def test_a_form_that_one_rank_refuses_is_left_out_of_proofs_and_replays_too() -> None:
    def two_ranks() -> Any:
        space = al.Space(al.Layout((3,), al.Partition((2,)), axes=(None,)), types=("partial",))
        return {"domain": space, "codomain": space.dual}

    @al.subject.autograd(hooked_on_one_rank)
    def lines(draw: Any, ranks: int) -> dict[str, Any]:
        return two_ranks()

    for check in ("purity", "proof"):
        case = Case("hooked_on_one_rank", check, 2, two_ranks(), InputSetting(1, "torch"), 0)
        result = replay(al.SimulatedWorld(2), lines, case)
        assert result.verdict.is_coherent, result.verdict


class Summed(torch.autograd.Function):
    is_wrong = False

    @classmethod
    def forward(cls, ctx: Any, a: torch.Tensor, b: torch.Tensor, comm: Any) -> torch.Tensor:
        return a + 2 * b

    @classmethod
    def backward(cls, ctx: Any, *gradients: torch.Tensor) -> Any:
        (y,) = gradients
        wanted = ctx.needs_input_grad
        factor = 1 if cls.is_wrong and not wanted[0] else 2
        return y if wanted[0] else None, factor * y if wanted[1] else None, None


class SummedWrongly(Summed):
    is_wrong = True


def of_two(function: Any, *, inputs: bool) -> Verdict:
    """The verdict on a function of two tensors, or of one that returns two."""

    @al.subject.autograd(function)
    def lines(draw: Any, ranks: int) -> dict[str, Any]:
        layout = draw(al.strategies.layouts(ranks))
        two = al.Space(al.Tensor(layout, name="a"), al.Tensor(layout, name="b"))
        one = al.Space(layout, name="y" if inputs else "x")
        return dict(domain=two, codomain=one) if inputs else dict(domain=one, codomain=two)

    return investigate(al.SimulatedWorld(2), lines, "purity", Budget(10, seed=1, shrinking=0)).verdict


def test_a_gradient_does_not_depend_on_which_others_are_required() -> None:
    assert of_two(Summed, inputs=True).is_coherent
    wrong = of_two(SummedWrongly, inputs=True)
    alone = "where one input at a time requires a gradient"
    assert wrong.headline == f"adjoint {alone} gives something else than where all do"
    assert {"where all do", alone} <= set(dict(wrong.lines))
    assert dict(wrong.lines)["element"].startswith("b[")


class Both(torch.autograd.Function):
    """x and 2x; where the loss depends on one of them, no gradient of the other is made up."""

    lost = False

    @classmethod
    def forward(cls, ctx: Any, x: torch.Tensor, comm: Any) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.set_materialize_grads(False)
        return x.clone(), 2 * x

    @classmethod
    def backward(cls, ctx: Any, *gradients: torch.Tensor | None) -> Any:
        of_one, of_two = gradients
        if of_one is None:
            return None if cls.lost else 2 * of_two, None  # type: ignore[operator]
        return of_one if of_two is None else of_one + 2 * of_two, None


class BothWrongly(Both):
    lost = True


class BothTogether(Both):
    """Right where the loss depends on both outputs, and an error elsewhere."""

    @classmethod
    def backward(cls, ctx: Any, *gradients: torch.Tensor | None) -> Any:
        of_one, of_two = gradients
        return of_one + 2 * of_two, None  # type: ignore[operator]


def left_on_one_rank(comm: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The second output has no graph on rank 0."""
    return 2 * x, torch.zeros_like(x) if comm.rank == 0 else x


def test_a_gradient_does_not_depend_on_which_outputs_the_loss_is_of() -> None:
    for right in (Both, BothTogether, left_on_one_rank):
        assert of_two(right, inputs=False).is_coherent, right
    wrong = of_two(BothWrongly, inputs=False)
    one = "where the loss depends on one output at a time"
    assert wrong.headline == f"adjoint {one} gives something else than where it depends on all"


class Kept(torch.autograd.Function):
    """2x; the factor is kept in a list."""

    how = "left"

    @classmethod
    def forward(cls, ctx: Any, x: torch.Tensor, comm: Any) -> torch.Tensor:
        ctx.factors = [2, 3]
        return 2 * x

    @classmethod
    def backward(cls, ctx: Any, *gradients: torch.Tensor) -> Any:
        (y,) = gradients
        factor = ctx.factors[0]
        if cls.how == "turned":
            ctx.factors.reverse()
        if cls.how == "freed":
            del ctx.factors
        return factor * y, None


class Turned(Kept):
    how = "turned"


class Freed(Kept):
    how = "freed"


def test_a_gradient_is_the_same_the_second_time_through_one_graph() -> None:
    assert of_function(Kept).is_coherent
    wrong = of_function(Turned)
    assert (
        wrong.headline == "adjoint the second time through one graph gives something else than the first time"
    )
    # What is freed can be used no more, and nobody gets a wrong gradient.
    assert of_function(Freed).is_coherent


class Transposing(torch.autograd.Function):
    """Its gradient has the strides of the input, and values as if it were contiguous."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, comm: Any) -> torch.Tensor:
        ctx.strides = x.stride()
        return x.clone(memory_format=torch.contiguous_format)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        values = gradients[0].clone(memory_format=torch.contiguous_format)
        return torch.as_strided(values, values.shape, ctx.strides), None


def test_inputs_of_a_backward_pass_lie_in_memory_as_the_cotangents_do() -> None:
    @al.subject.autograd(Transposing)
    def squares(draw: Any, ranks: int) -> dict[str, Any]:
        space = al.Space(al.Layout((2, 3), al.Partition((ranks,)), axes=[None, None]))
        return dict(domain=space, codomain=space)

    verdict = investigate(al.SimulatedWorld(2), squares, "adjoint", Budget(30, seed=1, shrinking=0)).verdict
    assert verdict.headline == "adjoint is not the transpose of forward"


class Scaled(nn.Module):
    """Keeps the weight as it is used, for generation, until the weight changes."""

    keeps_in_training = False

    def __init__(self, comm: Any = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, dtype=torch.float64))
        self.kept: tuple[int, torch.Tensor] | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled() and not self.keeps_in_training:
            return 2 * self.weight * x
        if self.kept is None or self.kept[0] != self.weight._version:
            weight = 2 * self.weight
            if not torch.is_grad_enabled():
                self.kept = self.weight._version, weight
        else:
            weight = self.kept[1]
        return weight * x


class KeptInTraining(Scaled):
    keeps_in_training = True


def of_layer(layer: Any, check: str) -> Any:
    @al.subject.layer(layer, Scaled)
    def copies(draw: Any, ranks: int) -> dict[str, Any]:
        whole = al.Layout((3,), al.Partition((ranks,)), axes=[None])
        space = al.Space(whole, types=("invariant",))
        weight = al.Tensor(whole, name="weight", types=("invariant",))
        return dict(domain=space, codomain=space, parameter_space=al.Space(weight))

    return investigate(al.SimulatedWorld(2), copies, check, Budget(50, seed=1)).verdict


def test_what_an_evaluation_leaves_behind_is_not_used_in_training() -> None:
    assert of_layer(Scaled, "gradients").is_coherent
    assert of_layer(KeptInTraining, "sequential").is_coherent

    wrong = of_layer(KeptInTraining, "gradients")
    assert wrong.headline == "the layer's parameter gradient is not the sequential one"
    assert dict(wrong.lines)["before"].startswith("the same instance has gone forward without gradients")
    texts = [hint.text for hint in hints_told(wrong)]
    assert any("wrong if the instance has gone forward without gradients" in text for text in texts)


class Shared(torch.autograd.Function):
    """The sum over the ranks, with a forward mode of its own."""

    factor = 1

    @staticmethod
    def forward(x: torch.Tensor, comm: Any) -> torch.Tensor:
        return torch.as_tensor(comm.allreduce(x.numpy()))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: torch.Tensor) -> None:
        ctx.comm = inputs[1]

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return torch.as_tensor(ctx.comm.allreduce(gradients[0].numpy())), None

    @classmethod
    def jvp(cls, ctx: Any, *tangents: torch.Tensor) -> torch.Tensor:
        return cls.factor * torch.as_tensor(ctx.comm.allreduce(tangents[0].numpy()))


class SharedWrongly(Shared):
    factor = 2


class WithoutForwardMode(Shared):
    jvp = torch.autograd.Function.jvp


def of_copies(function: Any) -> Verdict:
    @al.subject.autograd(function)
    def lines(draw: Any, ranks: int) -> dict[str, Any]:
        space = al.Space(al.Layout((3,), al.Partition((ranks,)), axes=(None,)), types=("partial",))
        return dict(domain=space, codomain=space.dual)

    return investigate(al.SimulatedWorld(3), lines, "purity", Budget(10, seed=1, shrinking=0)).verdict


@pytest.mark.usefixtures("forward_mode")
def test_a_forward_mode_of_a_functions_own_is_its_derivative() -> None:
    def inside(comm: Any, x: torch.Tensor) -> torch.Tensor:
        return 2 * SharedWrongly.apply(x, comm)  # type: ignore[no-any-return]

    def refused(comm: Any, x: torch.Tensor) -> torch.Tensor:
        return WithoutForwardMode.apply(SharedWrongly.apply(x, comm), comm)  # type: ignore[no-any-return]

    def tangent(comm: Any, x: torch.Tensor) -> torch.Tensor:
        _, along = torch.func.jvp(torch.sin, (torch.zeros_like(x),), (x,))
        return Shared.apply(along, comm)  # type: ignore[no-any-return]

    for right in (Shared, WithoutForwardMode, refused, tangent):
        verdict = of_copies(right)
        assert verdict.is_coherent, verdict
    for wrong in (SharedWrongly, inside):
        verdict = of_copies(wrong)
        assert (
            verdict.headline == "forward in forward mode (its jvp) gives something else than in a plain call"
        )


def broken_in_evaluation(comm: Any, x: torch.Tensor) -> torch.Tensor:
    return 2 * x if torch.is_grad_enabled() else (2 * x).reshape(-1, 7 * x.numel() + 1)


def rounded_in_evaluation(comm: Any, x: torch.Tensor) -> torch.Tensor:
    return 2 * x if torch.is_grad_enabled() else (2 * x).to(torch.bfloat16)


def twice_in_evaluation(comm: Any, x: torch.Tensor) -> Any:
    return 2 * x if torch.is_grad_enabled() else (2 * x, 2 * x)


def test_a_function_that_breaks_without_gradients_does_not_pass_for_one_without_that_form() -> None:
    assert "raised RuntimeError" in of_function(broken_in_evaluation).headline


@pytest.mark.parametrize(
    ("function", "told"),
    [(rounded_in_evaluation, "bfloat16"), (twice_in_evaluation, "returned 2 tensors, but the space has 1")],
)
def test_outputs_without_gradients_are_in_the_declared_space(function: Any, told: str) -> None:
    wrong = of_function(function)
    assert wrong.headline == "an output is not in its declared space"
    assert any("under torch.no_grad()" in text and told in text for _, text in wrong.lines)
