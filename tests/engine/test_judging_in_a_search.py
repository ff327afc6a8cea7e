"""A search judges each case that is drawn once, counts it, and ends in time."""

from __future__ import annotations

import math
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

import adjointlab as al
from adjointlab.checks.check import Spaces
from adjointlab.checks.verdict import Figure, Measurement, coherent, unjudged
from adjointlab.engine import confirming, drawn_cases
from adjointlab.engine import search as module
from adjointlab.engine.case import Case
from adjointlab.engine.counts import CaseCounts
from adjointlab.engine.drawn_cases import _is_empty
from adjointlab.engine.hypothesis_searches import Enough, _unjudged, seed_of_draws
from adjointlab.engine.run_case import UNDECIDED, CaseRunner, Judgement, Stage
from adjointlab.engine.search_result import Budget, SearchResult
from adjointlab.worlds.run import Run
from adjointlab.worlds.schedule import schedules_from
from tests.engine.unrun_searches import (
    HANGS,
    RIGHT,
    SPACES,
    WRONG,
    Clock,
    answering,
    begin_shrinking,
    case_on,
    search_of,
    stopped_clock,
)

pytestmark = pytest.mark.mpi_skip


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return stopped_clock(monkeypatch)


def test_a_budget_has_the_defaults_of_the_options_and_refuses_what_they_refuse() -> None:
    assert Budget() == Budget(50, None, None, 60.0, 1, None, math.inf)
    for wrong in ({"cases": 0}, {"schedules": 0}, {"ranks": 0}, {"device": "tpu"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Budget(**wrong)  # type: ignore[arg-type]
    assert Budget(1, 1, 0, 0.0, 1, "cpu", 0.0).device == "cpu"


def test_a_result_of_a_search_that_has_not_begun_has_nothing_to_tell() -> None:
    empty = SearchResult("Ring", "adjoint", "mpi", coherent())
    assert empty == SearchResult(
        "Ring", "adjoint", "mpi", coherent(), 0, 0, 0.0, None, None, 0, False, {}, 0, None, ()
    )


def test_a_seed_of_the_searchs_own_has_32_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secrets.randbits", lambda bits: 2**bits - 1)
    assert search_of(Budget(5))._seed == 2**32 - 1
    assert search_of(Budget(5, seed=0))._seed == 0


@pytest.mark.parametrize(
    ("asked", "present", "ranks"), [(None, 3, 3), (1, 3, 1), (2, 3, 2), (3, 3, 3), (8, 3, 3)]
)
def test_a_search_takes_as_many_ranks_as_it_may_and_has(asked: int | None, present: int, ranks: int) -> None:
    search = search_of(Budget(5, ranks=asked), ranks=present)
    assert search._ranks == ranks
    assert search._needs_several_ranks == (ranks > 1)


def test_only_what_runs_in_processes_is_simulated_first() -> None:
    assert search_of()._simulator is None
    assert search_of(can_revoke=True)._simulator is not None


def test_a_seed_draws_the_same_in_every_release_and_something_else_for_each_check() -> None:
    # The first eight bytes of sha256(b"7 adjoint"), the lowest first.
    assert seed_of_draws(7, "adjoint") == 5296178333585022567
    assert len({seed_of_draws(seed, check) for seed in (0, 1) for check in ("adjoint", "matrix")}) == 4


def test_there_is_time_while_drawing_and_later_until_the_deadline_or_the_end_of_communicators(
    clock: Clock,
) -> None:
    search, exhausted = search_of(), search_of(is_exhausted=True)
    assert search._has_time()
    assert exhausted._has_time()
    for each in (search, exhausted):
        begin_shrinking(each, deadline=clock.now)
    assert search._has_time()
    assert not exhausted._has_time()
    clock.now += 1
    assert not search._has_time()


def test_a_check_may_be_ended_after_ten_cases_of_which_one_has_several_ranks() -> None:
    for ranks, judged, several, enough in (
        (3, 10, 1, True),
        (3, 9, 1, False),
        (3, 11, 0, False),
        (1, 10, 0, True),
        (1, 9, 0, False),
    ):
        search = search_of(ranks=ranks)
        search._drawn.counts = CaseCounts(100, judged=judged, on_several_ranks=several)
        assert search._has_judged_enough() is enough


def test_drawing_judges_each_case_anew_and_later_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks: list[int] = []
    search = search_of(tick=ticks.append)
    judged = answering(monkeypatch, RIGHT)
    for _ in range(2):
        assert search._judge(case_on(2)) is RIGHT
    drawn = search._drawn
    assert (len(judged), drawn.number, drawn.on_ranks, ticks) == (2, 2, {2: 2}, [1, 2])
    begin_shrinking(search)
    for stage in (Stage.SHRINKING, Stage.CONFIRMING):
        search.stage = stage
        assert [search._judge(case_on(2)), search._judge(case_on(2))] == [RIGHT, RIGHT]
    assert (len(judged), drawn.number, ticks) == (3, 2, [1, 2])


@pytest.mark.parametrize("is_known", [True, False])
def test_out_of_time_a_new_case_passes_unless_an_earlier_job_has_run_it(
    is_known: bool, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = Run(()) if is_known else None
    runner = CaseRunner(lambda *_, **__: Run(()), known=lambda case, times=1: known)
    search = search_of(runner=runner)
    judged = answering(monkeypatch, WRONG)
    begin_shrinking(search, deadline=clock.now)
    assert search._judge(case_on(2)) is WRONG
    clock.now += 1
    assert search._judge(case_on(2)) is WRONG
    assert search._judge(case_on(3)) == (WRONG if is_known else Judgement(coherent(), None))
    assert len(judged) == 1 + is_known


def test_coherent_cases_are_counted_with_their_figures_and_others_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    search = search_of()
    exact = Judgement(coherent({Figure.GAIN: 2.0}, is_exact=True), SPACES)
    empty_space = al.Space(al.Layout((0,), (2,)))
    empty = Judgement(coherent({Figure.GAIN: 9.0}, is_exact=True), Spaces(empty_space, empty_space))
    answering(monkeypatch, exact, RIGHT, None, empty, WRONG)
    given = [search._judge_next(case_on(ranks)) for ranks in (2, 1, 3, 2, 2)]
    assert given == [exact, RIGHT, None, None, WRONG]
    told = {"the observations allow no conclusion": 1, "no tensor of the case has an element": 1}
    drawn = search._drawn
    assert drawn.counts == CaseCounts(100, judged=2, on_several_ranks=1, rejected=told)
    assert (drawn.number, drawn.judged) == (5, 2)
    assert (drawn.exact, drawn.figures) == (1, {Figure.GAIN: 2.0})


def test_a_case_that_nothing_can_be_said_of_is_counted_by_what_the_check_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    search = search_of()
    answering(monkeypatch, None)
    monkeypatch.setattr(drawn_cases, "inapplicable_because", lambda run: "it has no reference")
    search._judge_next(case_on(2))
    assert search._drawn.counts.rejected == {"it has no reference": 1}


def test_rounding_is_first_measured_in_one_sample_while_cases_are_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Measurement] = []

    def run_case(run: Any, case: Case, first: Measurement) -> Judgement:
        asked.append(first)
        return RIGHT

    monkeypatch.setattr(module, "run_case", run_case)
    search_of()._judge_next(case_on(2))
    assert asked == [Measurement.ONE_SAMPLE]


def test_rounding_is_measured_at_once_after_a_case_whose_judge_has_asked_for_it_in_vain_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    search = search_of()
    asked = Judgement(coherent({Figure.ROUNDING: 0.5}), SPACES)
    in_vain = Judgement(unjudged("nothing is known", kind=UNDECIDED), SPACES)
    judged = answering(monkeypatch, in_vain, None, asked, RIGHT, RIGHT)
    for _ in range(5):
        search._judge_next(case_on(2))
    none, some, everything = Measurement
    assert [case.measurement for case in judged] == [none, everything, everything, some, none]


@pytest.mark.parametrize(
    ("until", "judged", "is_ended"), [(99.0, 10, True), (100.0, 10, False), (99.0, 9, False)]
)
def test_after_its_seconds_a_search_judges_no_more_than_ten_cases(
    until: float, judged: int, is_ended: bool, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = search_of(ranks=1)
    search._drawn_until, search._drawn.counts.judged = until, judged
    answering(monkeypatch, WRONG)
    with pytest.raises(Enough) if is_ended else nullcontext():
        assert search._judge_next(case_on(1)) == WRONG
    assert search._drawn.counts == (
        CaseCounts(judged, judged, is_cut_short=True) if is_ended else CaseCounts(100, judged)
    )


def test_of_a_strategy_whose_cases_are_nearly_all_rejected_no_more_are_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    search = search_of()
    search._drawn.counts.rejected = {"why": 801}
    judged = answering(monkeypatch, WRONG)
    with pytest.raises(Enough):
        search._judge_next(case_on(1))
    assert (judged, search._drawn.counts.judged) == ([], 0)


def test_a_drawn_case_is_judged_in_simulation_where_the_failure_was_reproduced_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    search = search_of()
    asked: list[tuple[Case, str]] = []
    simulator: Any = SimpleNamespace(judged=lambda case, kind: asked.append((case, kind)) or HANGS)
    begin_shrinking(search, HANGS, simulator=simulator)
    judged = answering(monkeypatch, WRONG)
    assert search._run_and_judge(case_on(3)) is HANGS
    assert (asked, judged) == ([(case_on(3), "deadlock")], [])


@pytest.mark.parametrize(
    ("stage", "has_time", "done", "times"),
    [
        (Stage.DRAWING, True, 6, 1),
        (Stage.SHRINKING, True, 7, 1),
        (Stage.CONFIRMING, True, 7, 2),
        (Stage.CONFIRMING, False, 7, 1),
    ],
)
def test_a_case_runs_with_its_stage_and_the_number_of_those_before_it(
    stage: Stage, has_time: bool, done: int, times: int, clock: Clock
) -> None:
    run = Run((), decisions="1")
    given: list[Any] = []
    search = search_of(runner=lambda *args, **named: given.append((args, named)) or run)
    if stage is not Stage.DRAWING:
        begin_shrinking(search, deadline=clock.now if has_time else clock.now - 1)
    search.stage, search._drawn.number = stage, 7
    schedule = schedules_from(5, 2)[1]
    assert search._run(case_on(2), 2) is run
    assert search._last_run is run
    search._run(case_on(2), 2, seed=5, schedule=schedule)
    of_search = {"stage": stage, "done": done, "times": times, "step_from": None}
    assert given == [
        ((case_on(2), 2), {"seed": 0, "schedule": None} | of_search),
        ((case_on(2), 2), {"seed": 5, "schedule": schedule} | of_search),
    ]


# The first failure, and a search that is repeated


@pytest.mark.parametrize(
    ("first", "simulated", "is_simulated"),
    [
        (WRONG, HANGS, False),
        (HANGS, HANGS, True),
        (HANGS, RIGHT, False),
        (HANGS, None, False),
        (HANGS, "no simulator", False),
    ],
)
def test_the_first_failure_starts_the_clock_and_a_hang_that_is_reproduced_is_shrunk_in_simulation(
    first: Judgement, simulated: Any, is_simulated: bool, clock: Clock
) -> None:
    search = search_of(Budget(10, seed=1, shrinking=20.0))
    if simulated != "no simulator":
        stub: Any = SimpleNamespace(judged=lambda case: simulated)
        search._simulator = stub
    search._last_run = Run((), decisions="1")
    judgement = search._begin_shrinking(case_on(3), first)
    assert judgement is (simulated if is_simulated else first)
    begun = search._shrinking
    assert begun is not None
    assert (search.stage, begun.deadline, begun.kind) == (
        Stage.SHRINKING,
        clock.now + 20,
        judgement.verdict.kind,
    )
    assert begun.first == (case_on(3), search._last_run, SPACES)
    assert search._is_shrunk_in_simulation is is_simulated
    assert search._judge(case_on(3)) is judgement


def test_a_repeated_search_passes_over_the_cases_before_the_failure(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks: list[int] = []
    search = search_of(can_revoke=True, tick=ticks.append)
    judged = answering(monkeypatch, RIGHT, None, RIGHT, HANGS)
    for ranks in (1, 2, 3, 2):
        search._judge_next(case_on(ranks))
    begin_shrinking(search, HANGS, clock.now + 12, search._simulator)
    search.stage = Stage.CONFIRMING
    search._repeat_without_simulation()
    drawn = search._drawn
    assert (search.stage, search._seconds_left) == (Stage.DRAWING, 12)
    assert (search._simulator, search._shrinking) == (None, None)
    assert (drawn.number, drawn.judged, drawn.on_ranks) == (0, 0, {})
    passed = Judgement(coherent(), None)
    assert [search._judge_next(case_on(ranks)) for ranks in (1, 2, 3)] == [passed, None, passed]
    assert (len(judged), ticks) == (4, [1, 2, 3, 4])
    assert search._judge_next(case_on(2)) is HANGS
    assert (len(judged), ticks) == (5, [1, 2, 3, 4, 4])
    assert (drawn.judged, drawn.counts.judged) == (2, 2)


@pytest.mark.parametrize("number", [10, 80, 90, 97])
def test_a_repeated_search_comes_to_the_failure_again_however_late_it_was(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hang that simulation has made smaller, to a case that does not hang under MPI: the search goes back to the first one."""
    search = search_of(Budget(100, seed=1), can_revoke=True, can_schedule=False)
    search._runner = SimpleNamespace(known=lambda case: None)  # type: ignore[assignment]
    search._simulator = SimpleNamespace(judged=lambda case, kind="": HANGS)  # type: ignore[assignment]
    judged: list[Case] = []

    def run_case(run: Any, case: Case, *_: Any) -> Judgement:
        judged.append(case)
        is_hanging = len(judged) >= number and case.key() == judged[number - 1].key()
        return HANGS if is_hanging else RIGHT

    for each in (module, confirming):
        monkeypatch.setattr(each, "run_case", run_case)
    result = search.conduct()
    assert result.verdict == HANGS.verdict
    assert result.case == judged[number - 1]


def test_spaces_are_empty_if_they_have_tensors_and_none_of_them_an_element() -> None:
    full, empty = (al.Tensor(al.Layout((side, 2), (1, 1)), name=f"t{side}") for side in (1, 0))
    nothing = al.Space()
    for domain, codomain, is_empty in (
        ((empty,), (empty,), True),
        ((full,), (empty,), False),
        ((empty,), (full,), False),
        ((empty, full), (empty,), False),
        ((empty,), (), True),
        ((), (), False),
    ):
        pair = (al.Space(*each) if each else nothing for each in (domain, codomain))
        assert _is_empty(Spaces(*pair)) is is_empty
    assert not _is_empty(None)


def test_the_first_line_of_an_error_says_why_there_is_no_verdict_or_else_its_kind() -> None:
    assert _unjudged("it failed", ValueError("\n one\ntwo ")) == unjudged("it failed", ("because", "one"))
    assert _unjudged("it failed", ValueError("  ")) == unjudged("it failed", ("because", "ValueError"))
