"""Running cases on the leader: what is about to run is recorded, and what ended an earlier job is not run again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple, Protocol

from msgspec import structs

from adjointlab.checks.check import Spaces
from adjointlab.checks.verdict import Status, Verdict
from adjointlab.engine.case import Case
from adjointlab.engine.interleavings import DEPENDS, judge_all
from adjointlab.engine.run_case import TWIN, WITNESS, is_inapplicable, judge, spaces_of
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
        return (
            None if any(map(is_inapplicable, runs)) else Judgement(judge_all(case, runs), spaces_of(runs[0]))
        )
    result = run(case, case.ranks, seed=case.schedule)
    return None if is_inapplicable(result) else Judgement(judge(case, result), spaces_of(result))


def with_follow_up(run: Runner, case: Case, verdict: Verdict) -> Verdict:
    """Return `verdict`, explained by a second check of the same case where there is one that says more.

    A wrong inner product or matrix gets the wrong entry with its two values; wrong gradients get the result of gradcheck on
    the sequential twin, which says whether the layer or its twin is wrong.
    """
    if verdict.status is not Status.INCOHERENT:
        return verdict
    if case.check == "gradients":
        twin = run_case(run, structs.replace(case, check=TWIN))
        result = "gradcheck does not apply" if twin is None else twin.verdict.headline or "gradcheck passes"
        return replace(verdict, lines=(*verdict.lines, ("sequential twin", result)))
    if case.check not in ("adjoint", "matrix") or verdict.kind == DEPENDS:
        return verdict
    witness = run_case(run, structs.replace(case, check=WITNESS))
    if witness is None or witness.verdict.status is not Status.INCOHERENT:
        return verdict
    return replace(verdict, lines=witness.verdict.lines, entry=witness.verdict.entry)
