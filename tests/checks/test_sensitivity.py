"""The rounding of a sequential module, measured on itself: of what it writes, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import adjointlab as al
from adjointlab.engine.search import Budget, investigate
from adjointlab.worlds.simulated.world import SimulatedWorld

pytest.importorskip("torch")

import torch
from torch import nn

from adjointlab.checks.layers.sensitivity import measured


def in_place(x: Any) -> Any:
    y = torch.zeros_like(x)
    y += x / 3
    torch.div(y, 7, out=y)
    return y


def of_several_tensors(x: Any) -> Any:
    y = torch.zeros_like(x)
    torch._foreach_add_([y], [x / 3])
    return y


def running_statistics(x: Any) -> Any:
    module = nn.BatchNorm1d(x.shape[1], dtype=x.dtype)
    module(x)
    return module.running_var


@pytest.mark.parametrize("function", [in_place, of_several_tensors, running_statistics])
def test_what_is_written_in_place_is_as_uncertain_as_it_is_rounded(function: Callable[[Any], Any]) -> None:
    x = torch.arange(12, dtype=torch.float64).reshape(4, 3)
    (result,), (allowed,) = (each["y"] for each in measured(lambda: {"y": (function(x).numpy(),)}))
    assert 0 < allowed < 1e-12 * abs(result).max()


def allowed(function: Callable[[Any], Any], x: Any) -> float:
    """The difference from `function` of `x` that rounding may make."""
    _, allowances = measured(lambda: {"y": (function(x).numpy(),)})
    return allowances["y"][0]


def test_a_result_that_cancels_to_zero_is_as_uncertain_as_its_terms() -> None:
    x = torch.tensor([2e3, 1e3], dtype=torch.float32)
    assert allowed(lambda x: x.sum() - x.flip(0).sum(), x) >= 1e-4


def test_a_normalisation_of_equal_values_is_as_uncertain_as_the_values_times_its_factor() -> None:
    x = torch.full((2, 1), 2.0**14 + 1)
    assert torch.finfo(torch.float32).eps * x.max() / 1e-5**0.5 <= allowed(nn.BatchNorm1d(1, affine=False), x)


@pytest.mark.parametrize("operations_before", range(24))  # other errors each
def test_errors_of_one_value_do_not_cancel_in_all_samples(operations_before: int) -> None:
    """The weight of nearly 1 is wrong as a result of softmax and as an argument of its backward pass, and nothing else matters."""

    def gradient(keys: Any) -> Any:
        for _ in range(operations_before):
            keys.sum()
        q = torch.tensor([[3.0]], dtype=torch.float64, requires_grad=True)
        torch.softmax(q @ keys, -1).backward(torch.tensor([[-6.0, 6.0, 8.0]], dtype=torch.float64))
        return q.grad

    assert allowed(gradient, torch.tensor([[3.0, -4.0, -3.0]], dtype=torch.float64)) > 1e-14


def test_a_difference_inside_an_operation_is_as_uncertain_as_its_terms() -> None:
    def derivative(logarithms: Any) -> Any:
        gradient = torch.tensor([-0.005, -3.0])
        return torch.ops.aten._log_softmax_backward_data(gradient, logarithms, 0, torch.float32)

    # -3 + 3.005 · 0.9975
    assert allowed(derivative, torch.log_softmax(torch.tensor([-3.0, 3.0]), 0)) >= 1e-6


def test_nothing_is_said_of_a_number_that_the_least_error_makes_a_nan_of() -> None:
    x = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)
    assert allowed(lambda x: torch.sqrt(x.sum() - x.sum()), x) == torch.inf


@pytest.mark.parametrize("function", [lambda x: torch.softmax(x, 0), lambda x: torch.exp(x - x.max())])
def test_what_is_masked_is_as_certain_as_the_rest(function: Callable[[Any], Any]) -> None:
    assert allowed(function, torch.tensor([-torch.inf, 0.1, 0.2], dtype=torch.float64)) < 1e-13


def test_integers_at_a_kink_are_exact() -> None:
    def of_a_tie(x: Any) -> Any:
        return torch.relu(x.sum()) * 1e4 + (x.sum() > 0)

    x = torch.tensor([3.0, -1.0, -2.0], dtype=torch.float32)
    assert allowed(of_a_tie, x) < 1e-6


def test_wrong_running_statistics_are_found_where_no_rounding_is_declared() -> None:
    def norm(momentum: float) -> Any:
        return nn.BatchNorm1d(3, momentum=momentum, affine=False, dtype=torch.float64)

    @al.subject.layer(lambda comm: norm(0.2), lambda: norm(0.1), ranks=(1,), name="Statistics")
    def subject(draw: Any, ranks: int) -> dict[str, Any]:
        one = al.Partition((1,))
        space = al.Space(al.Layout((4, 3), one, axes=(None, 0)))
        statistics = [al.Tensor(al.Layout((3,), one), name=name) for name in ("running_mean", "running_var")]
        count = al.Tensor(al.Layout((), one, axes=()), "int64", name="num_batches_tracked")
        return {"domain": space, "codomain": space, "buffer_space": al.Space(*statistics, count)}

    report = investigate(
        SimulatedWorld(ranks=1), subject, "sequential", Budget(cases=10, seed=1, shrinking=0.1)
    )
    assert report.verdict.headline == "the layer's buffers are not the sequential ones", report.verdict
