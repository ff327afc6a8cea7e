"""Summands of one tensor that lie on several ranks: each is rounded there, and the sequential layer gets their sum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import adjointlab as al
from adjointlab.checks.verdict import Status
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget, SearchResult
from adjointlab.engine.subject import Subject
from adjointlab.worlds.simulated.world import SimulatedWorld

pytest.importorskip("torch")

import torch.distributed as dist
from torch.distributed import _functional_collectives

from tests.checks.applied import Applied

RANKS = 4


def total(x: Any) -> Any:
    """The sum over all ranks, whose backward pass is a sum over all ranks."""
    return _functional_collectives.all_reduce(x, "sum", dist.group.WORLD)


class Function(Applied):
    forward_mode = False
    uniform_requires_grad = True


def of_summands(function: Callable[[Any], Any]) -> Subject:
    """A third of a tensor that comes in summands."""

    @al.subject.layer(
        lambda: Function(function),
        lambda: Function(lambda x: x / 3),
        process_group=True,
        ranks=(RANKS,),
        name="Third",
    )
    def subject(draw: Any, ranks: int) -> dict[str, Any]:
        layout = al.Layout((2,), al.Partition((ranks,)), axes=(None,))
        return {
            "domain": al.Space(layout, dtype="float32", types=("partial",)),
            "codomain": al.Space(layout, dtype="float32", types=("replicated",)),
        }

    return subject


def searched(function: Callable[[Any], Any], seed: int) -> SearchResult:
    budget = Budget(cases=20, seed=seed, shrinking=0)
    return investigate(SimulatedWorld(ranks=RANKS), of_summands(function), "gradients", budget)


# With these seeds the summands of an output cancel, or those of a cotangent.
@pytest.mark.parametrize(("function", "seed"), [(lambda x: total(x / 3), 5), (lambda x: total(x) / 3, 3)])
def test_summands_that_cancel_may_leave_what_their_rounding_leaves(
    function: Callable[[Any], Any], seed: int
) -> None:
    assert (verdict := searched(function, seed).verdict).is_coherent, verdict


def test_and_a_summand_that_is_wrong_by_more_is_found() -> None:
    verdict = searched(lambda x: total(x / 3 * (1.0 + 1e-3 * dist.get_rank())), 1).verdict
    assert verdict.status is Status.INCOHERENT, verdict
