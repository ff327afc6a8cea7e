"""Cotangents that torch's backward pass is given: those of an output, in its shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import adjointlab as al  # noqa: E402 - only where there is torch
from adjointlab.engine.adapters import Differentiable  # noqa: E402


def gradient(world: al.SimulatedWorld, output: Sequence[int], cotangent: Sequence[int]) -> Any:
    """The gradient of a sum of nothing and of zeros, by an output of one shape and a cotangent of another."""
    space = al.Space(al.Layout((3,), al.Partition((1,))))

    def function(comm: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros(*output, dtype=x.dtype) + x.sum()

    def body(context: Any, _: object) -> Any:
        operator = Differentiable(context.comm, function, space, space, {})
        return operator.adjoint(torch.ones(*cotangent, dtype=torch.float64))

    (outcome,) = world.run(body, None, 1).outcomes
    return outcome


@pytest.mark.parametrize("cotangent", [(0,), (0, 3), (2, 0, 1)])
def test_one_without_elements_takes_the_shape_of_an_output_without_elements(
    world: al.SimulatedWorld, cotangent: tuple[int, ...]
) -> None:
    (by_input,) = gradient(world, (0, 2), cotangent).value
    assert by_input.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(("output", "cotangent"), [((0,), (3,)), ((3,), (0,)), ((2, 2), (4,))])
def test_one_that_does_not_fit_the_output_is_refused_by_torch_with_both_shapes(
    world: al.SimulatedWorld, output: tuple[int, ...], cotangent: tuple[int, ...]
) -> None:
    error = gradient(world, output, cotangent).exception
    assert "Mismatch in shape" in str(error)
    assert all(str(list(shape)) in str(error) for shape in (output, cotangent))
