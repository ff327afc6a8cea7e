"""Running cases on the leader: what is about to run is recorded, and what ended an earlier job is not run again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

from msgspec import structs

from adjointlab.checks.check import Spaces
from adjointlab.checks.verdict import Status, Verdict
from adjointlab.engine.case import Case
from adjointlab.engine.interleavings import DEPENDS, judge_all
from adjointlab.engine.run_case import check_named, is_inapplicable, judge, schedule_invariants, spaces_of
from adjointlab.worlds.schedule import Schedule
from adjointlab.worlds.world import Run, Runner

__all__ = [
    "CaseRunner",
    "Judgement",
    "KnownRuns",
    "RecordCase",
    "Stage",
    "nothing_known",
    "run_case",
    "with_follow_up",
]


class Stage(StrEnum):
    """The purpose for which a case runs. The values stand in files."""

    DRAWING = "drawing"
    SHRINKING = "shrinking"
    CONFIRMING = "confirming"
    REPLAYING = "replaying"


class Judgement(NamedTuple):
    """The verdict of a case, and the spaces of its operator where a rank came to declare them."""

    verdict: Verdict
    spaces: Spaces | None


RecordCase = Callable[[Case, int, Stage], None]
"""Puts on record that a case is about to run, with the number of cases done before it."""


class KnownRuns(Protocol):
    """The runs of earlier jobs: of a case that has ended a job at least `times` times, the run; else `None`."""

    def __call__(self, case: Case, times: int = 1) -> Run | None: ...


def nothing_known(case: Case, times: int = 1) -> Run | None:
    """The known runs of a job that none came before."""
    return None


@dataclass(frozen=True)
class CaseRunner:
    """A :class:`~adjointlab.worlds.world.Runner` that knows of earlier jobs and keeps the record of the running case.

    A case that kills its process leaves no result. So the order matters: first the known runs are asked, so that a case
    that has ended a job is taken for its run instead of ending this one too; then the case is recorded; then it runs.
    """

    run: Runner
    record: RecordCase | None = None
    known: KnownRuns = nothing_known

    def __call__(
        self,
        payload: Case,
        ranks: int,
        *,
        seed: int = 0,
        schedule: Schedule | None = None,
        stage: Stage = Stage.REPLAYING,
        done: int = 0,
        times: int = 1,
    ) -> Run:
        if (known := self.known(payload, times)) is not None:
            return known
        if self.record is not None:
            self.record(payload, done, stage)
        return self.run(payload, ranks, seed=seed, schedule=schedule)


def run_case(run: Runner, case: Case) -> Judgement | None:
    """Run and judge one case under all its schedules; `None` where its check does not apply to it."""
    if case.schedules:
        runs = [run(case, case.ranks, seed=case.schedule, schedule=each) for each in case.schedules]
        if any(map(is_inapplicable, runs)):
            return None
        verdicts = [judge(case, each) for each in runs]
        return Judgement(judge_all(case, runs, verdicts, schedule_invariants), spaces_of(runs[0]))
    result = run(case, case.ranks, seed=case.schedule)
    return None if is_inapplicable(result) else Judgement(judge(case, result), spaces_of(result))


def with_follow_up(run: Runner, case: Case, verdict: Verdict) -> Verdict:
    """Return `verdict`, explained by the follow-up of its check where there is one: another check of the same case.

    Of a wrong inner product, say, the matrix check names the entry that is wrong.
    """
    check = check_named(case.check)
    follow_up = check.follow_up()
    # Nothing that a single run shows explains why two schedules differ.
    if verdict.status is not Status.INCOHERENT or verdict.kind == DEPENDS or follow_up is None:
        return verdict
    answer = run_case(run, structs.replace(case, check=follow_up.name))
    return check.explained(verdict, None if answer is None else answer.verdict)
