"""A search says how many cases it rests on; too few are no verdict."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import hypothesis
import numpy as np
import pytest

import adjointlab as al
from adjointlab.check_result import CheckResult
from adjointlab.checks.verdict import Status
from adjointlab.checks.whole_tensors import has_copies_of_their_own
from adjointlab.engine.discovery import found_as
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget, SearchResult
from adjointlab.engine.subject import Subject
from adjointlab.pytest.plugin import _name_silent
from adjointlab.pytest.running import counts_property
from adjointlab.report.json_report import as_data
from adjointlab.report.summary import notes
from adjointlab.worlds.simulated.world import SimulatedWorld
from tests.samples import right as example
from tests.samples import wrong


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


def searched(
    operator: type[Local],
    cases: int = 20,
    check: str = "adjoint",
    copied: Callable[[int], bool] = lambda ranks: False,
    **options: Any,
) -> SearchResult:
    """Search; the check `sequential` has nothing to say about several ranks whose tensors are `copied`."""

    @al.subject(operator, reference=lambda x, **parameters: np.array(x), **options)
    def subject(draw: Any, ranks: int) -> dict[str, Any]:
        axes = (None,) if copied(ranks) else (0,)
        return {"layout": al.Layout((2 * ranks,), al.Partition((ranks,)), axes=axes)}

    assert isinstance(subject, Subject)
    return investigate(SimulatedWorld(), subject, check, Budget(cases=cases, seed=3))


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
    result = searched(Local, 5, "sequential", copied=lambda ranks: True)
    assert result.status is Status.UNJUDGED
    assert "no case of several ranks" in result.verdict.headline
    assert any("have values of their own" in text for _, text in result.verdict.lines)
    assert result.counts is not None
    assert result.tried == result.counts.judged


def test_ranks_that_hold_nothing_have_no_copies_of_their_own() -> None:
    """All windows of a cut are alike where the tensor is empty, and there is nothing to declare."""
    cut = al.Tensor(al.Layout((0, 3), al.Partition((3,)), [[(0, 0)] * 3, [(0, 3)]], axes=(0, None)))
    copied = al.Tensor(al.Layout((2,), al.Partition((3,)), axes=(None,)))
    assert [has_copies_of_their_own(tensor) for tensor in (cut, copied)] == [False, True]


def test_a_subject_of_one_rank_is_not_asked_for_several() -> None:
    assert searched(Local, 5, "sequential", copied=lambda ranks: True, ranks=(1,)).status is Status.COHERENT


def test_rejected_cases_do_not_count_as_judged() -> None:
    result = searched(Local, 20, "sequential", copied=lambda ranks: ranks == 3)
    assert result.counts is not None
    assert (result.status, result.tried, result.counts.judged) == (Status.COHERENT, 20, 20)
    assert sum(result.counts.rejected.values()) > 0


def test_fewer_cases_than_were_asked_for_are_no_verdict() -> None:
    drawn = iter(range(1000))
    result = searched(Local, 10, "sequential", copied=lambda ranks: next(drawn) > 3, ranks=(2, 3))
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


class Unsent(Local):
    """Has a result on each rank that depends on the first rank's data alone, and sends none of them."""

    def __init__(self, comm: Any, layout: al.Layout) -> None:
        super().__init__(comm, layout)
        self.domain = al.Space(al.Layout(layout.shape, al.Partition((1,))))

    def forward(self, x: Any) -> Any:
        return np.zeros(self.codomain.tensors[0].layout.local_shape(self.comm.Get_rank()))

    def adjoint(self, y: Any) -> Any:
        return np.zeros(self.domain.tensors[0].layout.local_shape(self.comm.Get_rank()))


def test_a_case_that_failed_is_counted_with_those_before_it() -> None:
    result = investigate(SimulatedWorld(3), wrong, "adjoint", Budget(20, seed=1))
    assert result.status is Status.INCOHERENT
    assert result.counts is not None
    assert result.counts.judged == result.tried > 1
    assert result.counts.most_ranks == result.drawn_ranks == 2


@pytest.mark.parametrize(("operator", "is_needed"), [(Local, False), (Unsent, True), (Meeting, None)])
def test_silence_is_said_in_text_json_and_by_pytest_and_where_messages_are_needed(
    operator: type[Local], is_needed: bool | None
) -> None:
    result = searched(operator)
    assert result.status is Status.COHERENT
    assert result.counts is not None
    assert result.counts.lacking_messages == (result.counts.on_several_ranks if is_needed else 0)

    checked = [CheckResult(found_as(example), result)]
    written: Any = as_data(checked, "simulated", 8, 0, 1, complete=True)["notes"]
    said: list[str] = []
    reports = [SimpleNamespace(user_properties=[counts_property(result)])]
    terminal = SimpleNamespace(
        getreports=lambda kind: reports if kind == "passed" else [],
        section=said.append,
        write_line=lambda line, **_: said.append(line),
    )
    _name_silent(terminal)  # type: ignore[arg-type]
    for lines in (notes(checked), written, said):
        about = [line for line in lines if "no rank communicated" in line]
        assert len(about) == (is_needed is not None)
        assert all(operator.__name__ in line and ("need messages" in line) == is_needed for line in about)
