"""A case under several schedules: each run is judged, and all runs must have the same result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

from msgspec import structs

from adjointlab.checks.evidence import Evidence, MatchedCall, MatchedCalls
from adjointlab.checks.schedule_invariant import ScheduleInvariant
from adjointlab.checks.verdict import Status, Verdict, incoherent
from adjointlab.engine.case import Case
from adjointlab.worlds.run import Matched, Run
from adjointlab.worlds.schedule import Schedule
from adjointlab.worlds.world import Runner

__all__ = ["DEPENDS", "judge_all", "narrowed"]

DEPENDS = "the result depends on the schedule"

_MATCHED_CALLS: Final = 12
"""The number of calls of a run that a picture shows."""

Invariants: TypeAlias = Callable[[Case, Run], Mapping[str, ScheduleInvariant]]
"""The results of a run, by name, that no schedule may change."""


def judge_all(
    case: Case, runs: Sequence[Run], verdicts: Sequence[Verdict], invariants_of: Invariants
) -> Verdict:
    """The verdict on the runs of `case`, one for each of its schedules, whose separate verdicts are `verdicts`.

    If a run hangs or crashes, that is the verdict. If results are right in some runs only, or exact results differ, they depend on
    the schedule, and the lines show two runs that differ.
    """
    unjudged, judged = _numbers_by(lambda verdict: verdict.status is Status.UNJUDGED, verdicts)
    if unjudged:
        failure = verdicts[unjudged[0]]
        if not judged:
            return failure
        note = (
            f"{len(unjudged)} of {len(runs)} fail so, such as {case.schedules[unjudged[0]]}; "
            f"not so {case.schedules[judged[0]]}"
        )
        return replace(failure, lines=(("schedules", note), *failure.lines))
    right, wrong = _numbers_by(lambda verdict: verdict.is_coherent, verdicts)
    if not right:
        return verdicts[0]
    if wrong:
        one, other = right[0], wrong[0]
        failure = verdicts[other]
        shown = [(f"under {case.schedules[other]}", failure.headline), *failure.lines]
        return _dependent(case, runs, one, other, (f"under {case.schedules[one]}", "coherent"), *shown)
    results = [invariants_of(case, run) for run in runs]
    for other in range(1, len(runs)):
        if difference := _difference(results[0], results[other]):
            where, first, second = difference
            return _dependent(
                case,
                runs,
                0,
                other,
                ("of", where),
                (f"under {case.schedules[0]}", first),
                (f"under {case.schedules[other]}", second),
            )
    return verdicts[0]


def _numbers_by(has: Callable[[Verdict], bool], verdicts: Sequence[Verdict]) -> tuple[list[int], list[int]]:
    """The positions of the verdicts that have a property, and of those that do not."""
    with_it: list[int] = []
    without: list[int] = []
    for number, verdict in enumerate(verdicts):
        (with_it if has(verdict) else without).append(number)
    return with_it, without


def narrowed(run: Runner, case: Case, fails_so: Callable[[Case], bool]) -> Case:
    """Return `case` with the fewest of its schedules that still fail in this way, each with the record of its decisions."""
    return next(
        (
            structs.replace(
                case, schedules=tuple(_recorded(run, case, schedule) for schedule in few.schedules)
            )
            for few in _fewer(case)
            if fails_so(few)
        ),
        case,
    )


def _fewer(case: Case) -> Iterator[Case]:
    """Yield the case with each one of its schedules, then with each two: two are enough for results that differ."""
    for schedule in case.schedules:
        yield structs.replace(case, schedules=(schedule,))
    for index, one in enumerate(case.schedules):
        for other in case.schedules[index + 1 :]:
            yield structs.replace(case, schedules=(one, other))


def _recorded(run: Runner, case: Case, schedule: Schedule) -> Schedule:
    result = run(case, case.ranks, seed=case.schedule, schedule=schedule)
    return replace(schedule, decisions=result.decisions)


def _difference(
    one: Mapping[str, ScheduleInvariant], other: Mapping[str, ScheduleInvariant]
) -> tuple[str, str, str] | None:
    """Find the first difference; return its place and its two values."""
    for name, first in one.items():
        second = other.get(name)
        if second is not None and (difference := first.difference(second)):
            where = f"{name}{', ' if difference.where else ''}{difference.where}"
            return where, difference.actual, difference.expected
    return None


def _dependent(case: Case, runs: Sequence[Run], one: int, other: int, *lines: tuple[str, str]) -> Verdict:
    because = _first_choice(runs[one].matched, runs[other].matched)
    evidence = Evidence(matched=_matched_calls(case, runs, one, other))
    return incoherent(DEPENDS, *lines, *(("because", text) for text in because), evidence=evidence)


def _matched_calls(case: Case, runs: Sequence[Run], one: int, other: int) -> tuple[MatchedCalls, ...]:
    """The calls of two runs that may match several messages, around the first that matched different ones."""
    both = [runs[one].matched, runs[other].matched]
    pairs = enumerate(zip(*both, strict=False))
    different = next((n for n, (first, second) in pairs if str(first) != str(second)), None)
    start = 0 if different is None else max(0, different - _MATCHED_CALLS // 2)
    return tuple(
        MatchedCalls(
            str(case.schedules[number]),
            tuple(
                MatchedCall(each.rank, str(each), each.sender)
                for each in matched[start : start + _MATCHED_CALLS]
            ),
            None if different is None else different - start,
        )
        for number, matched in zip((one, other), both, strict=True)
    )


def _first_choice(one: Sequence[Matched], other: Sequence[Matched]) -> list[str]:
    """Find a rank's first call that matched different messages in the two runs."""
    for rank in sorted({matched.rank for matched in (*one, *other)}):
        of_one, of_other = ([entry for entry in each if entry.rank == rank] for each in (one, other))
        for number, (first, second) in enumerate(zip(of_one, of_other, strict=False), 1):
            if str(first) != str(second):
                return [
                    f"{first}\nand {second.what} under the other schedule (its call number {number} that may)"
                ]
    return []
