"""The Jacobian of right layers is not accused where it jumps or rounds, and a wrong one is, with or without forward mode."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest

import adjointlab as al
from adjointlab.checks.check import Spaces
from adjointlab.checks.layers.jacobian import JACOBIAN, Differences, JacobianProducts, Norms
from adjointlab.checks.verdict import Status
from adjointlab.core.pairing import Exact
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget, SearchResult
from adjointlab.engine.subject import Subject
from adjointlab.worlds.simulated.world import SimulatedWorld

pytest.importorskip("torch")

import torch
from torch.nn import functional

from tests.checks.applied import Applied

COLUMNS = 6

RIGHT: dict[str, tuple[Callable[[Any], Any], float, float]] = {
    "relu": (torch.relu, 0.0, 0.0),
    "abs": (torch.abs, 0.0, 0.0),
    "max pooling": (lambda x: functional.max_pool1d(x[:, None], 3, 1, 1)[:, 0], 0.0, 0.0),
    "hardtanh": (lambda x: functional.hardtanh(x, -2, 2), 0.0, 0.0),
    "sort": (lambda x: x.sort(-1).values, 0.0, 0.0),
    "clamp": (lambda x: x.clamp(-1, 3), 0.0, 0.0),
    "L1 loss": (lambda x: functional.l1_loss(x, torch.ones_like(x), reduction="none"), 0.0, 0.0),
    "tanh": (torch.tanh, 8.0, 1.0),
    "softmax": (lambda x: x.softmax(-1), 32.0, 1.0),
    "layer norm": (lambda x: functional.layer_norm(x, (COLUMNS,)), 32.0, 1e3),
    "RMS norm": (lambda x: functional.rms_norm(x, (COLUMNS,), eps=1e-6), 32.0, 1e3),
}
"""Functions of each row, the roundings that they make, and the reach: at a zero row a norm's derivative is ε^(-1/2)."""


def rows(
    function: Callable[[Any], Any],
    twin: Callable[[Any], Any],
    dtype: str,
    roundings: float,
    reach: float,
    *,
    forward_mode: bool,
    copies: bool = False,
    prepare: Callable[..., Any] = lambda *x: x,
) -> Subject:
    """Rows that are cut, or with `copies` all of them on every rank, of values of its own: then there is no sequential input."""

    def layer(comm: Any) -> Any:
        module = Applied(function)
        module.forward_mode = forward_mode
        return module

    counts = (2, 3) if copies else (1, 2, 3)

    @al.subject(layer=layer, sequential=lambda: Applied(twin), ranks=counts, name="Rows", prepare=prepare)
    def draws(draw: Any, ranks: int) -> dict[str, Any]:
        if copies:
            layout = al.Layout((4, COLUMNS), al.Partition((ranks,)), axes=(None, None))
        else:
            ends = [draw(al.strategies.cuts(4, ranks)), None]
            layout = al.Layout.cut((4, COLUMNS), al.Partition((ranks, 1)), ends)
        space = al.Space(layout, dtype=dtype)
        eps = torch.finfo(getattr(torch, dtype)).eps
        return {"domain": space, "codomain": space, "rounding": roundings * eps, "reach": reach}

    return draws


def judged(subject: Subject, cases: int = 30) -> SearchResult:
    return investigate(SimulatedWorld(ranks=3), subject, "jacobian", Budget(cases=cases, seed=1, shrinking=0))


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("forward_mode", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_layer_is_not_accused_at_kinks_ties_and_zero_rows(
    name: str, dtype: str, forward_mode: bool, copies: bool
) -> None:
    function, roundings, reach = RIGHT[name]
    given = rows(function, function, dtype, roundings, reach, forward_mode=forward_mode, copies=copies)
    report = judged(given, cases=10)  # benchmarks/smooth.py draws many
    assert report.status is Status.COHERENT, report.verdict


class Doubled(torch.autograd.Function):
    """x, whose forward and reverse modes are both twice what they should be, and so each other's adjoint."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Any) -> Any:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return 2 * g

    @staticmethod
    def jvp(ctx: Any, v: Any) -> Any:
        return 2 * v


@pytest.mark.parametrize("forward_mode", [True, False])
@pytest.mark.parametrize("name", RIGHT)
def test_modes_that_are_wrong_alike_are_found_beside_the_twin(name: str, forward_mode: bool) -> None:
    function, roundings, reach = RIGHT[name]

    def wrong(x: Any) -> Any:
        return Doubled.apply(function(x))

    report = judged(rows(wrong, function, "float64", roundings, reach, forward_mode=forward_mode))
    assert report.verdict.headline == "the Jacobian is not the sequential layer's", report.verdict


@pytest.mark.parametrize("forward_mode", [True, False])
@pytest.mark.parametrize("name", RIGHT)
def test_and_by_differences_where_there_is_no_sequential_input(name: str, forward_mode: bool) -> None:
    function, roundings, reach = RIGHT[name]

    def wrong(x: Any) -> Any:
        return Doubled.apply(function(x))

    report = judged(
        rows(wrong, function, "float32", roundings, reach, forward_mode=forward_mode, copies=True)
    )
    assert report.verdict.headline == "reverse mode is not the derivative, by differences", report.verdict
    # Right code whose local types were forgotten looks the same.
    assert "the copies of x have values of their own" in dict(report.verdict.lines)["perhaps"]


@pytest.mark.parametrize("forward_mode", [False, True])
def test_without_a_twin_half_of_the_points_are_integers_where_forward_mode_tells_of_kinks(
    forward_mode: bool,
) -> None:
    points: dict[bool, set[tuple[float, ...]]] = {False: set(), True: set()}

    def noted(x: Any) -> Any:
        points[bool((x == x.round()).all())].add(tuple(x.ravel().tolist()))
        return 2 * x

    report = judged(rows(noted, noted, "float64", 0.0, 0.0, forward_mode=forward_mode, copies=True), cases=8)
    assert report.verdict.is_coherent
    assert points[False]
    # Of eight cases one may be drawn twice; each has a point of its own on each of two or three ranks.
    assert len(points[True]) >= 6 if forward_mode else not points[True]


def test_a_layer_with_a_kink_at_all_points_is_not_judged_by_differences() -> None:
    def prepare(x: Any) -> Any:
        return (0 * x,)

    report = judged(
        rows(torch.relu, torch.relu, "float64", 0.0, 0.0, forward_mode=False, copies=True, prepare=prepare)
    )
    assert report.status is Status.UNJUDGED, report.verdict
    assert "could be judged" in report.verdict.headline


@pytest.mark.parametrize("errors", [(0.0, 0.25), (0.25, 0.0)])
def test_the_largest_error_of_differences_on_any_rank_counts_on_all(errors: tuple[float, float]) -> None:
    def observed(reverse: float, error: float) -> JacobianProducts:
        differences = Differences(Exact(Fraction(1)), error, weight=1.0)
        # Without forward mode, twin, rounding, parameters and reach.
        return JacobianProducts(
            None, Exact(Fraction(reverse)), None, differences, Norms(*(100.0,) * 4), 0.0, 0, 0.0
        )

    space = al.Space(al.Layout((2,), (2,)))
    # Twice 0.25 is as far as ⟨Jv, w⟩ = 2 may be off.
    for reverse, is_coherent in ((2.5, True), (2.75, False)):
        seen = [observed(part, error) for part, error in zip((reverse, 0.0), errors, strict=True)]
        assert JACOBIAN.judge(Spaces(space, space), seen).is_coherent == is_coherent
