"""A module that computes in half precision allows for large differences: how large those were that passed is said."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

import adjointlab as al
from adjointlab.checks.verdict import Figure
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget

pytestmark = pytest.mark.mpi_skip


class Autocast(nn.Module):
    factor = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.linear(x).float() * self.factor


@pytest.mark.parametrize(("factor", "least", "most"), [(1.0, 0.0, 2.0**-9), (1.02, 0.01, 0.04)])
@pytest.mark.parametrize("check", ["sequential", "gradients"])
def test_the_largest_difference_that_passed_is_a_figure_of_the_verdict(
    check: str, factor: float, least: float, most: float
) -> None:
    def changed(module: Any, mesh: Any) -> None:
        module.factor = factor

    @al.subject.parallel(Autocast, changed)
    def subject(draw: Any, ranks: int) -> dict[str, Any]:
        return dict(inputs=(4, 8), dtype="float32", training=True)

    result = investigate(al.SimulatedWorld(2), subject, check, Budget(20, seed=1))
    assert result.verdict.is_coherent
    assert least <= float(result.figures.get(Figure.ROUNDING, 0.0)) <= most


class Saturating(torch.nn.Module):
    """Computes in half precision, where the hyperbolic tangent of 4 is 1."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x.bfloat16()).to(x.dtype)


class Precise(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x)


def test_what_is_wrong_by_far_more_than_terms_could_round_is_not_told_to_need_a_reach() -> None:
    @al.subject.parallel(Precise, lambda module, mesh: Saturating())
    def subject(draw: Any, ranks: int) -> dict[str, Any]:
        return dict(inputs=(2, 1), dtype="float32", rounding=1e-12)

    verdict = investigate(al.SimulatedWorld(1), subject, "gradients", Budget(30, seed=1)).verdict
    assert not verdict.is_coherent
    assert not any("declare how large" in text for _, text in verdict.lines)


@pytest.mark.parametrize(("reach", "told"), [(0.0, True), (64.0, False)])
def test_what_cancels_beyond_the_declared_rounding_is_told_to_need_a_reach(reach: float, told: bool) -> None:
    @al.subject.parallel(Precise, lambda module, mesh: Saturating())
    def subject(draw: Any, ranks: int) -> dict[str, Any]:
        return dict(inputs=(2, 1), dtype="float32", rounding=2**-7, reach=reach)

    verdict = investigate(al.SimulatedWorld(1), subject, "gradients", Budget(30, seed=1)).verdict
    assert verdict.is_coherent == (not told)
    assert told == any(
        "or to `reach` if that is larger: declare how large" in text for _, text in verdict.lines
    )


@pytest.mark.parametrize(("factor", "is_measured"), [(1.0, False), (1.0 + 2.0**-47, True)])
def test_rounding_is_measured_only_where_results_differ_by_more_than_any_may(
    factor: float, is_measured: bool
) -> None:
    """A module is made three times a case, and more often to measure."""
    made: list[nn.Module] = []

    class Third(nn.Module):
        factor = 1.0

        def __init__(self) -> None:
            super().__init__()
            made.append(self)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x / 3 * self.factor

    def off(module: Any, mesh: Any) -> None:
        module.factor = factor

    @al.subject.parallel(Third, off)
    def subject(draw: Any, ranks: int) -> dict[str, Any]:
        return dict(inputs=(4, 8))

    result = investigate(al.SimulatedWorld(1), subject, "sequential", Budget(10, seed=1))
    assert result.verdict.is_coherent, result.verdict
    assert (len(made) > 3 * result.tried) == is_measured


class Strict(nn.Module):
    """Refuses arguments that are not exact, so that its rounding cannot be measured."""

    factor = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        different = x + torch.arange(x.shape[-1])  # errors of equal elements may cancel
        if not torch.equal(different * 4 - different * 2, different * 2):
            raise ValueError
        return x * self.factor


@pytest.mark.parametrize(("factor", "is_decided"), [(1.0, True), (1.5, False)])
def test_differences_that_nothing_can_be_said_of_are_no_verdict_where_they_are_many(
    factor: float, is_decided: bool
) -> None:
    def changed(module: Any, mesh: Any) -> None:
        module.factor = factor if mesh.size() == 3 else 1.0

    @al.subject.parallel(Strict, changed)
    def subject(draw: Any, ranks: int) -> dict[str, Any]:
        return dict(inputs=(4, 8))

    result = investigate(al.SimulatedWorld(3), subject, "sequential", Budget(20, seed=1))
    assert result.verdict.is_coherent == is_decided
    if not is_decided:
        assert "could be called neither right nor wrong" in result.verdict.headline
        assert (
            "the sequential layer raises ValueError if its operations have errors in their last digits"
            in str(result.verdict)
        )


@pytest.mark.parametrize(("asking", "again"), [(range(100), 1), ((), 0), ((2, 3, 6, 7), 2)])
def test_after_a_case_whose_judge_asked_for_rounding_the_next_is_measured_at_once(
    asking: Sequence[int], again: int
) -> None:
    factors: list[float] = []
    runs: list[nn.Module] = []

    class Third(nn.Module):
        factor = 1.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x / 3 * self.factor

    def off(module: Any, mesh: Any) -> None:
        runs.append(module)
        module.factor = 1.0 + factors[-1]

    @al.subject.parallel(Third, off)
    def subject(draw: Any, ranks: int) -> dict[str, Any]:
        factors.append(2.0**-47 if len(factors) in asking else 0.0)
        return dict(inputs=(4, 8))

    result = investigate(al.SimulatedWorld(1), subject, "sequential", Budget(10, seed=1))
    assert result.verdict.is_coherent, result.verdict
    assert len(runs) == result.tried + again


class Perceptron(nn.Module):
    rounding = "bfloat16"

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(nn.functional.gelu(self.norm(self.up(x))))  # type: ignore[no-any-return]


@pytest.mark.parametrize("factor", [0.5, 1.0])
def test_rounding_in_bfloat16_does_not_hide_a_factor_of_two(factor: float) -> None:
    def parallelize(module: Any, mesh: Any) -> None:
        if module.up.weight.requires_grad:
            module.up.weight.register_hook(lambda gradient: gradient * factor)
        in_bfloat16 = module.forward

        def forward(x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return in_bfloat16(x).to(x.dtype)  # type: ignore[no-any-return]

        module.forward = forward

    @al.subject.parallel(Perceptron, parallelize)
    def subject(draw: Any, ranks: int) -> dict[str, Any]:
        return dict(inputs=(4, 8), dtype="float32")

    result = investigate(al.SimulatedWorld(1), subject, "gradients", Budget(20, seed=1, shrinking=0))
    assert result.verdict.is_coherent == (factor == 1), result.verdict
