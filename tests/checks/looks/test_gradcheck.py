"""gradcheck tells a twin whose gradients are wrong from one that is right, of any degree, with parameters and with frozen inputs."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from adjointlab.checks.layers.gradients import GRADCHECK
from adjointlab.checks.verdict import Verdict
from tests.checks.looks.harness import Look, verdict
from tests.checks.looks.layers import DoubledGradient, Weights, at, made


def twin(change: Any = None) -> Any:
    """The sequential layer, which has the change too."""
    return lambda: Weights(change=change)


WRONG_BY_INPUT = at("x", DoubledGradient.apply)
WRONG_BY_PARAMETER = at("w", DoubledGradient.apply)


class SparseGradient(torch.autograd.Function):
    """The identity, with a gradient in the layout of those of an embedding with sparse=True."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.to_sparse()


def checked(change: Any) -> Verdict:
    return verdict(GRADCHECK, Look("", made(), "", reference=twin(change)))


@pytest.mark.parametrize("change", [None, at("y", lambda y: y**3 / 50), at("y", torch.sin)])
def test_a_right_twin_passes_however_its_values_bend(change: Any) -> None:
    assert checked(change).is_coherent


def test_a_right_twin_passes_with_sparse_gradients() -> None:
    assert checked(at("w", SparseGradient.apply)).is_coherent


@pytest.mark.parametrize(
    "change",
    [
        WRONG_BY_INPUT,
        WRONG_BY_PARAMETER,
        at("y", lambda y: y + 0.01 * (DoubledGradient.apply(y) - y)),  # one hundredth too large
    ],
)
def test_a_twin_with_wrong_gradients_does_not(change: Any) -> None:
    found = checked(change)
    assert not found.is_coherent
    told = dict(found.lines)
    for number in range(2):
        assert told[f"pass {number}"].startswith("gradcheck fails: Jacobian mismatch for output 0")
        assert "\n" not in told[f"pass {number}"]


def test_where_the_twin_stops_a_gradient_the_complaint_says_that_right_code_does_too() -> None:
    found = checked(at("y", lambda y: y * y.detach()))
    assert "(of right code too: " in dict(found.lines)["pass 0"]
    assert "where it stops a gradient, as `detach` does" in dict(found.lines)["pass 0"]
