"""Searches that run nothing: what comes of each case is said beforehand, and time goes by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import adjointlab as al
from adjointlab.checks.check import Spaces
from adjointlab.checks.context import InputSetting
from adjointlab.checks.verdict import coherent, incoherent, unjudged
from adjointlab.engine import confirming, shrinking
from adjointlab.engine import search as module
from adjointlab.engine.case import Case
from adjointlab.engine.hypothesis_searches import Failing
from adjointlab.engine.run_case import CaseRunner, Judgement, Stage
from adjointlab.engine.search import Search
from adjointlab.engine.search_result import Budget, SearchResult
from adjointlab.engine.shrinking import FirstFailure, Shrinking
from adjointlab.engine.subject import Subject
from adjointlab.worlds.run import Run
from adjointlab.worlds.watchdog import Watchdog
from adjointlab.worlds.world import WorldName
from tests.samples import right

SPACE = al.Space(al.Layout((4,), (2,)))
SPACES = Spaces(SPACE, SPACE)
RIGHT = Judgement(coherent(), SPACES)
WRONG = Judgement(incoherent("wrong", ("form", "exact")), SPACES)
HANGS = Judgement(unjudged("deadlock", ("rank 0", "waits"), is_hang=True), SPACES)
OTHER = Judgement(incoherent("of another kind"), None)
GONE = Judgement(unjudged("rank 1 is gone", is_death=True), SPACES)


def case_on(ranks: int, side: int = 4, seed: int = 0, **more: Any) -> Case:
    return Case("RingShift", "adjoint", ranks, {"side": side}, InputSetting(seed), 0, **more)


FAILING = Failing(case_on(2), WRONG)
FIRST = case_on(3, 99)


class Clock:
    """Stands for the module `time`: goes by hand."""

    def __init__(self, now: float = 100.0) -> None:
        self.now = now

    def monotonic(self) -> float:
        return self.now


def stopped_clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of searches, which goes by hand from now on."""
    clock = Clock()
    for each in (module, shrinking):
        monkeypatch.setattr(each, "time", clock)
    return clock


def search_of(
    budget: Budget | None = None,
    subject: Subject = right,
    on_failure: Callable[[SearchResult], None] = lambda result: None,
    runner: Any = None,
    tick: Callable[[int], None] = lambda tried: None,
    check: str = "adjoint",
    **world: Any,
) -> Search:
    """A search in a world of three ranks, which runs nothing."""
    fields = {"name": WorldName.MPI, "ranks": 3, "can_revoke": False, "can_schedule": True}
    given: Any = SimpleNamespace(**(fields | {"is_exhausted": False, "watchdog": Watchdog()} | world))
    runner = runner or CaseRunner(lambda *_, **__: Run(()))
    return Search(given, runner, subject, check, budget or Budget(100, seed=1), tick, on_failure)


def begin_shrinking(
    search: Search, judgement: Judgement = WRONG, deadline: float = math.inf, simulator: Any = None
) -> Shrinking:
    """Have a search begin to shrink: the case FIRST was judged so."""
    search.stage = Stage.SHRINKING
    first = FirstFailure(FIRST, Run(()), judgement.spaces)
    search._shrinking = begun = Shrinking(first, judgement, deadline, simulator)
    return begun


def answering(monkeypatch: pytest.MonkeyPatch, *answers: Judgement | None) -> list[Case]:
    """Let cases be judged so, one after the other, the last one for ever; the cases that come to be judged."""
    judged: list[Case] = []

    def run_case(run: Any, case: Case, *_: Any) -> Judgement | None:
        judged.append(case)
        return answers[min(len(judged), len(answers)) - 1]

    for each in (module, confirming):
        monkeypatch.setattr(each, "run_case", run_case)
    return judged
