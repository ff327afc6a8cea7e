"""A search keeps what it promises of the cases that it draws, counts, confirms and calls smallest."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import strategies as st

import adjointlab as al
from adjointlab.checks.context import InputSetting
from adjointlab.checks.verdict import Status
from adjointlab.engine.case import Case
from adjointlab.engine.interleavings import narrowed
from adjointlab.engine.run_case import CaseRunner, Stage, judge
from adjointlab.engine.search import Search, investigate
from adjointlab.engine.search_result import Budget, SearchResult
from adjointlab.engine.simulate_first import HangSimulator
from adjointlab.engine.subject import Subject
from adjointlab.worlds.run import Blocked, Finding, FindingKind, Run
from adjointlab.worlds.schedule import schedules_from
from adjointlab.worlds.simulated.world import SimulatedWorld
from adjointlab.worlds.watchdog import Watchdog
from tests.engine.unrun_searches import begin_shrinking
from tests.samples import right, wrong


def searched(subject: Subject, check: str = "adjoint", **budget: Any) -> tuple[SearchResult, list[Case]]:
    """The result of a search on at most two ranks, and the cases that it drew."""
    drawn: list[Case] = []

    def record(case: Case, done: int, stage: Stage) -> None:
        if stage is Stage.DRAWING:
            drawn.append(case)

    result = investigate(SimulatedWorld(2), subject, check, Budget(seed=1, **budget), record=record)
    return result, drawn


@pytest.mark.parametrize(("seconds", "judged"), [(0.0, range(10, 30)), (60.0, range(40, 41))])
def test_after_its_time_a_search_draws_no_more_than_the_least_number(seconds: float, judged: range) -> None:
    result, _ = searched(right, cases=40, seconds=seconds)
    assert result.verdict.is_coherent
    assert result.counts is not None
    assert result.counts.judged in judged
    assert result.counts.on_several_ranks > 0
    assert result.counts.is_cut_short == (seconds == 0.0)
    assert result.counts.asked == result.counts.judged
    few, _ = searched(right, cases=6, seconds=seconds)
    assert few.counts is not None
    assert (few.counts.judged, few.counts.is_cut_short) == (6, False)


def test_each_case_is_recorded_with_the_number_of_those_that_were_drawn_before() -> None:
    recorded: list[tuple[Stage, int]] = []
    result = investigate(
        SimulatedWorld(2),
        wrong,
        "adjoint",
        Budget(30, seed=1),
        record=lambda case, done, stage: recorded.append((stage, done)),
    )
    drawing = [done for stage, done in recorded if stage is Stage.DRAWING]
    assert drawing == list(range(result.tried))
    later = {done for stage, done in recorded if stage is not Stage.DRAWING}
    assert later == {result.tried}


@pytest.mark.parametrize(("ago", "least", "most"), [(100.0, 0.0, 0.0), (-100.0, 90.0, 100.0)])
def test_a_search_that_is_repeated_has_the_seconds_that_are_left(
    ago: float, least: float, most: float
) -> None:
    world = SimulatedWorld(2)
    search = Search(world, CaseRunner(world.run), right, "adjoint", Budget(10, seed=1), lambda tried: None)
    begin_shrinking(search, deadline=time.monotonic() - ago)
    search._repeat_without_simulation()
    assert least <= search._seconds_left <= most
    assert search.stage is Stage.DRAWING


def test_every_batch_draws_other_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adjointlab.engine.search._BATCH", 6)
    _, drawn = searched(right, cases=18)
    batches = [{case.key() for case in drawn[start : start + 6]} for start in (0, 6, 12)]
    assert all(len(batch) > 3 for batch in batches)
    for one, other in ((0, 1), (1, 2), (0, 2)):
        assert len(batches[one] & batches[other]) <= 1  # each begins with the simplest case


def test_every_check_draws_other_cases() -> None:
    of_each = [
        {case.setting.seed for case in searched(right, check, cases=10)[1]} for check in ("adjoint", "matrix")
    ]
    assert len(of_each[0] & of_each[1]) < 3  # the simplest seed, 0, may be in both


def test_every_case_has_schedules_of_its_own() -> None:
    _, drawn = searched(right, cases=6, schedules=3)
    assert [case.schedules for case in drawn] == [schedules_from(case.schedule, 3) for case in drawn]
    assert len({case.schedules for case in drawn}) > 3


def test_fresh_memory_of_layers_is_filled_with_each_fill() -> None:
    torch = pytest.importorskip("torch")
    found = set()

    def make(comm: Any, layout: al.Layout) -> Any:
        found.add(str(torch.empty(1).item()))
        return torch.nn.Identity()

    @al.subject.layer(make, sequential=lambda layout: torch.nn.Identity(), ranks=(1,))
    def identities(draw: Any, ranks: int) -> dict[str, Any]:
        layout = al.Layout((2,), (1,))
        return {"layout": layout, "domain": al.Space(layout), "codomain": al.Space(layout)}

    assert searched(identities, "gradients", cases=8)[0].status is Status.COHERENT
    assert found == {"nan", "77.0"}


class Local(al.LinearOperator):
    """The identity, wrong as `is_wrong` says of the instance."""

    gain: int | None = 1
    is_wrong: ClassVar[Callable[[Any], bool]] = staticmethod(lambda operator: False)

    def __init__(self, comm: Any, side: int = 2) -> None:
        self.comm, self.side = comm, side
        self.domain = self.codomain = al.Space(al.Layout((side,), al.Partition((1,))))

    def forward(self, x: Any) -> Any:
        return np.array(x)

    def adjoint(self, y: Any) -> Any:
        return 2 * y if type(self).is_wrong(self) else np.array(y)


class OfNoGain(Local):
    gain = None


def subject_of(kind: type[Local], sides: Any, **options: Any) -> Subject:
    @al.subject(kind, ranks=(1,), **options)
    def drawn(draw: Any, ranks: int) -> dict[str, Any]:
        return {"side": draw(sides)}

    return drawn


@pytest.mark.parametrize(("kind", "exact"), [(Local, 7), (OfNoGain, 0)])
def test_cases_count_as_exact_that_were_judged_without_a_tolerance(kind: type[Local], exact: int) -> None:
    result, _ = searched(subject_of(kind, st.integers(1, 3)), cases=7)
    assert (result.tried, result.exact) == (7, exact)


def test_cases_without_an_element_do_not_count() -> None:
    result, _ = searched(subject_of(Local, st.just(0)), cases=5)
    assert result.status is Status.UNJUDGED
    assert "no tensor of the case has an element" in str(result.verdict)


@pytest.mark.parametrize("mismatch", [FindingKind.MISMATCHED_MESSAGE, FindingKind.MISMATCHED_COLLECTIVE])
def test_a_mismatch_is_named_before_the_deadlock_that_follows_from_it(mismatch: FindingKind) -> None:
    blocked = (Blocked("Recv(source=1)", "ring.py:7", (1,)), Blocked("Recv(source=0)", "ring.py:7", (0,)))
    findings = tuple(Finding(kind, kind) for kind in (FindingKind.DEADLOCK, mismatch))
    case = Case("Ring", "adjoint", 2, {}, InputSetting(), 0)
    for each in (findings, findings[::-1]):
        assert judge(case, Run(blocked, each)).kind == mismatch


@pytest.mark.parametrize("mended_after", [2, 5, 9])
def test_a_failure_that_once_is_not_seen_again_changes_from_run_to_run(mended_after: int) -> None:
    confirmations = 0

    class Mended(Local):
        is_wrong = staticmethod(lambda operator: confirmations <= mended_after)

    def record(case: Case, done: int, stage: Stage) -> None:
        nonlocal confirmations
        confirmations += stage is Stage.CONFIRMING

    subject = subject_of(Mended, st.just(1))
    found = investigate(SimulatedWorld(1), subject, "adjoint", Budget(5, seed=1), record=record)
    assert found.verdict.kind == "nondeterministic"


def test_a_case_is_smallest_only_if_all_its_steps_were_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    class FromThree(Local):
        is_wrong = staticmethod(lambda operator: operator.side > 2)

    subject = subject_of(FromThree, st.integers(1, 6))
    assert searched(subject, cases=20)[0].is_smallest
    monkeypatch.setattr("adjointlab.engine.search.MOST_STEPS", 1)
    assert not searched(subject, cases=20)[0].is_smallest


def test_a_failure_on_two_ranks_is_tried_on_one(monkeypatch: pytest.MonkeyPatch) -> None:
    # As where the shrinker holds on to the number of ranks: only cases that are drawn anew have another.
    asked: list[int] = []
    whole = Search._searched

    def noted(self: Any, number: int, least: int, most: int, *others: Any, **more: Any) -> Any:
        asked.append(most)
        return whole(self, number, least, most, *others, **more)

    monkeypatch.setattr(Search, "_searched", noted)
    result, _ = searched(wrong, cases=20)
    assert result.case is not None
    assert result.case.ranks == 2
    assert 1 in asked


def test_the_decisions_of_a_schedule_are_those_of_a_run_of_the_case() -> None:
    case = Case("Ring", "adjoint", 2, {}, InputSetting(), 5, schedules_from(5, 3))
    ran: list[tuple[int, Any]] = []

    def run(payload: Case, ranks: int, *, seed: int = 0, schedule: Any = None) -> Run:
        ran.append((seed, schedule))
        return Run(())

    kept = narrowed(run, case, lambda few: case.schedules[1] in few.schedules)
    assert ran == [(5, case.schedules[1])]
    assert kept.schedules == (case.schedules[1],)


def test_a_hang_is_looked_for_under_other_schedules_than_the_first() -> None:
    class SendsFirst(al.LinearOperator):
        """Waits for ever where messages are not buffered; ranks in turn buffer them."""

        gain = 1

        def __init__(self, comm: Any) -> None:
            self.comm = comm
            self.domain = self.codomain = al.Space(al.Layout((2,), (2,)))

        def forward(self, x: Any) -> Any:
            other, result = 1 - self.comm.Get_rank(), np.empty_like(x)
            self.comm.Send(np.ascontiguousarray(x), other)
            self.comm.Recv(result, other)
            return result

        adjoint = forward

    @al.subject(SendsFirst, ranks=(2,))
    def sends_first(draw: Any, ranks: int) -> dict[str, Any]:
        return {}

    case = Case("SendsFirst", "adjoint", 2, {}, InputSetting(), 4)
    judgement = HangSimulator(sends_first, Watchdog()).judged(case)
    assert judgement is not None
    assert judgement.verdict.is_hang


def test_the_dot_test_claims_every_entry_only_where_it_has_probed_them_all() -> None:
    class Sum(al.LinearOperator):
        """From many elements to one, of a gain that is not known."""

        def __init__(self, comm: Any, side: int) -> None:
            self.comm, self.side = comm, side
            self.domain = al.Space(al.Layout((side,), (1,)))
            self.codomain = al.Space(al.Layout((1,), (1,)), name="y")

        def forward(self, x: Any) -> Any:
            return x.sum(keepdims=True)

        def adjoint(self, y: Any) -> Any:
            return np.repeat(y, self.side)

    for side, claimed in ((256, "every entry"), (257, "within rounding, in which a small error may hide")):
        run = SimulatedWorld(1).run(lambda context, side: al.check_adjoint(Sum(context.comm, side)), side, 1)
        assert str(run.values[0]) == f"coherent ({claimed}, on one rank alone)"
