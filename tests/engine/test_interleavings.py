"""Of two runs of a case under several schedules, the call that was answered otherwise is told and shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import pytest
from msgspec import structs

from adjointlab.checks.context import InputSetting
from adjointlab.checks.elements import Difference
from adjointlab.checks.schedule_invariant import InnerProductResult, ScheduleInvariant
from adjointlab.checks.verdict import Verdict, coherent, incoherent, unjudged
from adjointlab.core.pairing import Exact
from adjointlab.engine.case import Case
from adjointlab.engine.interleavings import DEPENDS, judge_all, narrowed
from adjointlab.worlds.run import Matched, Run
from adjointlab.worlds.schedule import Schedule, encode, schedules_from

CASE = Case("Ring", "adjoint", 3, {}, InputSetting(), 5, schedules_from(5, 2))
WRONG = incoherent("wrong")


@dataclass(frozen=True)
class AnyCall:
    where: str = "here.py:3"

    def __str__(self) -> str:
        return "Recv(ANY_SOURCE)"


def run(*calls: tuple[int, int]) -> Run:
    """A run with calls of these ranks, answered by these senders."""
    matched = (Matched(rank, AnyCall(), f"has {sender}", sender) for rank, sender in calls)
    return Run((), matched=tuple(matched))


@pytest.mark.parametrize("is_swapped", [False, True])
def test_the_first_call_of_the_first_rank_that_was_answered_otherwise_is_told(is_swapped: bool) -> None:
    # Ranks 0 and 2 are answered alike at first, and rank 0 makes a call more.
    same = [(2, 4)] * 9
    runs = [run(*same, (2, 0), (0, 1), (0, 5), (2, 1)), run((0, 1), *same, (2, 3), (2, 0))]
    one, other = runs[::-1] if is_swapped else runs
    verdict = judge_all(CASE, [one, other], [coherent(), WRONG], lambda case, run: {})
    first, second = (3, 0) if is_swapped else (0, 3)
    text = f"rank 2 in Recv(ANY_SOURCE) at here.py:3 has {first}\nand has {second} under the other schedule (its call number 10 that may)"
    assert ("because", text) in verdict.lines


def test_of_several_ranks_the_first_is_told() -> None:
    runs = [run((2, 4), (2, 0), (0, 1)), run((2, 4), (2, 3), (0, 2))]
    verdict = judge_all(CASE, runs, [coherent(), WRONG], lambda case, run: {})
    text = "rank 0 in Recv(ANY_SOURCE) at here.py:3 has 1\nand has 2 under the other schedule (its call number 1 that may)"
    assert dict(verdict.lines)["because"] == text


@pytest.mark.parametrize(("at", "start"), [(0, 0), (5, 0), (10, 4), (None, 0)])
def test_a_picture_shows_the_calls_around_the_first_that_was_answered_otherwise(
    at: int | None, start: int
) -> None:
    def run_with(other: int) -> Run:
        return run(*((number, other if number == at else 1) for number in range(20)))

    verdict = judge_all(CASE, [run_with(2), run_with(3)], [coherent(), WRONG], lambda case, run: {})
    assert verdict.evidence is not None
    for shown, sender, schedule in zip(verdict.evidence.matched, (2, 3), CASE.schedules, strict=False):
        ranks = [each.rank for each in shown.calls]
        assert ranks == list(range(start, start + 12))
        assert shown.schedule == str(schedule)
        assert shown.different == (None if at is None else at - start)
        assert [each.sender for each in shown.calls] == [sender if each == at else 1 for each in ranks]


# Verdicts

OF_THREE = structs.replace(CASE, schedules=(Schedule(), Schedule("random", 4), Schedule("pct", 5, 2)))
RIGHT = coherent()
LATE, CRASHED = unjudged("late", ("rank", "1"), kind="late"), unjudged("crashed", kind="crashed")
OTHER = incoherent("other", ("at", "3"))


def judged(*verdicts: Verdict, results: Mapping[str, tuple[ScheduleInvariant, ...]] | None = None) -> Verdict:
    """The verdict of three runs with these results, by name."""
    runs = [run() for _ in verdicts]

    def invariants(case: Case, run: Run) -> dict[str, ScheduleInvariant]:
        assert case == OF_THREE
        number = next(number for number, each in enumerate(runs) if each is run)
        return {name: each[number] for name, each in (results or {}).items() if each[number] is not None}

    return judge_all(OF_THREE, runs, verdicts, invariants)


@pytest.mark.parametrize(
    ("verdicts", "note"),
    [
        ((LATE, RIGHT, CRASHED), "2 of 3 fail so, such as ranks in turn; not so random, seed 4"),
        ((LATE, CRASHED, WRONG), "2 of 3 fail so, such as ranks in turn; not so pct, depth 2, seed 5"),
        ((WRONG, LATE, RIGHT), "1 of 3 fail so, such as random, seed 4; not so ranks in turn"),
        ((RIGHT, RIGHT, LATE), "1 of 3 fail so, such as pct, depth 2, seed 5; not so ranks in turn"),
    ],
)
def test_the_first_run_that_could_not_be_judged_is_told_with_one_that_could(
    verdicts: tuple[Verdict, ...], note: str
) -> None:
    assert judged(*verdicts) == replace(LATE, lines=(("schedules", note), ("rank", "1")))


def test_what_all_runs_have_is_told_of_the_first() -> None:
    assert judged(CRASHED, LATE, LATE) is CRASHED
    assert judged(OTHER, WRONG, WRONG) is OTHER
    assert judged(RIGHT, replace(RIGHT), replace(RIGHT)) is RIGHT


@pytest.mark.parametrize(
    ("verdicts", "wrong", "right"),
    [
        ((RIGHT, OTHER, WRONG), "random, seed 4", "ranks in turn"),
        ((OTHER, RIGHT, WRONG), "ranks in turn", "random, seed 4"),
        ((OTHER, WRONG, RIGHT), "ranks in turn", "pct, depth 2, seed 5"),
        ((RIGHT, RIGHT, OTHER), "pct, depth 2, seed 5", "ranks in turn"),
    ],
)
def test_results_that_are_wrong_in_some_runs_depend_on_the_schedule(
    verdicts: tuple[Verdict, ...], wrong: str, right: str
) -> None:
    found = judged(*verdicts)
    assert (found.headline, found.kind) == (DEPENDS, DEPENDS)
    assert found.lines == ((f"under {right}", "coherent"), (f"under {wrong}", "other"), ("at", "3"))
    assert found.evidence is not None
    assert [each.schedule for each in found.evidence.matched] == [right, wrong]


class At(ScheduleInvariant):
    """Differs from others at a place."""

    def difference(self, other: Any) -> Difference | None:
        return None if other is self else Difference("[2]", "here", "there")


AT, ELSE = At(), At()


def product(value: int) -> InnerProductResult:
    return InnerProductResult(Exact(Fraction(value)), 0.0)


@pytest.mark.parametrize(
    ("results", "lines"),
    [
        (
            {"of": (AT, AT, AT), "at": (product(1), product(1), product(2))},
            (("of", "at"), ("under ranks in turn", "1"), ("under pct, depth 2, seed 5", "2")),
        ),
        (
            {"at": (AT, ELSE, AT), "of": (product(1), product(2), product(2))},
            (("of", "at, [2]"), ("under ranks in turn", "here"), ("under random, seed 4", "there")),
        ),
        (
            {"in one": (AT, None, None), "at": (product(1), product(3), product(1))},
            (("of", "at"), ("under ranks in turn", "1"), ("under random, seed 4", "3")),
        ),
        ({"at": (product(1),) * 3, "in others": (None, AT, ELSE)}, None),
    ],
)
def test_exact_results_that_differ_from_those_of_the_first_run_depend_on_the_schedule(
    results: Any, lines: Any
) -> None:
    found = judged(RIGHT, replace(RIGHT), RIGHT, results=results)
    if lines is None:
        assert found is RIGHT
    else:
        assert (found.headline, found.lines) == (DEPENDS, lines)
        assert found.evidence is not None
        shown = [f"under {each.schedule}" for each in found.evidence.matched]
        assert shown == [where for where, _ in lines[1:]]


@pytest.mark.parametrize(
    ("needed", "kept"),
    [({0}, [0]), ({2}, [2]), ({0, 1}, [0, 1]), ({0, 2}, [0, 2]), ({1, 2}, [1, 2]), ({0, 1, 2}, None)],
)
def test_a_failure_is_kept_with_the_fewest_of_its_schedules_and_their_decisions(
    needed: set[int], kept: list[int] | None
) -> None:
    schedules = OF_THREE.schedules
    records = {schedule: encode(bytes([number])) for number, schedule in enumerate(schedules)}
    asked: list[Case] = []
    ran: list[Schedule] = []

    def fails_so(case: Case) -> bool:
        asked.append(case)
        return {schedules[number] for number in needed} <= {*case.schedules}

    def run(payload: Case, ranks: int, *, seed: int = 0, schedule: Schedule | None = None) -> Run:
        assert (payload, ranks, seed) == (OF_THREE, OF_THREE.ranks, OF_THREE.schedule)
        assert schedule is not None
        ran.append(schedule)
        return Run((), decisions=records[schedule])

    found = narrowed(run, OF_THREE, fails_so)
    pairs = [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2)]
    expected = [structs.replace(OF_THREE, schedules=tuple(schedules[n] for n in each)) for each in pairs]
    assert asked == expected[: len(asked)]
    if kept is None:
        assert found is OF_THREE
        assert (len(asked), ran) == (6, [])
    else:
        chosen = [schedules[number] for number in kept]
        assert ran == chosen
        recorded = tuple(replace(each, decisions=records[each]) for each in chosen)
        assert found == structs.replace(OF_THREE, schedules=recorded)
