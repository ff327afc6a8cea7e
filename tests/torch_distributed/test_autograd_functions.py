"""Functions that torch differentiates: what they return is taken as a caller takes it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from hypothesis import strategies as st
from torch.distributed.tensor import Shard

import adjointlab as al
from adjointlab.checks.verdict import Figure, Status
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget

BUDGET = Budget(10, ranks=3, seed=1)


def summed(x: torch.Tensor) -> torch.Tensor:
    return functional.all_reduce(x, "sum", dist.group.WORLD)


def summed_on_first(x: torch.Tensor) -> torch.Tensor:
    total = functional.all_reduce(x, "sum", dist.group.WORLD)
    return total if dist.get_rank() == 0 else total[:0]  # nothing, in another shape than (0, 0)


@pytest.mark.parametrize("function", [summed, summed_on_first])
def test_results_of_functional_collectives_are_waited_for_and_differentiated(
    world: al.SimulatedWorld, function: Any
) -> None:
    @al.subject.autograd(function, process_group=True)
    def sums(draw: Any, ranks: int) -> dict[str, Any]:
        each = al.Space(al.Layout((2 * ranks, 3), al.Partition((ranks, 1))))
        first = al.Space(al.Layout((2, 3), al.Partition((1, 1), (0,))))
        return dict(domain=each, codomain=each if function is summed else first)

    result = investigate(world, sums, "adjoint", BUDGET)
    assert result.status is Status.COHERENT, result.verdict


class Gathered(torch.autograd.Function):
    """A function whose gradient is a result of a functional collective, for which only who uses it waits."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return functional.all_gather_tensor(x, 0, dist.group.WORLD)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return functional.reduce_scatter_tensor(gradient.contiguous(), "sum", 0, dist.group.WORLD)


@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
@pytest.mark.parametrize("check", ["purity", "reentrancy"])
def test_a_gradient_that_is_a_result_of_a_functional_collective_is_waited_for(
    world: al.SimulatedWorld, check: str
) -> None:
    @al.subject.autograd(Gathered, process_group=True)
    def gathers(draw: Any, ranks: int) -> dict[str, Any]:
        spaces = [al.Space.of_dtensor((ranks,), [kind], (2 * ranks, 3)) for kind in (Shard(0), "replicated")]
        return dict(domain=spaces[0], codomain=spaces[1])

    assert investigate(world, gathers, check, BUDGET).status is Status.COHERENT


def passed_on(comm: Any, x: torch.Tensor) -> torch.Tensor:
    return x.clone()


def without_return(comm: Any, x: torch.Tensor) -> Any:
    x.clone()


def in_numpy(comm: Any, x: torch.Tensor) -> Any:
    return x.detach().numpy()


def one_space(dtype: str = "float64") -> Any:
    def cases(draw: Any, ranks: int) -> dict[str, Any]:
        rows = draw(st.integers(0, 2)) if dtype == "float32" else 2
        each = al.Space(al.Layout((rows * ranks,), al.Partition((ranks,))), dtype=dtype)
        return dict(domain=each, codomain=each)

    return cases


@pytest.mark.parametrize(
    ("function", "made"),
    [(without_return, "None (is a `return` missing?)"), (in_numpy, "an object of the type numpy.ndarray")],
)
@pytest.mark.parametrize("check", ["adjoint", "reentrancy"])
def test_what_is_no_tensor_is_named_with_its_function_and_the_codomain(
    world: al.SimulatedWorld, function: Any, made: str, check: str
) -> None:
    verdict = investigate(world, al.subject.autograd(function)(one_space()), check, BUDGET).verdict
    assert verdict.headline == "an output is not in its declared space"
    assert dict(verdict.lines)["error"] == (
        f"{function.__name__} returned {made}, but the codomain wants a torch.Tensor of shape (2,) and type float64 on this rank"
    )


def test_spaces_of_integers_have_no_gradients(world: al.SimulatedWorld) -> None:
    verdict = investigate(
        world, al.subject.autograd(passed_on)(one_space("int64")), "adjoint", BUDGET
    ).verdict
    assert verdict.headline.startswith("the domain has a tensor of int64")


class WithAGroup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any = None) -> torch.Tensor:
        y = x.clone()
        dist.all_reduce(y, group=group)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0], None


def test_a_communicator_in_the_place_of_a_group_names_the_option(world: al.SimulatedWorld) -> None:
    verdict = investigate(world, al.subject.autograd(WithAGroup)(one_space()), "adjoint", BUDGET).verdict
    assert "ValueError: no process group is open, and " in verdict.headline
    assert "process_group=True" in verdict.headline


def test_cases_without_elements_are_not_counted_as_exact(world: al.SimulatedWorld) -> None:
    def doubled(comm: Any, x: torch.Tensor) -> torch.Tensor:
        return x + x  # two terms: within rounding, wherever there are any

    result = investigate(world, al.subject.autograd(doubled)(one_space("float32")), "adjoint", BUDGET)
    assert result.status is Status.COHERENT
    assert result.counts is not None
    assert result.counts.rejected
    assert result.exact == 0
    assert Figure.MISS_PROBABILITY not in result.figures
