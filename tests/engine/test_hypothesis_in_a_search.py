"""One search of Hypothesis: the cases that it runs, the failure that it returns, and its errors as sentences."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.errors import FailedHealthCheck, Flaky, HypothesisException
from msgspec import structs

import adjointlab as al
from adjointlab.checks.verdict import incoherent, unjudged
from adjointlab.engine import search as module
from adjointlab.engine.case import Case
from adjointlab.engine.discovery import found_as
from adjointlab.engine.hypothesis_searches import Failing, prepare
from adjointlab.engine.run_case import Judgement
from adjointlab.engine.search_result import Budget, SearchResult
from adjointlab.session import run_check
from adjointlab.worlds.run import Run
from adjointlab.worlds.world import WorldName
from tests.engine.unrun_searches import (
    OTHER,
    RIGHT,
    SPACES,
    WRONG,
    answering,
    begin_shrinking,
    case_on,
    search_of,
)
from tests.samples import RingShift, right

pytestmark = pytest.mark.mpi_skip


def lines(draw: Any, ranks: int) -> dict[str, Any]:
    return {"side": draw(st.integers(0, 9))}


DRAWN = al.subject(RingShift)(lines)


@pytest.mark.parametrize(
    ("error", "headline", "because"),
    [
        (Flaky("one\ntwo"), "the subject's strategy draws other cases from the same choices", "one"),
        (FailedHealthCheck("slow\nvery"), "the subject's strategy is unhealthy", "slow"),
        (HypothesisException(" no\nyes"), "the subject's strategy failed", "no"),
        (HypothesisException(), "the subject's strategy failed", "HypothesisException"),
    ],
)
def test_what_hypothesis_raises_is_no_verdict_but_a_sentence(
    error: Exception, headline: str, because: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = search_of(subject=DRAWN)

    def raising(case: Case) -> Judgement:
        raise error

    monkeypatch.setattr(search, "_judge", raising)
    found = search._searched(5, 1, 2)
    assert found == unjudged(headline, ("because", because))


def test_a_failing_assertion_of_hypothesis_is_the_interrupt_that_it_came_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    search = search_of(subject=DRAWN)

    def interrupted(case: Case) -> Judgement:
        try:
            raise KeyboardInterrupt("now")
        except KeyboardInterrupt:
            raise AssertionError  # noqa: B904

    def failing(case: Case) -> Judgement:
        raise AssertionError("of the engine")

    monkeypatch.setattr(search, "_judge", interrupted)
    with pytest.raises(KeyboardInterrupt, match="now"):
        search._searched(5, 1, 2)
    monkeypatch.setattr(search, "_judge", failing)
    with pytest.raises(AssertionError, match="of the engine"):
        search._searched(5, 1, 2)


@pytest.mark.parametrize("error", [pytest.fail.Exception("Timeout"), ValueError("Timeout")])
def test_what_ends_a_run_from_outside_ends_the_search_at_once_and_is_none_of_the_strategy(
    error: BaseException, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As a time limit of pytest-timeout, whose handler of a signal raises in the thread that waits for the ranks."""
    ran: list[int] = []

    def limited(world: al.SimulatedWorld, *arguments: Any, **options: Any) -> Run:
        ran.append(1)
        if ran[2:]:
            raise error
        return run(world, *arguments, **options)

    run = al.SimulatedWorld.run
    monkeypatch.setattr(al.SimulatedWorld, "run", limited)
    world = al.SimulatedWorld(2)
    with pytest.raises(type(error)) as raised:
        module.investigate(world, right, "adjoint", Budget(5))
    assert raised.value is error
    assert len(ran) == 3
    ran.clear()
    result = run_check(world, found_as(right), "adjoint", Budget(5, seed=1), tmp_path)
    assert result.result.verdict.headline == f"raised {type(error).__name__}: Timeout, while a case ran"


def test_a_failure_that_takes_seconds_to_see_is_not_shrunk_before_fewer_ranks_were_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = Judgement(unjudged("rank 1 has been at work for 5 s", kind="no return"), None)
    failed: list[int] = []

    def run_case(run: Any, case: Case, *_: Any) -> Judgement | None:
        if case.ranks == 1 or case.parameters["side"] < 2:
            return RIGHT
        failed.append(case.ranks)
        return slow

    monkeypatch.setattr(module, "run_case", run_case)
    search = search_of(subject=DRAWN)
    first = search._searched(60, 3, 3)
    assert isinstance(first, Failing)
    assert failed == [3]
    found = search._on_fewer_ranks(first)
    assert (found.case.ranks, found.case.parameters) == (2, {"side": 2})
    assert set(failed[1:]) == {2}


def test_a_search_of_hypothesis_runs_what_is_accepted_and_returns_the_smallest_failure_of_the_first_kind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[SearchResult] = []
    search = search_of(subject=DRAWN, on_failure=told.append)
    judged: list[Case] = []

    def run_case(run: Any, case: Case, *_: Any) -> Judgement | None:
        judged.append(case)
        side = case.parameters["side"]
        return WRONG if side > 5 else OTHER if side == 4 else None if side == 3 else RIGHT

    monkeypatch.setattr(module, "run_case", run_case)
    begun = begin_shrinking(search)
    found = search._searched(60, 2, 3, lambda case: case.parameters["side"] != 7)
    assert isinstance(found, Failing)
    assert (found.case.parameters, found.case.ranks, found.case.schedules) == ({"side": 6}, 2, ())
    assert {case.ranks for case in judged} == {2, 3}
    assert 7 not in {case.parameters["side"] for case in judged}
    assert {each.verdict.kind for each in told} == {"wrong"}
    assert search._shrinking is begun
    assert told[-1].case == found.case
    # Nothing new comes of the same stream.
    again = search_of(subject=DRAWN)
    monkeypatch.setattr(module, "run_case", lambda run, case, _: RIGHT)
    assert again._searched(20, 1, 1, lambda case: False) is None
    assert again._drawn.number == 0


@pytest.mark.parametrize(("can_schedule", "number"), [(True, 4), (False, 0)])
def test_cases_have_several_schedules_where_the_world_can_choose_them(
    can_schedule: bool, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = search_of(Budget(5, seed=1, schedules=4), DRAWN, can_schedule=can_schedule)
    judged = answering(monkeypatch, RIGHT)
    search._searched(5, 1, 1)
    assert {len(case.schedules) for case in judged} == {number}
    assert len(judged) == 5


def test_the_cases_of_a_search_follow_from_its_seed_its_check_and_the_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def drawn(seed: int, check: str = "adjoint", stream: str = "") -> list[Case]:
        search = search_of(Budget(20, seed=seed), DRAWN, check=check)
        judged = answering(monkeypatch, RIGHT)
        search._searched(20, 1, 2, stream=stream)
        return [structs.replace(case, check="") for case in judged]

    first = drawn(1)
    assert drawn(1) == first
    assert first not in (others := [drawn(2), drawn(1, "matrix"), drawn(1, stream=" on 2")])
    assert others[0] != others[1] != others[2] != others[0]


def test_a_failure_that_is_yet_to_be_made_smaller_says_so() -> None:
    search = search_of()
    search._drawn.counts.judged = 6
    begin_shrinking(search)
    lines = (("form", "exact"), ("interrupted", "before it was shrunk and seen again"))
    assert search._unconfirmed(case_on(2), WRONG) == SearchResult(
        "RingShift",
        "adjoint",
        WorldName.MPI,
        incoherent("wrong", *lines),
        tried=7,
        seed=1,
        case=case_on(2),
        spaces=SPACES,
        drawn_ranks=3,
    )


@pytest.mark.parametrize("seed", range(4))
def test_of_cases_that_fail_and_errors_of_the_strategy_one_is_told_without_advice_for_other_tests(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def strategy(draw: Any, ranks: int) -> dict[str, Any]:
        side = draw(st.integers(0, 99))
        if side > 60:
            raise ZeroDivisionError(f"side {side}")
        return {"side": side}

    search = search_of(Budget(100, seed=seed), al.subject(RingShift)(strategy))
    monkeypatch.setattr(
        module, "run_case", lambda run, case, *_: WRONG if case.parameters["side"] > 30 else RIGHT
    )
    with pytest.raises((ZeroDivisionError, Failing)) as told:
        raise search._searched(100, 1, 1)  # type: ignore[misc]
    assert "reproduce_failure" not in "".join(getattr(told.value, "__notes__", ()))


@pytest.mark.parametrize("is_prepared", [True, False])
def test_the_first_search_of_a_thread_looks_through_all_objects_unless_that_is_done_beforehand(
    is_prepared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, RIGHT)
    full: list[str] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] == 2:
            full.append(phase)

    def search() -> None:
        if is_prepared:
            prepare()
        full.clear()
        search_of(subject=DRAWN)._searched(2, 1, 2)

    gc.callbacks.append(note)
    gc.disable()  # so that none begins by itself
    thread = threading.Thread(target=search)
    try:
        thread.start()
        thread.join()
    finally:
        gc.enable()
        gc.callbacks.remove(note)
    assert bool(full) is not is_prepared
