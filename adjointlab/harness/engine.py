"""The engine: Hypothesis draws and shrinks cases on the leader; every rank runs them; all end with one report."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, Verbosity, given
from hypothesis.errors import FailedHealthCheck, Flaky, HypothesisException, Unsatisfiable

from adjointlab.checks.check import Spaces
from adjointlab.checks.verdict import Status, Verdict
from adjointlab.harness.case import Case
from adjointlab.harness.cases import cases
from adjointlab.harness.examine import WITNESS, body, check_named, is_inapplicable, judge
from adjointlab.harness.subject import Subject
from adjointlab.worlds.world import Run, Runner, World

__all__ = ["Budget", "Report", "investigate", "run_case"]


@dataclass(frozen=True)
class Budget:
    """How much to try.

    `cases` to draw; `ranks` at most (default: what the world has, up to 8); `seed` of the draws (default: a fresh
    one, which the report tells); `shrinking` seconds at most are spent on making a failing case smaller.
    """

    cases: int = 100
    ranks: int | None = None
    seed: int | None = None
    shrinking: float = 60.0

    def __post_init__(self) -> None:
        if self.cases < 1:
            raise ValueError(f"cases: at least 1, not {self.cases}")
        if self.ranks is not None and self.ranks < 1:
            raise ValueError(f"ranks: at least 1, not {self.ranks}")


@dataclass(frozen=True)
class Report:
    """What came of one check of one subject; the same on every rank."""

    subject: str
    check: str
    world: str
    verdict: Verdict
    tried: int  # cases until the end, or until the failure
    seed: int
    seconds: float
    case: Case | None = None  # the smallest failing case
    spaces: Spaces | None = None  # its operator's
    drawn_ranks: int = 0  # the number of ranks of the case that failed first
    figures: dict[str, float | str] = field(default_factory=dict)  # the worst of all cases
    exact: int = 0  # how many of the cases were judged in the exact form

    @property
    def status(self) -> Status:
        return self.verdict.status


@dataclass
class _Search:
    """The leader's record of a running search."""

    run: Runner
    subject: Subject
    shrinking: float
    tick: Callable[[int], None]
    tried: int = 0
    first_ranks: int = 0
    deadline: float | None = None
    verdicts: dict[bytes, tuple[Verdict, Spaces | None] | None] = field(default_factory=dict)
    figures: dict[str, float | str] = field(default_factory=dict)
    kind: str = ""
    exact: int = 0

    def verdict(self, case: Case) -> tuple[Verdict, Spaces | None] | None:
        """Memoised by case once something failed; `None` where the check has nothing to say."""
        if self.deadline is None:
            self.tried += 1
            self.tick(self.tried)
            return self._judged(case)
        key = case.key()
        if key not in self.verdicts:
            if time.monotonic() > self.deadline:
                # Out of time: what is not known counts as passing, so the search ends with the smallest known.
                return Verdict(Status.COHERENT), None
            self.verdicts[key] = self._judged(case)
        return self.verdicts[key]

    def failed(self, case: Case, verdict: Verdict, spaces: Spaces | None) -> None:
        if self.deadline is None:
            self.deadline = time.monotonic() + self.shrinking
            self.first_ranks, self.kind = case.ranks, verdict.kind
        self.verdicts[case.key()] = (verdict, spaces)

    def _judged(self, case: Case) -> tuple[Verdict, Spaces | None] | None:
        outcome = run_case(self.run, case)
        if outcome is None:
            return None
        verdict, _ = outcome
        if verdict.is_coherent:
            self.exact += "miss probability" in verdict.figures
            for name, value in verdict.figures.items():
                known = self.figures.get(name)
                if isinstance(value, float | int) and isinstance(known, float | int):
                    self.figures[name] = max(known, value)
                elif known is None or known == value:
                    self.figures[name] = value
                else:
                    self.figures[name] = "various"
        return outcome


class _Failing(Exception):
    """A case failed; carries it out of Hypothesis."""

    def __init__(self, case: Case, verdict: Verdict, spaces: Spaces | None) -> None:
        super().__init__(verdict.headline)
        self.case, self.verdict, self.spaces = case, verdict, spaces


def run_case(run: Runner, case: Case) -> tuple[Verdict, Spaces | None] | None:
    """Run and judge one case; `None` where its check has nothing to say about it."""
    result = run(case, case.ranks, seed=case.schedule)
    if is_inapplicable(result):
        return None
    return judge(case, result), _spaces(result)


def investigate(
    world: World,
    subject: Subject,
    check: str,
    budget: Budget | None = None,
    tick: Callable[[int], None] = lambda tried: None,
) -> Report:
    """Collective over the world: draw cases, judge each, shrink the first failure and name the wrong entry.

    `tick` is called on the leader with the number of cases tried so far.
    """
    budget = budget or Budget()

    def conduct(run: Runner) -> Report:
        return _conduct(world, run, subject, check, budget, tick)

    with check_named(check).surroundings():
        return world.lead(body(subject), conduct)


def _conduct(
    world: World, run: Runner, subject: Subject, check: str, budget: Budget, tick: Callable[[int], None]
) -> Report:
    started = time.monotonic()
    seed = secrets.randbits(32) if budget.seed is None else budget.seed
    search = _Search(run, subject, budget.shrinking, tick)
    ranks = min(world.ranks, budget.ranks or world.ranks)
    failure = _hypothesis(search, subject, check, ranks, budget.cases, seed)
    report = Report(
        subject.name,
        check,
        world.name,
        Verdict(Status.COHERENT),
        search.tried,
        seed,
        0.0,
        figures=search.figures,
        exact=search.exact,
    )
    if isinstance(failure, Verdict):
        report = replace(report, verdict=failure)
    elif failure is not None:
        report = replace(
            report,
            verdict=_confirmed(run, failure),
            case=failure.case,
            spaces=failure.spaces,
            drawn_ranks=search.first_ranks,
        )
    return replace(report, seconds=time.monotonic() - started)


def _hypothesis(
    search: _Search, subject: Subject, check: str, ranks: int, count: int, seed: int
) -> _Failing | Verdict | None:
    """The smallest failing case; a verdict where the search itself failed; `None` where nothing did."""

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count,
        # Everything that another profile, or Hypothesis's own under CI, would change is set here.
        database=None,
        deadline=None,
        derandomize=False,
        print_blob=False,
        report_multiple_bugs=False,
        verbosity=Verbosity.quiet,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.nested_given),
    )
    @given(case=cases(subject, check, ranks))
    def every_case_is_coherent(case: Case) -> None:
        outcome = search.verdict(case)
        if outcome is None:
            hypothesis.reject()
        verdict, spaces = outcome
        # While one kind of failure shrinks, another kind is not taken for it.
        if not verdict.is_coherent and search.kind in ("", verdict.kind):
            search.failed(case, verdict, spaces)
            raise _Failing(case, verdict, spaces)

    try:
        every_case_is_coherent()
    except _Failing as failing:
        return failing
    except Flaky as error:
        return _unjudged("the search saw the same case fail and pass", error)
    except Unsatisfiable as error:
        return _unjudged("no case could be drawn: the subject's strategy rejects them all", error)
    except FailedHealthCheck as error:
        return _unjudged("the subject's strategy is unhealthy", error)
    except HypothesisException as error:
        return _unjudged("the subject's strategy failed", error)
    return None


def _confirmed(run: Runner, failure: _Failing) -> Verdict:
    """The verdict of the smallest case, seen a second time, with the wrong matrix entry where there is one."""
    again = run_case(run, failure.case)
    if again is None or again[0].kind != failure.verdict.kind:
        got = "nothing to judge" if again is None else again[0].headline or "no failure"
        return Verdict(
            Status.UNJUDGED,
            "the result changes from run to run",
            "nondeterministic",
            (("first", failure.verdict.headline), ("again", got), *failure.verdict.lines),
        )
    verdict = again[0]
    if verdict.status is not Status.INCOHERENT or failure.case.check not in ("adjoint", "matrix"):
        return verdict
    witness = run_case(run, replace(failure.case, check=WITNESS))
    if witness is None or witness[0].status is not Status.INCOHERENT:
        return verdict
    return replace(verdict, lines=witness[0].lines)


def _unjudged(headline: str, error: Exception) -> Verdict:
    text = str(error).strip().splitlines()
    return Verdict(
        Status.UNJUDGED, headline, headline, (("because", text[0] if text else type(error).__name__),)
    )


def _spaces(run: Run) -> Spaces | None:
    first: Any = getattr(run.outcomes[0], "value", None)
    return getattr(first, "spaces", None)
