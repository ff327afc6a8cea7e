"""Both sides have the values that a module draws when it is made; a module that draws when it is called is said to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import adjointlab as al
from adjointlab.checks.verdict import Verdict
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget

pytestmark = pytest.mark.mpi_skip


class RandomFeatures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)
        self.register_buffer("frequencies", torch.randn(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cos(self.linear(x) * self.frequencies)


def with_spectral_norm() -> nn.Module:
    return nn.utils.parametrizations.spectral_norm(nn.Linear(3, 4))


def with_dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5))


def verdict(make: Callable[[], nn.Module], check: str = "gradients") -> Verdict:
    @al.subject.parallel(make, lambda module, mesh: module)
    def unchanged(draw: Any, ranks: int) -> dict[str, Any]:
        return dict(inputs=(2, 3))

    return investigate(al.SimulatedWorld(3), unchanged, check, Budget(5, seed=1)).verdict


@pytest.mark.parametrize("make", [RandomFeatures, with_spectral_norm])
def test_buffers_that_are_drawn_are_those_of_the_sequential_module(make: Callable[[], nn.Module]) -> None:
    before = torch.get_rng_state()
    assert verdict(make).is_coherent
    assert torch.equal(torch.get_rng_state(), before)


def test_a_module_that_draws_when_it_is_called_is_said_to() -> None:
    told = dict(verdict(with_dropout).lines)
    assert "call .eval() on both" in told["random"]
    assert "random" not in dict(verdict(lambda: with_dropout().eval()).lines)


def test_a_layer_that_differs_from_one_that_draws_nothing_is_not_said_to_be_random() -> None:
    @al.subject.parallel(lambda: nn.Linear(3, 4), lambda module, mesh: nn.Sequential(module, nn.Tanh()))
    def another(draw: Any, ranks: int) -> dict[str, Any]:
        return dict(inputs=(2, 3))

    wrong = investigate(al.SimulatedWorld(2), another, "gradients", Budget(5, seed=1)).verdict
    assert not wrong.is_coherent
    assert "random" not in dict(wrong.lines)


class Linear(nn.Module):
    """Its weight is drawn when it is made."""

    factor, drops = 1.0, False

    def __init__(self, comm: Any = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(self.factor * x @ self.weight.T, training=self.drops)


class Doubled(Linear):
    factor = 2.0


class Dropping(Linear):
    drops = True


def layer_verdict(layer: type[Linear], twin: type[Linear]) -> Verdict:
    def whole(shape: tuple[int, ...], name: str) -> al.Tensor:
        copies = al.Layout(shape, al.Partition((2,)), axes=[None] * len(shape))
        return al.Tensor(copies, dtype="float32", types=("invariant",), name=name)

    @al.subject.layer(layer, twin, ranks=(2,))
    def copies(draw: Any, ranks: int) -> dict[str, Any]:
        spaces = (
            al.Space(whole(shape, name)) for shape, name in (((4, 3), "x"), ((4, 2), "y"), ((2, 3), "weight"))
        )
        return dict(zip(("domain", "codomain", "parameter_space"), spaces, strict=True))

    return investigate(al.SimulatedWorld(2), copies, "sequential", Budget(5, seed=1)).verdict


def test_weights_that_are_drawn_when_a_layer_is_made_are_no_random_results() -> None:
    assert layer_verdict(Linear, Linear).is_coherent
    assert "random" not in dict(layer_verdict(Doubled, Linear).lines)
    assert "random" in dict(layer_verdict(Dropping, Dropping).lines)
