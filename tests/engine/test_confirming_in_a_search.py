"""A search sees a failure again before it is reported, and says all that it knows of it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from adjointlab.checks.verdict import Figure, Figures, Verdict, coherent, incoherent, unjudged
from adjointlab.engine import confirming as module
from adjointlab.engine.case import Case
from adjointlab.engine.confirming import Confirmed
from adjointlab.engine.counts import CaseCounts
from adjointlab.engine.hypothesis_searches import Failing
from adjointlab.engine.run_case import NONDETERMINISTIC, Judgement, Stage
from adjointlab.engine.search import Search
from adjointlab.engine.search_result import Budget, SearchResult
from adjointlab.engine.shrinking import FirstFailure, Shrinking
from adjointlab.engine.simulate_first import HangSimulator
from adjointlab.engine.simulation_artefacts import Explained
from adjointlab.worlds.run import FindingKind, Run
from adjointlab.worlds.schedule import schedules_from
from adjointlab.worlds.watchdog import Watchdog
from adjointlab.worlds.world import WorldName
from tests.engine.unrun_searches import (
    FAILING,
    GONE,
    HANGS,
    OTHER,
    RIGHT,
    SPACES,
    WRONG,
    answering,
    case_on,
    search_of,
    stopped_clock,
)
from tests.samples import right

pytestmark = pytest.mark.mpi_skip


@pytest.fixture
def unexplained(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Neither a follow-up nor retries, nor state of modules; whether the latter were asked for, and could change parameters."""
    retried: list[bool] = []

    def retry(
        run: Any, case: Case, verdict: Verdict, subject: Any, *, may_change_parameters: bool
    ) -> Verdict:
        retried.append(may_change_parameters)
        return verdict

    monkeypatch.setattr(module, "with_follow_up", lambda run, case, verdict: verdict)
    monkeypatch.setattr(module, "with_hints_of_retries", retry)
    # Other tests may have left something in modules that the subject's imports from, and this world runs no case without it.
    monkeypatch.setattr(
        module, "with_module_state", lambda verdict, *_, **__: Explained(verdict, is_of_state=False)
    )
    return retried


@pytest.mark.parametrize(("failure", "runs"), [(WRONG, 10), (HANGS, 1), (GONE, 1)])
@pytest.mark.parametrize("world", [{}, {"can_schedule": False}, {"is_exhausted": True}, {"shrinking": 0.0}])
def test_a_wrong_result_is_seen_ten_times_and_a_crash_or_hang_once(
    failure: Judgement,
    runs: int,
    world: dict[str, Any],
    unexplained: list[bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    budget = Budget(5, seed=1, shrinking=world.pop("shrinking", 9.0))
    search = search_of(budget, **world)
    last = Judgement(failure.verdict, None)
    judged = answering(monkeypatch, *[failure] * (runs - 1), last)
    confirmed = search._confirmation.confirmed(case_on(2), failure.verdict)
    assert confirmed.verdict is last.verdict
    assert confirmed.is_seen_again
    assert judged == [case_on(2)] * runs
    is_retried = budget.shrinking > 0 and not world.get("is_exhausted")
    assert unexplained == ([world.get("can_schedule", True)] if is_retried else [])


@pytest.mark.parametrize(
    ("again", "told"), [(None, "nothing to judge"), (RIGHT, "no failure"), (OTHER, "of another kind")]
)
@pytest.mark.parametrize("seen_before", [0, 1, 9])
def test_a_result_that_is_another_one_once_depends_on_the_run(
    again: Judgement | None,
    told: str,
    seen_before: int,
    unexplained: list[bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    search = search_of()
    answering(monkeypatch, *[WRONG] * seen_before, again)
    changes = unjudged(
        "the result changes from run to run",
        ("first", "wrong"),
        ("again", told),
        (
            "perhaps",
            "it reads uninitialised memory, which the purity check finds, random numbers without a seed, or a clock",
        ),
        ("form", "exact"),
        kind=NONDETERMINISTIC,
    )
    assert search._confirmation.confirmed(case_on(2), WRONG.verdict) == Confirmed(changes, False)
    assert unexplained == []


@pytest.mark.parametrize(("can_schedule", "is_named"), [(True, False), (False, True)])
def test_messages_from_any_source_are_a_cause_of_another_result_where_their_order_is_not_drawn(
    can_schedule: bool, is_named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, RIGHT)
    search = search_of(can_schedule=can_schedule)
    lines = dict(search._confirmation.confirmed(case_on(2), WRONG.verdict).verdict.lines)
    assert (
        lines["perhaps"].endswith("messages from any source, which come in another order each time")
        is is_named
    )


def test_a_wait_that_was_too_long_once_is_told_to_be_of_a_slow_rank_perhaps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answering(monkeypatch, RIGHT)
    blocked = unjudged("blocked", kind=FindingKind.BLOCKED, is_hang=True)
    lines = dict(search_of()._confirmation.confirmed(case_on(2), blocked).verdict.lines)
    assert (lines["first"], lines["again"]) == ("blocked", "no failure")
    assert lines["perhaps"].startswith("a rank took longer than the others wait for it")


def test_a_death_that_is_not_seen_again_stays_one_but_is_not_called_smallest(
    unexplained: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, RIGHT)
    told = unjudged("rank 1 is gone", ("again", "no failure, when it ran once more"), is_death=True)
    confirmed = search_of()._confirmation.confirmed(case_on(2), GONE.verdict)
    assert confirmed == Confirmed(told, is_seen_again=False)


def test_a_hang_that_was_shrunk_in_simulation_is_told_so_if_mpi_hangs_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answering(monkeypatch, HANGS)
    assert search_of()._confirmation.hang_under_mpi(case_on(2)) == unjudged(
        "deadlock",
        ("rank 0", "waits"),
        ("shrunk", "with simulated ranks, and seen again under MPI"),
        is_hang=True,
    )
    for other in (None, RIGHT, GONE):
        answering(monkeypatch, other)
        assert search_of()._confirmation.hang_under_mpi(case_on(2)) is None


def test_a_failing_case_keeps_the_schedules_that_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    case = case_on(2, schedules=schedules_from(5, 3))

    def run_case(run: Any, case: Case) -> Judgement | None:
        return WRONG if len(case.schedules) > 1 else OTHER if case.schedules[0].seed % 2 else None

    monkeypatch.setattr(module, "run_case", run_case)
    confirmation = search_of()._confirmation
    assert len(confirmation.with_fewer_schedules(case, WRONG.verdict).schedules) == 2
    assert confirmation.with_fewer_schedules(FAILING.case, WRONG.verdict) is FAILING.case


# The whole

CONFIRMED = Confirmed(incoherent("confirmed"))
CHANGES = Confirmed(unjudged("changes", kind=NONDETERMINISTIC), is_seen_again=False)
FIGURES: Figures = {Figure.GAIN: 2.0}


def conducted(
    monkeypatch: pytest.MonkeyPatch,
    *failures: Any,
    confirmed: Confirmed = CONFIRMED,
    shrinking: Shrinking | None = None,
) -> tuple[SearchResult, Search]:
    """The result of a search that comes to these smallest failures, and is `confirmed` so."""
    search = search_of()
    search._drawn.counts.judged, search._drawn.exact = 4, 3
    search._drawn.figures = FIGURES
    search._shrinking = shrinking
    waiting = list(failures)
    monkeypatch.setattr(search, "_smallest_failure", lambda: waiting.pop(0))
    monkeypatch.setattr(search._confirmation, "confirmed", lambda case, first: confirmed)
    return search.conduct(), search


def test_a_search_without_a_failure_has_the_number_of_cases_and_the_worst_figures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stopped_clock(monkeypatch)
    result, search = conducted(monkeypatch, None)
    expected = SearchResult(
        "RingShift",
        "adjoint",
        WorldName.MPI,
        coherent(),
        4,
        1,
        figures=FIGURES,
        exact=3,
        counts=search._drawn.counts,
    )
    assert result == expected
    too_few = unjudged("too few")
    result, search = conducted(monkeypatch, too_few)
    assert (result.verdict, result.tried, result.case) == (too_few, 4, None)


@pytest.mark.parametrize(
    ("smallest", "confirmed"),
    [(True, CONFIRMED), (False, CONFIRMED), (True, Confirmed(WRONG.verdict)), (True, CHANGES)],
)
def test_a_failure_is_reported_with_its_smallest_case_and_counts_among_the_judged(
    smallest: bool, confirmed: Confirmed, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run((), communicating=frozenset({0, 1}))
    begun = Shrinking(FirstFailure(case_on(3), run, None), WRONG, math.inf)
    begun.is_smallest = smallest
    result, search = conducted(monkeypatch, FAILING, confirmed=confirmed, shrinking=begun)
    assert result == SearchResult(
        "RingShift",
        "adjoint",
        WorldName.MPI,
        confirmed.verdict,
        tried=5,
        seed=1,
        seconds=result.seconds,
        case=case_on(2),
        spaces=SPACES,
        drawn_ranks=3,
        is_smallest=smallest and confirmed is not CHANGES,
        figures=FIGURES,
        exact=3,
        counts=CaseCounts(100, 5, 1, 1, 2),
    )
    assert 0 <= result.seconds < 10
    assert search.stage is Stage.CONFIRMING


def test_a_search_is_repeated_only_where_what_was_simulated_does_not_hang_under_mpi(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = Failing(case_on(1), WRONG)
    repeated: list[bool] = []
    monkeypatch.setattr(Search, "_repeat_without_simulation", lambda self: repeated.append(True))
    simulator = HangSimulator(right, Watchdog())
    begun = Shrinking(FirstFailure(case_on(3), Run(()), None), HANGS, math.inf, simulator)
    for seen in (HANGS, RIGHT):
        answering(monkeypatch, seen)
        result, _ = conducted(monkeypatch, FAILING, other, shrinking=begun)
        hangs = seen is HANGS
        assert (result.case, repeated) == ((case_on(2), []) if hangs else (case_on(1), [True]))
        assert result.verdict.headline == ("deadlock" if hangs else "confirmed")
    result, _ = conducted(monkeypatch, None, shrinking=begun)
    assert result.verdict.is_coherent
