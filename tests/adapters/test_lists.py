"""Functions of the shards of all virtual ranks are checked as operators on real or simulated ones."""

from __future__ import annotations

from typing import Any

import pytest

import adjointlab as al
from adjointlab.adapters.lists import of_lists
from adjointlab.checks.verdict import Status
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget


def sums(shards: Any) -> Any:
    return [sum(shards[: rank + 1]) for rank in range(len(shards))]


def later_sums(shards: Any) -> Any:
    return [sum(shards[rank:]) for rank in range(len(shards))]


def too_few(shards: Any) -> Any:
    return sums(shards)[:-1]


@pytest.mark.parametrize(
    ("adjoint", "status"),
    [(later_sums, Status.COHERENT), (sums, Status.INCOHERENT), (too_few, Status.UNJUDGED)],
)
def test_a_pair_of_functions_of_lists_is_an_operator(
    world: al.SimulatedWorld, adjoint: Any, status: Status
) -> None:
    @al.subject.pair(*of_lists(sums, adjoint))
    def prefix_sums(draw: Any, ranks: int) -> dict[str, Any]:
        each = al.Space(al.Layout((2 * ranks,), al.Partition((ranks,))))
        return dict(domain=each, codomain=each, gain=ranks)

    assert investigate(world, prefix_sums, "adjoint", Budget(10, ranks=3, seed=1)).status is status


def test_ranks_communicate_for_a_function_that_has_all_shards(world: al.SimulatedWorld) -> None:
    @al.subject.pair(*of_lists(sums, later_sums))
    def prefix_sums(draw: Any, ranks: int) -> dict[str, Any]:
        each = al.Space(al.Layout((2 * ranks,), al.Partition((ranks,))))
        return dict(domain=each, codomain=each)

    counts = investigate(world, prefix_sums, "adjoint", Budget(5, ranks=3, seed=1)).counts
    assert counts.communicating == counts.on_several_ranks > 0


def same(shards: Any) -> Any:
    return shards


def doubled_in_place(shards: Any) -> Any:
    for shard in shards:
        shard *= 2
    return shards


def doubled(shards: Any) -> Any:
    return [2 * shard for shard in shards]


@pytest.mark.parametrize(
    ("functions", "check", "status"),
    [
        ((doubled_in_place, doubled), "purity", Status.INCOHERENT),
        ((doubled, doubled_in_place), "purity", Status.INCOHERENT),
        ((doubled, doubled), "purity", Status.COHERENT),
        ((same, same), "purity", Status.COHERENT),
        ((same, same), "reentrancy", Status.COHERENT),
    ],
)
def test_a_function_that_writes_into_its_shards_is_found(
    world: al.SimulatedWorld, functions: tuple[Any, Any], check: str, status: Status
) -> None:
    @al.subject.pair(*of_lists(*functions))
    def cases(draw: Any, ranks: int) -> dict[str, Any]:
        each = al.Space(al.Layout((2 * ranks,), al.Partition((ranks,))))
        return dict(domain=each, codomain=each, gain=2)

    assert investigate(world, cases, check, Budget(10, ranks=3, seed=1)).status is status
