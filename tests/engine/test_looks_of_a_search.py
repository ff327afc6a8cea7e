"""Each comparison that a search makes between cases, runs and schedules, beside a pair that nothing else tells apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

import adjointlab as al
from adjointlab.checks.context import InputSetting
from adjointlab.checks.elements import EXACT
from adjointlab.checks.schedule_invariant import ElementResult
from adjointlab.checks.verdict import Status, Verdict, coherent, incoherent, unjudged
from adjointlab.engine.case import Case
from adjointlab.engine.interleavings import DEPENDS, judge_all, narrowed
from adjointlab.engine.search import _is_smaller, investigate
from adjointlab.engine.search_result import Budget, SearchResult
from adjointlab.engine.single_steps import size
from adjointlab.store.corpus import stored
from adjointlab.store.reproducer import read, write_case
from adjointlab.worlds.run import Raised, Run
from adjointlab.worlds.schedule import Schedule, schedules_from
from adjointlab.worlds.simulated.world import SimulatedWorld
from tests.checks.looks.operators import on, ring
from tests.samples import right


class WrongOrRaises(al.LinearOperator):
    """Its adjoint is wrong from three elements on; two it does not take at all."""

    gain = 2

    def __init__(self, comm: Any, side: int) -> None:
        self.comm, self.side = comm, side
        self.domain = self.codomain = al.Space(al.Layout((side,), al.Partition((1,))))

    def forward(self, x: Any) -> Any:
        if self.side == 2:
            raise ValueError("side: 2 is one that nobody has thought of")
        return np.array(x)

    def adjoint(self, y: Any) -> Any:
        return 2 * y if self.side > 2 else np.array(y)


@al.subject(WrongOrRaises, ranks=(1,))
def wrong_or_raises(draw: Any, ranks: int) -> dict[str, Any]:
    return {"side": draw(st.integers(1, 6))}


def test_a_failure_is_like_one_of_its_kind_and_a_death_like_another_death() -> None:
    one, other = incoherent("wrong on rank 0", kind="wrong"), incoherent("wrong on rank 1", kind="wrong")
    death, another = (replace(unjudged(text), is_death=True) for text in ("a signal", "an exit"))
    assert one.kind == "wrong"
    assert one.fails_like(other)
    assert death.fails_like(another)
    for first, second in ((one, incoherent("wrong on rank 0")), (one, death), (death, one)):
        assert not first.fails_like(second)


@pytest.mark.parametrize("seed", range(4))
def test_a_failure_is_made_smaller_as_one_of_its_kind(seed: int) -> None:
    first: list[SearchResult] = []
    world = SimulatedWorld(1)
    report = investigate(world, wrong_or_raises, "adjoint", Budget(50, seed=seed), on_failure=first.append)
    assert report.case is not None
    kind = first[0].verdict.kind
    assert {each.verdict.kind for each in first} == {kind}
    assert report.verdict.kind == kind
    smallest = {"adjoint is not the transpose of forward": 3, "raised ValueError": 2}
    assert report.case.parameters["side"] == smallest[kind]
    assert report.is_smallest


# Several schedules.

CASE = Case("Ring", "adjoint", 2, {}, InputSetting(), 5, schedules_from(5, 3))
RUNS = [Run(()) for _ in range(3)]
SPACE = al.Space(al.Layout((2,), al.Partition((1,))))
WRONG = incoherent("wrong", ("a", "b"))


def judged(verdicts: list[Verdict], results: list[list[float]] | None = None) -> Verdict:
    """The verdict of three runs with these verdicts, and with these results."""
    found = results or [[1.0, 2.0]] * 3

    def invariants(case: Case, run: Run) -> dict[str, ElementResult]:
        index = next(number for number, each in enumerate(RUNS) if each is run)
        return {"forward": ElementResult(SPACE, [(np.array(found[index]),)], EXACT)}

    return judge_all(CASE, RUNS, verdicts, invariants)


RIGHT = coherent()


@pytest.mark.parametrize("other", [1, 2])
@pytest.mark.parametrize("element", [0, 1])
def test_the_results_of_every_schedule_are_compared(other: int, element: int) -> None:
    results = [[1.0, 2.0] for _ in range(3)]
    results[other][element] = 7.0
    found = judged([RIGHT] * 3, results)
    assert found.kind == DEPENDS
    assert dict(found.lines) == {
        "of": f"forward, x[{element}] (rank 0)",
        f"under {CASE.schedules[0]}": f"{element + 1}",
        f"under {CASE.schedules[other]}": "7",
    }
    assert judged([RIGHT] * 3) is RIGHT


@pytest.mark.parametrize("wrong", [0, 1, 2])
def test_a_schedule_that_alone_is_wrong_or_alone_is_right_is_told(wrong: int) -> None:
    verdicts = [RIGHT] * 3
    verdicts[wrong] = WRONG
    found = judged(verdicts)
    assert found.kind == DEPENDS
    assert (f"under {CASE.schedules[wrong]}", "wrong") in found.lines
    assert ("a", "b") in found.lines
    one_right = [WRONG] * 3
    one_right[wrong] = RIGHT
    assert (f"under {CASE.schedules[wrong]}", "coherent") in judged(one_right).lines
    assert judged([WRONG] * 3) is WRONG


@pytest.mark.parametrize("stuck", [0, 1, 2])
def test_a_schedule_that_cannot_be_judged_is_that_failure_with_the_number_of_such(stuck: int) -> None:
    verdicts = [RIGHT] * 3
    verdicts[stuck] = unjudged("deadlock")
    found = judged(verdicts)
    assert (found.status, found.headline) == (Status.UNJUDGED, "deadlock")
    (label, note), *_ = found.lines
    other = 1 if stuck == 0 else 0
    assert label == "schedules"
    assert note == f"1 of 3 fail so, such as {CASE.schedules[stuck]}; not so {CASE.schedules[other]}"
    assert judged([unjudged("deadlock")] * 3).lines == ()


@pytest.mark.parametrize("needed", [(0,), (2,), (0, 2), (1, 2)])
def test_a_failure_keeps_the_schedules_that_it_needs_and_no_others(needed: tuple[int, ...]) -> None:
    wanted = {CASE.schedules[number] for number in needed}

    def run(payload: Case, ranks: int, **given: Any) -> Run:
        return Run((), decisions="")

    kept = narrowed(run, CASE, lambda case: wanted <= set(case.schedules))
    assert set(kept.schedules) == wanted
    tried: list[tuple[Schedule, ...]] = []
    assert narrowed(run, CASE, lambda case: tried.append(case.schedules) is not None) is CASE
    a, b, c = CASE.schedules
    assert tried == [(a,), (b,), (c,), (a, b), (a, c), (b, c)]


def test_the_schedules_of_a_failure_stand_in_its_file(tmp_path: Path) -> None:
    path = write_case(CASE, "samples:right", "simulated", unjudged("deadlock"), tmp_path)
    assert read(path).case == CASE
    case = Case("RingShift", "adjoint", 2, {}, InputSetting(7), 5, CASE.schedules[:2])
    write_case(case, right.location, "simulated", unjudged("deadlock"), tmp_path)
    assert [each for _, each in stored(tmp_path, right, "adjoint")] == [case]  # type: ignore[arg-type]
    assert stored(tmp_path, right, "matrix") == []  # type: ignore[arg-type]


# Sizes.


def test_the_size_of_a_case_counts_ranks_uneven_cuts_workers_sides_and_integers() -> None:
    layout = al.Layout.cut((4, 6), al.Partition((1, 2)), [None, (0, 1, 6)])
    case = Case(
        "Ring", "adjoint", 3, {"layout": layout, "grid": al.Partition((3,)), "root": -2}, InputSetting(), 0
    )
    # Ranks 3; the second dimension is uneven; workers 3 + 2; sides 4 + 6; |−2|
    assert size(case) == (3, 1, 5, 10, 2)


def test_a_case_is_smaller_if_no_size_is_greater_and_one_is_less() -> None:
    def case(ranks: int, side: int) -> Case:
        return Case("Ring", "adjoint", ranks, {"side": side}, InputSetting(), 0)

    assert _is_smaller(case(2, 3), than=case(3, 3))
    assert _is_smaller(case(3, 2), than=case(3, 3))
    assert not _is_smaller(case(3, 3), than=case(3, 3))
    assert not _is_smaller(case(4, 2), than=case(3, 3))
    assert not _is_smaller(case(2, 4), than=case(3, 3))


@pytest.mark.parametrize(("gain", "form"), [(1, "exact"), (None, "within rounding")])
def test_the_dot_test_of_one_instance_tells_inner_products_and_the_wrong_entry(
    gain: int | None, form: str
) -> None:
    make = ring(gain=gain, adjoint=on(1))
    run = SimulatedWorld(2).run(lambda context, _: al.check_adjoint(make(context.comm)), None, 2)
    for outcome in run.outcomes:
        assert isinstance(outcome, Raised)
        for part in (
            "Ring: adjoint is not the transpose of forward",
            "⟨Fx, y⟩",
            form,
            "moves x[",
            "gives that entry weight 2",
        ):
            assert part in outcome.message
