"""A search says how many cases it rests on; too few are no verdict."""

from __future__ import annotations

from typing import Any

import hypothesis
import numpy as np
import pytest

import adjointlab as al
from adjointlab.checks.verdict import Inapplicable, Status
from adjointlab.engine.search import Budget, SearchResult, investigate
from adjointlab.engine.subject import Subject
from adjointlab.worlds.simulated.world import SimulatedWorld


class Local(al.LinearOperator):
    """The identity, which needs no communication."""

    gain = fan_in = 1

    def __init__(self, comm: Any, layout: al.Layout) -> None:
        self.comm, self.domain, self.codomain = comm, al.Space(layout), al.Space(layout, name="y")

    def forward(self, x: Any) -> Any:
        return np.array(x)

    adjoint = forward


class Meeting(Local):
    def forward(self, x: Any) -> Any:
        self.comm.Barrier()
        return np.array(x)

    adjoint = forward


class OfPairs(Local):
    """Only the first two ranks communicate."""

    def forward(self, x: Any) -> Any:
        if self.comm.size > 1 and self.comm.rank < 2:
            self.comm.sendrecv(0, 1 - self.comm.rank)
        return np.array(x)

    adjoint = forward


class OnOneRankOnly(Local):
    def forward(self, x: Any) -> Any:
        if self.comm.size > 1:
            raise Inapplicable("this one is for one rank")
        return np.array(x)

    adjoint = forward


def searched(operator: type[Local], cases: int = 20, **options: Any) -> SearchResult:
    @al.subject(operator, **options)
    def subject(draw: Any, ranks: int) -> dict[str, Any]:
        return {"layout": al.Layout((2 * ranks,), al.Partition((ranks,)))}

    assert isinstance(subject, Subject)
    world = SimulatedWorld()
    try:
        return investigate(world, subject, "adjoint", Budget(cases=cases, seed=3))
    finally:
        world.close()


@pytest.mark.parametrize(("operator", "most"), [(Local, 0), (OfPairs, 2), (Meeting, 8)])
def test_the_counts_say_how_many_ranks_communicated(operator: type[Local], most: int) -> None:
    counts = searched(operator).counts
    assert counts is not None
    assert (counts.judged, counts.most_ranks) == (20, most)
    assert 0 < counts.on_several_ranks < 20
    assert counts.communicating == (counts.on_several_ranks if most else 0)


def test_even_one_case_asked_for_brings_one_of_several_ranks() -> None:
    result = searched(Meeting, cases=1)
    assert result.status is Status.COHERENT
    assert result.counts is not None
    assert result.counts.on_several_ranks == 1


def test_a_check_that_judges_no_case_of_several_ranks_is_no_verdict_and_says_why() -> None:
    result = searched(OnOneRankOnly, cases=5)
    assert result.status is Status.UNJUDGED
    assert "no case of several ranks" in result.verdict.headline
    assert any("this one is for one rank" in text for _, text in result.verdict.lines)
    assert result.counts is not None
    assert result.tried == result.counts.judged


def test_a_subject_of_one_rank_is_not_asked_for_several() -> None:
    assert searched(OnOneRankOnly, ranks=(1,)).status is Status.COHERENT


def test_rejected_cases_do_not_count_as_judged() -> None:
    class Rarely(Local):
        def forward(self, x: Any) -> Any:
            if self.comm.size == 3:
                raise Inapplicable("not on three ranks")
            return super().forward(x)

        adjoint = forward

    result = searched(Rarely)
    assert result.counts is not None
    assert (result.status, result.tried, result.counts.judged) == (Status.COHERENT, 20, 20)
    assert result.counts.rejected["not on three ranks"] > 0


def test_fewer_cases_than_were_asked_for_are_no_verdict() -> None:
    class Almost(Local):
        calls = 0  # two for each case

        def forward(self, x: Any) -> Any:
            if self.comm.rank == 0:
                type(self).calls += 1
            if self.calls > 12:
                raise Inapplicable("no more")
            return super().forward(x)

        adjoint = forward

    result = searched(Almost, cases=10)
    assert result.status is Status.UNJUDGED
    assert f"only {result.tried} of 10 cases" in result.verdict.headline


def test_a_strategy_that_draws_nothing_is_no_verdict() -> None:
    @al.subject(Local)
    def subject(draw: Any, ranks: int) -> dict[str, Any]:
        hypothesis.assume(False)
        return {}

    world = SimulatedWorld()
    assert isinstance(subject, Subject)
    result = investigate(world, subject, "adjoint", Budget(cases=5, seed=3))
    world.close()
    assert result.status is Status.UNJUDGED
    assert "rejects them all" in result.verdict.headline
