"""Libraries that keep their groups in module-level variables are checked on simulated ranks, if the subject names them."""

from __future__ import annotations

from typing import Any

import pytest
from torch.distributed.tensor import Shard

import adjointlab as al
from adjointlab.checks.verdict import Status
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget
from tests.torch_distributed import parallel_state

BUDGET = Budget(8, ranks=3, seed=1)


def cases(draw: Any, ranks: int) -> dict[str, Any]:
    space = al.Space(al.Layout((ranks,), al.Partition((ranks,))))
    return dict(domain=space, codomain=space)


def sums(**options: Any) -> Any:
    function = parallel_state.sum_over_group
    return al.subject.pair(function, function, process_group=True, **options)(cases)


def test_each_rank_has_the_variables_for_itself(world: al.SimulatedWorld) -> None:
    before = dict(vars(parallel_state))
    result = investigate(world, sums(rank_local=[parallel_state.__name__]), "adjoint", BUDGET)
    assert result.verdict.status is Status.COHERENT, result.verdict
    assert vars(parallel_state) == before
    assert parallel_state._MADE == {}


def test_state_that_is_shared_is_diagnosed(world: al.SimulatedWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel_state, "_GROUP", None)
    monkeypatch.setattr(parallel_state, "_MADE", {})
    monkeypatch.setattr(parallel_state, "_SIZE", 0, raising=False)
    result = investigate(world, sums(), "adjoint", BUDGET)
    assert result.verdict.status is Status.UNJUDGED
    assert "rank_local" in str(result.verdict) or "process group" in str(result.verdict)


@pytest.mark.parametrize("is_declared", [True, False])
def test_an_array_that_is_made_with_its_module_is_one_of_each_rank(
    world: al.SimulatedWorld, is_declared: bool
) -> None:
    function = parallel_state.sum_in_scratch
    options = {"rank_local": [parallel_state.__name__]} if is_declared else {}
    subject = al.subject.pair(function, function, **options)(cases)
    parallel_state.SCRATCH[:] = -1
    result = investigate(world, subject, "adjoint", BUDGET)
    assert (result.verdict.status is Status.COHERENT) is is_declared
    assert (parallel_state.SCRATCH == -1).all() == is_declared
    parallel_state.SCRATCH[:] = 0


@pytest.mark.parametrize("is_declared", [True, False])
def test_a_function_keeps_its_results_for_each_rank_alone_where_its_module_is_named(
    world: al.SimulatedWorld, is_declared: bool
) -> None:
    function = parallel_state.own_part
    options = {"rank_local": [parallel_state.__name__]} if is_declared else {}
    kept = parallel_state.own_rank
    kept.cache_clear()
    subject = al.subject.pair(function, function, process_group=True, **options)(cases)
    verdict = investigate(world, subject, "adjoint", Budget(20, ranks=3, seed=1)).verdict
    assert parallel_state.own_rank is kept
    assert bool(kept.cache_info().currsize) != is_declared
    assert verdict.is_coherent is is_declared
    told = dict(verdict.lines).get("perhaps", "")
    assert ("own_rank" in told and "rank_local=" in told) != is_declared


@pytest.mark.parametrize("make", [parallel_state.Scaled, parallel_state.ScaledBySize])
def test_the_sequential_module_finds_the_variables_as_they_were_before_it_was_made_parallel(
    world: al.SimulatedWorld, make: Any
) -> None:
    def draw_case(draw: Any, ranks: int) -> dict[str, Any]:
        return dict(
            inputs=(3, 4),
            input_placements=[[Shard(1)]],
            output_placements=[[Shard(1)]],
            parameter_placements={"weight": [Shard(0)]},
        )

    subject = al.subject.parallel(
        make, parallel_state.parallel, rank_local=[parallel_state.__name__], ranks=(2,)
    )(draw_case)
    verdict = investigate(world, subject, "gradients", Budget(2, ranks=2, seed=1)).verdict
    assert verdict.is_coherent is (make is parallel_state.Scaled), verdict
    assert verdict.is_coherent or ("sequential twin", "gradcheck passes") in verdict.lines
    assert parallel_state.SIZE == 1
