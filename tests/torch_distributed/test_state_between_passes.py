"""State that a module keeps from one pass for a later one: counts of the first batch, results for the backward pass, buffers that steps change."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import adjointlab as al
from tests.torch_distributed.sums import reduce_gradients

pytestmark = pytest.mark.mpi_skip

EXAMPLE = torch.zeros(4, 3)


class Centred(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0)


class CentredTogether(nn.Module):
    """Asks for the number of rows in its backward pass: in the first one alone, if it `keeps` that."""

    def __init__(self, *, keeps: bool) -> None:
        super().__init__()
        self.keeps, self.rows = keeps, 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = Centring.apply(x, self)  # type: ignore[no-untyped-call]
        return result


class Centring(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, owner: CentredTogether) -> torch.Tensor:
        ctx.owner, ctx.rows = owner, len(x)
        sums = torch.cat([x.sum(0), x.new_tensor([len(x)])])
        dist.all_reduce(sums)
        return x - sums[:-1] / sums[-1]

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (gradient,) = gradients
        if not ctx.owner.keeps or not ctx.owner.rows:
            rows = torch.tensor([float(ctx.rows)])
            dist.all_reduce(rows)
            ctx.owner.rows = rows.item()
        sums = gradient.sum(0)
        dist.all_reduce(sums)
        return gradient - sums / ctx.owner.rows, None


def test_what_a_backward_pass_keeps_from_the_first_batch_shows_with_another_one() -> None:
    def check(*, keeps: bool) -> None:
        al.check_parallel(
            Centred,
            lambda module, mesh: CentredTogether(keeps=keeps),
            EXAMPLE,
            data_parallel="sum",
            mesh=(2,),
            cases=12,
        )

    check(keeps=False)
    with pytest.raises(AssertionError, match=r"has gone forward and backward, with a (larger|smaller) batch"):
        check(keeps=True)


class Weighted(nn.Module):
    """If it `keeps` the weight of a validation, it takes that in the training after it."""

    def __init__(self, *, keeps: bool) -> None:
        super().__init__()
        self.weight, self.keeps = nn.Parameter(torch.ones(3)), keeps
        self.kept: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.keeps and not self.training:
            self.kept = self.weight.detach().clone()
        return x * (self.weight if self.kept is None or not self.training else self.kept)


def test_what_a_validation_keeps_is_not_used_in_the_training_after_it() -> None:
    def check(*, keeps: bool) -> None:
        al.check_parallel(
            partial(Weighted, keeps=False), lambda module, mesh: Weighted(keeps=keeps), EXAMPLE, mesh=(1,)
        )

    check(keeps=False)
    with pytest.raises(AssertionError, match="gone forward without gradients in evaluation mode"):
        check(keeps=True)


class Noting(nn.Linear):
    """Notes the modes in which the parallel module has been called."""

    modes: set[bool] | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.modes is not None:
            self.modes.add(self.training)
        return super().forward(x)


@pytest.mark.parametrize("fixed", [{}, {"evaluated": False}, {"training": True}, {"part": True}])
def test_a_validation_comes_before_unless_a_mode_is_fixed(fixed: dict[str, bool]) -> None:
    modes_by_case: list[set[bool]] = []

    def make(*, part: bool = False) -> nn.Module:
        return nn.Sequential(nn.Identity().train(not part), Noting(3, 2))

    def parallelize(module: Any, mesh: Any) -> None:
        module[1].modes = set()
        modes_by_case.append(module[1].modes)

    al.check_parallel(make, parallelize, lambda draw, ranks: dict(inputs=(4, 3), **fixed), mesh=(1,))
    assert ({True, False} in modes_by_case) == (not fixed)
    assert ({False} in modes_by_case) == (not fixed or "part" in fixed)


class Squared(nn.Module):
    """Keeps its inputs for its backward passes, and takes the first first, or the last."""

    def __init__(self, takes: int | None) -> None:
        super().__init__()
        self.takes = takes
        self.kept: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.takes is None:
            return x * x
        result: torch.Tensor = Squaring.apply(x, self, torch.is_grad_enabled())  # type: ignore[no-untyped-call]
        return result


class Squaring(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, owner: Squared, will_go_back: bool) -> torch.Tensor:
        ctx.owner = owner
        if will_go_back and ctx.needs_input_grad[0]:
            owner.kept.append(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return 2 * ctx.owner.kept.pop(ctx.owner.takes) * gradients[0], None, None


@pytest.mark.parametrize("takes", [0, -1])
def test_what_is_kept_for_one_order_of_backward_passes_shows_in_the_other(takes: int) -> None:
    with pytest.raises(AssertionError, match="input gradient is not the sequential one"):
        al.check_parallel(
            partial(Squared, None), lambda m, mesh: Squared(takes), EXAMPLE, mesh=(1,), cases=40
        )


class Counting(nn.Module):
    """Counts the rows of a training loop in a buffer, which a hook of the optimiser changes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.together = nn.Linear(3, 2), False
        self.register_buffer("rows", torch.zeros(1))
        self.seen = torch.zeros(1)
        for parameter in self.parameters():
            held: Any = parameter
            held.owner = self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += len(x)
        result: torch.Tensor = self.linear(x)
        return result

    def count(self, *_: object) -> None:
        if self.together:
            dist.all_reduce(self.seen)
        self.rows: torch.Tensor = self.rows + self.seen
        self.seen.zero_()


def counting_sgd(parameters: Iterator[Any]) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(parameters, lr=0.5)
    optimizer.register_step_post_hook(optimizer.param_groups[0]["params"][0].owner.count)
    return optimizer


def reduced(module: Counting, mesh: Any, *, together: bool) -> None:
    module.together = together


def test_buffers_that_steps_change_are_compared_after_them() -> None:
    def check(*, together: bool) -> None:
        al.check_parallel(
            Counting,
            partial(reduced, together=together),
            EXAMPLE,
            data_parallel="sum",
            mesh=(2,),
            after_backward=reduce_gradients,
            optimizer=counting_sgd,
            steps=2,
            cases=6,
        )

    check(together=True)
    with pytest.raises(
        AssertionError, match="the layer's buffers after the steps are not the sequential ones"
    ):
        check(together=False)
