"""Hints on what optimisers do with gradients: reduce them in their steps, or keep those of one microbatch alone."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist

import adjointlab as al
from tests.torch_distributed.parallel_samples import EXAMPLE, as_it_is, model

pytestmark = pytest.mark.mpi_skip


class Reducing(torch.optim.SGD):
    """Takes means of gradients over all ranks in its step."""

    def step(self, closure: Any = None) -> Any:
        for parameter in (each for group in self.param_groups for each in group["params"]):
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()
        return super().step(closure)


def test_of_gradients_that_the_optimiser_reduces_only_the_steps_are_checked(
    world: al.SimulatedWorld,
) -> None:
    def check(optimizer: type[torch.optim.Optimizer], **given: Any) -> None:
        made: Any = partial(optimizer, lr=0.1)
        given |= dict(optimizer=made, steps=2, frozen=(), mesh=(2,), cases=6, world=world)
        al.check_parallel(model(), as_it_is, EXAMPLE, data_parallel="mean", **given)

    check(Reducing, checks=["training"])
    missing = r"parameter gradient is not (.|\n)* a mean over the ranks is missing"
    with pytest.raises(AssertionError, match=f"{missing}; but parameters are right after the steps: "):
        check(Reducing)
    with pytest.raises(AssertionError, match=f"{missing}\n"):
        check(torch.optim.SGD)


class WaitedFor(torch.optim.SGD):
    """Begins to reduce gradients in the backward pass, and waits in its step for what it began last."""

    def __init__(self, parameters: Any, lr: float) -> None:
        of_all = list(parameters)
        super().__init__(of_all, lr)
        self.pending: dict[torch.Tensor, Any] = {}
        for parameter in of_all:
            parameter.register_post_accumulate_grad_hook(self.reduce)

    def reduce(self, parameter: torch.Tensor) -> None:
        self.pending[parameter] = dist.all_reduce(parameter.grad, async_op=True)

    def step(self, closure: Any = None) -> Any:
        for parameter, work in self.pending.items():
            work.wait()
            assert parameter.grad is not None
            parameter.grad /= dist.get_world_size()
        self.pending.clear()
        return super().step(closure)


def test_a_request_that_a_second_microbatch_overwrites_is_put_down_to_it() -> None:
    failing = (
        r"request left open(.|\n)*right if each step has one backward pass, and wrong if .* two microbatches"
    )
    given: Any = dict(optimizer=partial(WaitedFor, lr=0.1), steps=1, frozen=(), mesh=(2,), cases=10)
    with pytest.raises(AssertionError, match=failing):
        al.check_parallel(model(), as_it_is, EXAMPLE, data_parallel="mean", checks=["training"], **given)
