"""Arguments of users' functions may have the names that the lab's own functions give to theirs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import adjointlab as al
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget
from adjointlab.engine.subject import Subject

NAMES = [
    "adjoint",
    "arguments",
    "build",
    "case",
    "forward",
    "function",
    "parameters",
    "prepare",
    "ranks",
    "sequential",
]


class Scaled(torch.nn.Module):
    """A layer, and its own twin, with one argument of any name."""

    def __init__(self, *_: object, **factor: float) -> None:
        super().__init__()
        (self.factor,) = factor.values()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.factor * x


def scaled(_: Any, x: Any, **factor: float) -> Any:
    return next(iter(factor.values())) * x


def spaces(ranks: int) -> dict[str, Any]:
    x = al.Layout((ranks,), al.Partition((ranks,)))
    return {"domain": al.Space(x), "codomain": al.Space(x)}


def require_coherent(world: al.SimulatedWorld, subject: Subject, *checks: str) -> None:
    for check in checks:
        verdict = investigate(world, subject, check, Budget(cases=3, seed=1)).verdict
        assert verdict.is_coherent, str(verdict)


@pytest.mark.parametrize("name", NAMES)
def test_a_layer_and_its_twin_take_an_argument_of_any_name(world: al.SimulatedWorld, name: str) -> None:
    @al.subject.layer(Scaled, Scaled)
    def cases(draw: Any, ranks: int) -> dict[str, Any]:
        return {name: 2.0, **spaces(ranks)}

    require_coherent(world, cases, "sequential", "gradients")


@pytest.mark.parametrize("name", NAMES)
def test_a_pair_of_functions_takes_an_argument_of_any_name(world: al.SimulatedWorld, name: str) -> None:
    @al.subject.pair(scaled, scaled)
    def cases(draw: Any, ranks: int) -> dict[str, Any]:
        return {name: 2.0, **spaces(ranks)}

    require_coherent(world, cases, "adjoint")


@pytest.mark.parametrize("keywords", [{"comm": 1.0}, {"x": 1.0}])
def test_functions_of_lists_take_arguments_of_any_name(
    world: al.SimulatedWorld, keywords: dict[str, float]
) -> None:
    from adjointlab.adapters.lists import of_lists

    def doubled(parts: list[Any], **named: float) -> list[Any]:
        assert named == keywords
        return [2 * part for part in parts]

    (on_rank,) = of_lists(doubled)
    run = world.run(lambda context, _: float(on_rank(context.comm, context.rank, **keywords)), None, 2)
    assert run.values == (0.0, 2.0)
