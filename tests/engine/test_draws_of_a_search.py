"""A search plans its draws, on each number of ranks, in batches, on fewer ranks and in single steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import adjointlab as al
from adjointlab.checks.context import InputSetting
from adjointlab.checks.verdict import Status, Verdict, unjudged
from adjointlab.engine.case import Case
from adjointlab.engine.hypothesis_searches import Failing
from adjointlab.engine.run_case import Judgement
from adjointlab.engine.search import Search
from adjointlab.engine.search_result import Budget
from adjointlab.worlds.run import FindingKind
from tests.engine.unrun_searches import (
    FAILING,
    OTHER,
    RIGHT,
    WRONG,
    answering,
    begin_shrinking,
    case_on,
    search_of,
    stopped_clock,
)
from tests.samples import RingShift

pytestmark = pytest.mark.mpi_skip

Call = tuple[int, int, int, str]


def planned(
    search: Search, monkeypatch: pytest.MonkeyPatch, answers: Sequence[Any] = (), **drawn: dict[int, int]
) -> list[Call]:
    """Let searches of Hypothesis be counted instead, with these answers; each stream draws so many cases on each number of ranks."""
    calls: list[Call] = []
    waiting = list(answers)

    def searched(
        number: int, least: int, most: int, accepts: Any = None, stream: str = ""
    ) -> Failing | Verdict | None:
        calls.append((number, least, most, stream))
        search._drawn.on_ranks.update(drawn.get(stream.split()[0] if stream else "first", {}))
        search._drawn.counts.judged += number
        search._drawn.judged += number
        return waiting.pop(0) if waiting else None

    monkeypatch.setattr(search, "_searched", searched)
    return calls


def test_a_quarter_of_the_cases_is_kept_for_numbers_of_ranks_that_have_not_had_their_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    search = search_of()
    calls = planned(search, monkeypatch, first={1: 70, 2: 5})
    assert search._drawn_failure() is None
    # A third of the cases is for the three numbers, eleven for each.
    assert calls == [(75, 1, 3, ""), (11, 3, 3, " on 3"), (6, 2, 2, " on 2"), (8, 1, 3, " more")]


def test_among_numbers_of_ranks_drawn_alike_the_largest_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    search = search_of(Budget(7, seed=1))
    calls = planned(search, monkeypatch)
    search._drawn_failure()
    assert calls == [(6, 1, 3, ""), (1, 3, 3, " on 3")]
    search = search_of(Budget(17, seed=1))
    calls = planned(search, monkeypatch)
    search._drawn_failure()
    assert calls == [(13, 1, 3, ""), *((1, n, n, f" on {n}") for n in (3, 2, 1)), (1, 1, 3, " more")]


def test_no_more_cases_are_planned_than_were_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    of_two = al.subject(RingShift, ranks=(2,))(lambda draw, ranks: {})
    search = search_of(subject=of_two)
    calls = planned(search, monkeypatch)
    search._drawn_failure()
    assert calls == [(75, 1, 3, ""), (25, 2, 2, " on 2")]


def test_a_subject_of_more_ranks_than_there_are_is_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    of_many = al.subject(RingShift, ranks=(5, 4))(lambda draw, ranks: {})
    search = search_of(subject=of_many)
    calls = planned(search, monkeypatch)
    result = search.conduct()
    assert (result.status, result.verdict.headline, calls) == (
        Status.UNJUDGED,
        "it is declared for 4 ranks and more, and there are 3",
        [],
    )


@pytest.mark.parametrize("answers", [(FAILING,), (None, FAILING), (None, None, None, FAILING)])
def test_a_failure_ends_the_draws(answers: Sequence[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    search = search_of()
    calls = planned(search, monkeypatch, answers, first={1: 70, 2: 5})
    assert search._drawn_failure() is FAILING
    assert len(calls) == len(answers)


def test_nothing_more_is_drawn_once_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    search = search_of(Budget(5000, seed=1))
    calls = planned(search, monkeypatch)
    search._drawn.counts.is_cut_short = True
    assert search._drawn_failure() is None
    assert calls == [(1000, 1, 3, "")]


def test_a_thousand_cases_are_a_batch_with_a_stream_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    search = search_of()
    calls = planned(search, monkeypatch)
    assert search._searched_in_batches(2300, " more") is None
    assert calls == [(1000, 1, 3, " more"), (1000, 1, 3, " more 1000"), (300, 1, 3, " more 2000")]
    calls = planned(search, monkeypatch, [None, FAILING])
    assert search._searched_in_batches(2300) is FAILING
    assert calls == [(1000, 1, 3, ""), (1000, 1, 3, " 1000")]
    calls = planned(search, monkeypatch)
    assert search._searched_in_batches(0) is None
    assert calls == []


@pytest.mark.parametrize(("cases", "extra"), [(3, 1), (10, 1), (19, 1), (20, 2), (100, 10)])
def test_some_cases_of_several_ranks_are_drawn_where_there_were_none(
    cases: int, extra: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drawn(search: Search, several: int) -> tuple[Any, Call]:
        search._drawn.counts.on_several_ranks = several
        calls = planned(search, monkeypatch)
        return search._smallest_failure(), calls[-1]

    none = drawn(search_of(Budget(cases, seed=1)), 0)
    assert none[0].headline.startswith("no case of several ranks could be judged")
    assert none[1] == (extra, 2, 3, "")
    result, last = drawn(search_of(Budget(cases, seed=1)), 1)
    assert result is None
    assert last[1:3] != (2, 3)
    result, last = drawn(search_of(Budget(cases, seed=1, ranks=1)), 0)
    assert result is None
    assert last[1:3] == (1, 1)


@pytest.mark.parametrize(
    ("cases", "found_on", "calls"),
    [
        (100, (1,), [(50, 1, 2, "")]),
        (49, (1,), [(49, 1, 2, "")]),
        (100, (2, 1), [(50, 1, 2, ""), (50, 1, 1, "")]),
        (100, (2, None), [(50, 1, 2, ""), (50, 1, 1, "")]),
        (100, (None,), [(50, 1, 2, "")]),
    ],
)
def test_a_failure_is_looked_for_on_ever_fewer_ranks(
    cases: int, found_on: Sequence[int | None], calls: list[Call], monkeypatch: pytest.MonkeyPatch
) -> None:
    search = search_of(Budget(cases, seed=1))
    failures = [None if ranks is None else Failing(case_on(ranks), WRONG) for ranks in found_on]
    drawn = planned(search, monkeypatch, failures)
    first = Failing(case_on(3), WRONG)
    least = next((each for each in reversed(failures) if each is not None), first)
    assert search._on_fewer_ranks(first) is least
    assert drawn == calls
    begin_shrinking(search, deadline=-math.inf)
    assert search._on_fewer_ranks(first) is first
    assert drawn == calls


SLOW = Judgement(unjudged("rank 1 has been at work for 5 s", kind="no return"), None)


@pytest.mark.parametrize(
    ("found_on", "calls"),
    [
        ((1,), [(50, 1, 1, "")]),
        ((None, 2), [(50, 1, 1, ""), (50, 2, 2, "")]),
        ((None, None, None), [(50, 1, 1, ""), (50, 2, 2, ""), (150, 1, 3, "")]),
        ((None, None, 3), [(50, 1, 1, ""), (50, 2, 2, ""), (150, 1, 3, "")]),
    ],
)
def test_a_failure_that_takes_seconds_to_see_is_looked_for_from_the_fewest_ranks_on(
    found_on: Sequence[int | None], calls: list[Call], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A job that repeats the search of another has no time left, but knows what that has found.
    for deadline in (math.inf, -math.inf):
        search = search_of()
        begin_shrinking(search, deadline=deadline)
        failures = [None if ranks is None else Failing(case_on(ranks), SLOW) for ranks in found_on]
        drawn = planned(search, monkeypatch, failures)
        first = Failing(case_on(3), SLOW)
        assert search._on_fewer_ranks(first) is (failures[-1] or first)
        assert drawn == calls


# Single steps


@pytest.mark.parametrize(
    ("steps", "answers", "least", "is_smallest"),
    [
        ([False], [], 3, True),
        ([None], [], 3, False),
        ([True], [None], 3, False),
        ([True, False], [2], 2, True),
        ([True, True, None], [2, 1], 1, False),
    ],
)
def test_a_smaller_case_is_drawn_as_long_as_a_single_step_fails(
    steps: list[bool | None],
    answers: list[int | None],
    least: int,
    is_smallest: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    search = search_of()
    begun = begin_shrinking(search)
    failures = [None if side is None else Failing(case_on(2, side), WRONG) for side in answers]
    calls: list[Any] = []
    asked = iter([case_on(2, side) for side in (3, *(side for side in answers if side))])
    waiting = iter(steps)

    def fails(case: Case) -> bool | None:
        assert case == next(asked)
        return next(waiting)

    def searched(number: int, least: int, most: int, accepts: Callable[[Case], bool]) -> Any:
        calls.append((number, least, most))
        assert accepts(case_on(2, 1 if len(failures) == 1 else 0))
        assert not accepts(case_on(2, 3))
        return failures.pop(0)

    monkeypatch.setattr(search, "_fails_one_step_smaller", fails)
    monkeypatch.setattr(search, "_searched", searched)
    assert search._in_single_steps(Failing(case_on(2, 3), WRONG)).case == case_on(2, least)
    assert begun.is_smallest == is_smallest
    assert calls == [(150, 1, 2)] * len(answers)


def test_what_takes_seconds_to_see_or_may_end_a_job_is_not_tried_in_single_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judged = answering(monkeypatch, RIGHT)
    for kind in ("no return", FindingKind.LIVELOCK):
        failure = Failing(case_on(2), Judgement(unjudged("slow", kind=kind), None))
        search = search_of()
        begun = begin_shrinking(search)
        assert search._in_single_steps(failure) is failure
        assert not begun.is_smallest
    search = search_of(can_schedule=False)
    begun = begin_shrinking(search)
    assert search._in_single_steps(FAILING) is FAILING
    assert (judged, begun.is_smallest) == ([], False)


@pytest.mark.parametrize(
    ("answers", "fails", "tried"),
    [
        ((RIGHT,), False, 2),
        ((None,), False, 2),
        ((OTHER,), False, 2),
        ((WRONG,), True, 1),
        ((None, WRONG), True, 2),
    ],
)
def test_a_single_step_fails_if_a_case_fails_alike(
    answers: Sequence[Judgement | None], fails: bool, tried: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = search_of()
    begin_shrinking(search)
    judged = answering(monkeypatch, *answers)
    # One rank less, and a side of 3.
    assert search._fails_one_step_smaller(case_on(2, 4)) is fails
    assert len(judged) == tried


def test_a_case_on_a_number_of_ranks_that_the_subject_has_not_is_no_single_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of_two = al.subject(RingShift, ranks=(2,))(lambda draw, ranks: {})
    search = search_of(subject=of_two)
    begin_shrinking(search)
    judged = answering(monkeypatch, WRONG)
    assert search._fails_one_step_smaller(case_on(2, 4))
    assert {case.ranks for case in judged} == {2}


def test_nothing_is_claimed_of_single_steps_for_which_there_is_no_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = stopped_clock(monkeypatch)
    search = search_of()
    begin_shrinking(search, deadline=clock.now)
    answering(monkeypatch, RIGHT)
    assert search._fails_one_step_smaller(case_on(2, 4)) is False
    clock.now += 1
    assert search._fails_one_step_smaller(case_on(2, 4)) is None
    assert search._fails_one_step_smaller(case_on(1, 0)) is False


@pytest.mark.parametrize(("sides", "fails"), [(299, False), (300, None)])
def test_nothing_is_claimed_of_more_single_steps_than_are_made(
    sides: int, fails: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = search_of()
    begin_shrinking(search)
    judged = answering(monkeypatch, RIGHT)
    case = Case(
        "RingShift", "adjoint", 1, {f"side {number}": 1 for number in range(sides)}, InputSetting(), 0
    )
    assert search._fails_one_step_smaller(case) is fails
    assert len(judged) == sides
