"""The engine: Hypothesis draws and shrinks cases on the leader; every rank runs them; all end with one report."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Protocol

import hypothesis
from hypothesis import HealthCheck, Phase, Verbosity, given
from hypothesis.errors import FailedHealthCheck, Flaky, HypothesisException, Unsatisfiable

from adjointlab.checks.check import Spaces
from adjointlab.checks.verdict import Status, Verdict
from adjointlab.engine.case import Case
from adjointlab.engine.drawing import cases
from adjointlab.engine.interleavings import DEPENDS, judge_all, narrowed
from adjointlab.engine.run_case import body, check_named, explained, is_inapplicable, judge, spaces_of
from adjointlab.engine.simulate_first import SimulateFirst, is_hang, simulate_first
from adjointlab.engine.subject import Subject
from adjointlab.worlds.schedule import Schedule
from adjointlab.worlds.world import Run, Runner, World

__all__ = ["Budget", "KnownRuns", "Report", "investigate", "nothing_known", "run_case"]


@dataclass(frozen=True)
class Budget:
    """How much to try.

    `cases` to draw; `ranks` at most (default: what the world has, up to 8); `seed` of the draws (default: a fresh
    one, which the report tells); `shrinking` seconds at most are spent on making a failing case smaller. A case runs
    under `schedules` schedules where the world can choose them.
    """

    cases: int = 100
    ranks: int | None = None
    seed: int | None = None
    shrinking: float = 60.0
    schedules: int = 1

    def __post_init__(self) -> None:
        if self.cases < 1:
            raise ValueError(f"cases: at least 1, not {self.cases}")
        if self.schedules < 1:
            raise ValueError(f"schedules: at least 1, not {self.schedules}")
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


_TIMES: Final = 10
"""How often a wrong result must be seen again before it is taken for one that does not change."""


class KnownRuns(Protocol):
    """What is known of a case that must not be run again, because it has ended a job at least `times` times."""

    def __call__(self, case: Case, times: int = 1) -> Run | None: ...


def nothing_known(case: Case, times: int = 1) -> Run | None:
    """The memory of a job that none came before."""
    return None


@dataclass
class _Search:
    """The leader's record of a running search."""

    run: Runner
    subject: Subject
    shrinking: float
    tick: Callable[[int], None]
    memory: KnownRuns = nothing_known
    simulate_first: SimulateFirst | None = None  # where a hang is made smaller, if it shows there
    is_exhausted: Callable[[], bool] = lambda: False
    passed: int = 0  # so many cases are known not to fail
    rejected: set[int] = field(
        default_factory=set
    )  # the numbers of those that the check has nothing to say about
    is_simulated_first: bool = False
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
            if self.tried <= self.passed:
                return None if self.tried in self.rejected else (Verdict(Status.COHERENT), None)
            self.tick(self.tried)
            outcome = self._judged(case)
            if outcome is None:
                self.rejected.add(self.tried)
            return outcome
        key = case.key()
        if key not in self.verdicts:
            if not self.has_time() and self.memory(case) is None:
                # Out of time: what is not known counts as passing, so the search ends with the smallest known.
                return Verdict(Status.COHERENT), None
            self.verdicts[key] = self._judged(case)
        return self.verdicts[key]

    def has_time(self) -> bool:
        """Whether a failure may still be looked into."""
        return self.deadline is None or (time.monotonic() <= self.deadline and not self.is_exhausted())

    def failed(self, case: Case, verdict: Verdict, spaces: Spaces | None) -> tuple[Verdict, Spaces | None]:
        """Put a failure down; as what it is taken for from now on."""
        if self.deadline is None:
            self.deadline = time.monotonic() + self.shrinking
            self.first_ranks = case.ranks
            if self.simulate_first is not None and is_hang(verdict):
                simulated = self._simulated(case)
                if simulated is not None and is_hang(simulated[0]):
                    self.is_simulated_first = True
                    verdict, spaces = simulated
            self.kind = verdict.kind
        self.verdicts[case.key()] = (verdict, spaces)
        return verdict, spaces

    def under_mpi_alone(self) -> _Search:
        """The same search from the beginning, without simulation: what it has shown was not to be seen again."""
        left = 0.0 if self.deadline is None else max(0.0, self.deadline - time.monotonic())
        passed = self.tried - 1
        return _Search(
            self.run,
            self.subject,
            left,
            self.tick,
            self.memory,
            is_exhausted=self.is_exhausted,
            passed=passed,
            rejected=self.rejected,
        )

    def _simulated(self, case: Case) -> tuple[Verdict, Spaces | None] | None:
        assert self.simulate_first is not None
        outcome = None
        for under, run in self.simulate_first(case):
            outcome = None if is_inapplicable(run) else (judge(under, run), spaces_of(run))
            if outcome is not None and is_hang(outcome[0]) and self.kind in ("", outcome[0].kind):
                break
        return outcome

    def _judged(self, case: Case) -> tuple[Verdict, Spaces | None] | None:
        if self.is_simulated_first:
            return self._simulated(case)
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

    def narrow(self, run: Runner) -> None:
        """Keep the schedules that it takes."""

        def fails_so(case: Case) -> bool:
            outcome = run_case(run, case)
            return outcome is not None and outcome[0].kind == self.verdict.kind

        self.case = narrowed(run, self.case, fails_so)


def run_case(run: Runner, case: Case) -> tuple[Verdict, Spaces | None] | None:
    """Run and judge one case, under all its schedules; `None` where its check has nothing to say about it."""
    if case.schedules:
        runs = [run(case, case.ranks, seed=case.schedule, schedule=each) for each in case.schedules]
        return None if any(map(is_inapplicable, runs)) else (judge_all(case, runs), spaces_of(runs[0]))
    result = run(case, case.ranks, seed=case.schedule)
    if is_inapplicable(result):
        return None
    return judge(case, result), spaces_of(result)


def investigate(
    world: World,
    subject: Subject,
    check: str,
    budget: Budget | None = None,
    tick: Callable[[int], None] = lambda tried: None,
    record: Callable[[Case, int, str], None] | None = None,
    memory: KnownRuns = nothing_known,
) -> Report:
    """Collective over the world: draw cases, judge each, shrink the first failure and name the wrong entry.

    `tick` is called on the leader with the number of cases tried so far; `record` before each case runs, with the case,
    the number of cases done, and "drawing" or "shrinking". What `memory` knows of a case is taken for its run.
    """
    budget = budget or Budget()

    def conduct(run: Runner) -> Report:
        return _conduct(world, run, subject, check, budget, tick, record, memory)

    with check_named(check).surroundings():
        return world.lead(body(subject), conduct)


def _conduct(
    world: World,
    run: Runner,
    subject: Subject,
    check: str,
    budget: Budget,
    tick: Callable[[int], None],
    record: Callable[[Case, int, str], None] | None,
    memory: KnownRuns,
) -> Report:
    started = time.monotonic()
    seed = secrets.randbits(32) if budget.seed is None else budget.seed

    def recorded(
        payload: Any, ranks: int, *, seed: int = 0, schedule: Schedule | None = None, times: int = 1
    ) -> Run:
        if (known := memory(payload, times)) is not None:
            return known
        if record is None:
            pass
        elif search.deadline is None:
            record(payload, search.tried - 1, "drawing")
        else:
            record(payload, search.tried, "shrinking")
        return run(payload, ranks, seed=seed, schedule=schedule)

    def again(payload: Any, ranks: int, *, seed: int = 0, schedule: Schedule | None = None) -> Run:
        # What has ended a job once has to do so again, unless there is no time for it.
        return recorded(payload, ranks, seed=seed, schedule=schedule, times=2 if search.has_time() else 1)

    search = _Search(recorded, subject, budget.shrinking, tick, memory)
    ranks = min(world.ranks, budget.ranks or world.ranks)
    schedules = budget.schedules if world.can_schedule else 1
    if world.can_revoke:
        search.simulate_first = simulate_first(subject, world.watchdog)
        search.is_exhausted = lambda: world.is_exhausted
    failure = _hypothesis(search, subject, check, ranks, budget.cases, seed, schedules)
    confirmed = None
    if search.is_simulated_first and isinstance(failure, _Failing):
        seen = run_case(again, failure.case)
        if seen is not None and is_hang(seen[0]):
            told = ("made smaller", "with simulated ranks, and seen again under MPI")
            confirmed = replace(seen[0], lines=(*seen[0].lines, told))
        else:
            search = search.under_mpi_alone()
            failure = _hypothesis(search, subject, check, ranks, budget.cases, seed, schedules)
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
        if failure.case.schedules:
            failure.narrow(again)
        report = replace(
            report,
            verdict=confirmed or _confirmed(again, failure),
            case=failure.case,
            spaces=failure.spaces,
            drawn_ranks=search.first_ranks,
        )
    return replace(report, seconds=time.monotonic() - started)


def _hypothesis(
    search: _Search, subject: Subject, check: str, ranks: int, count: int, seed: int, schedules: int
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
    @given(case=cases(subject, check, ranks, schedules))
    def every_case_is_coherent(case: Case) -> None:
        outcome = search.verdict(case)
        if outcome is None:
            hypothesis.reject()
        verdict, spaces = outcome
        # While one kind of failure shrinks, another kind is not taken for it.
        if not verdict.is_coherent and search.kind in ("", verdict.kind):
            raise _Failing(case, *search.failed(case, verdict, spaces))

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
    # What is wrong by chance may be so twice; a run that has come back to be judged costs little.
    times = _TIMES if failure.verdict.status is Status.INCOHERENT else 1
    for _ in range(times):
        again = run_case(run, failure.case)
        if again is None or again[0].kind != failure.verdict.kind:
            break
    if again is None or again[0].kind != failure.verdict.kind:
        got = "nothing to judge" if again is None else again[0].headline or "no failure"
        return Verdict(
            Status.UNJUDGED,
            "the result changes from run to run",
            "nondeterministic",
            (("first", failure.verdict.headline), ("again", got), *failure.verdict.lines),
        )
    verdict = again[0]
    if verdict.kind == DEPENDS:
        return verdict
    return explained(failure.case, verdict, partial(run_case, run))


def _unjudged(headline: str, error: Exception) -> Verdict:
    text = str(error).strip().splitlines()
    return Verdict(
        Status.UNJUDGED, headline, headline, (("because", text[0] if text else type(error).__name__),)
    )
