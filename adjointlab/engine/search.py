"""The search for a failing case: draw cases, judge each, shrink the first failure and confirm the smallest.

Hypothesis runs on the leader only. Its next draw depends on all verdicts so far and on the clock (its limits, and ours on
shrinking), so ranks that drew for themselves would sooner or later run different cases and wait for one another. Instead the
leader draws and judges, the followers execute the cases that they are handed
(:meth:`~adjointlab.worlds.world.World.lead`), and all return the leader's result.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

import hypothesis
from hypothesis import given
from msgspec import structs

from adjointlab.checks.check import Spaces, check_named
from adjointlab.checks.verdict import Figure, Measurement, Verdict, coherent, unjudged
from adjointlab.engine.case import Case, cases
from adjointlab.engine.case_body import body
from adjointlab.engine.confirming import Confirmation, Confirmed
from adjointlab.engine.drawn_cases import DrawnCases
from adjointlab.engine.failed_runs import NO_RETURN
from adjointlab.engine.hypothesis_searches import (
    WHILE_A_CASE_RAN,
    BrokenOff,
    Enough,
    Failing,
    end_of,
    ended_a_case,
    seed_of_draws,
    settings_of,
)
from adjointlab.engine.run_case import (
    UNDECIDED,
    CaseRunner,
    Judgement,
    KnownRuns,
    RecordCase,
    Stage,
    nothing_known,
    run_case,
)
from adjointlab.engine.search_result import Budget, SearchResult
from adjointlab.engine.shrinking import FirstFailure, Shrinking
from adjointlab.engine.simulate_first import HangSimulator
from adjointlab.engine.single_steps import MOST_STEPS, one_step_smaller, size, without_logs_of_shapes
from adjointlab.engine.subject import Subject
from adjointlab.worlds.exception_text import in_brief, message_of, with_kind
from adjointlab.worlds.run import FindingKind, Run
from adjointlab.worlds.schedule import Schedule
from adjointlab.worlds.world import Exhausted, Runner, World

__all__ = ["investigate"]


def investigate(
    world: World,
    subject: Subject,
    check: str,
    budget: Budget | None = None,
    tick: Callable[[int], None] = lambda tried: None,
    record: RecordCase | None = None,
    known: KnownRuns = nothing_known,
    on_failure: Callable[[SearchResult], None] = lambda result: None,
) -> SearchResult:
    """Collective over the world: search for a failing case of `subject`, and explain the smallest.

    `tick` is called on the leader with the number of cases tried so far; `record` before each case runs. If `known` has a run of a
    case, that run is judged, and the case does not run again. `on_failure` is called on the leader with each failure, before it is shrunk
    and confirmed.
    """
    budget = budget or Budget()

    def conduct(run: Runner) -> SearchResult:
        return Search(
            world, CaseRunner(run, record, known), subject, check, budget, tick, on_failure
        ).conduct()

    with check_named(check).surroundings():
        return world.lead(body(subject), conduct, subject.location)


_LEAST_CASES: Final = 10
"""A check judges this many cases, or all of its budget if that is less, before lack of time may end it."""

_REDRAWN: Final = 50
"""The number of cases that are drawn on fewer ranks than the smallest failing case has."""


_BATCH: Final = 1000
"""The number of cases drawn in one search of Hypothesis. It keeps them all, so this bounds its memory to some 8 MB."""

_SLOW: Final = frozenset({NO_RETURN, FindingKind.LIVELOCK})
"""Kinds of failure that take seconds to detect, in every case that is tried."""

_REDRAWN_SMALLER: Final = 150
"""The number of cases that are drawn once a smaller one is known to fail. Only those that are smaller run."""


class Search:
    """One search, on the leader.

    It goes through three stages. While *drawing*, every case is run and judged. The first failure begins *shrinking*:
    Hypothesis tries smaller cases, judgements are remembered, and the clock runs; last, the cases that are one step smaller are
    tried. The smallest case runs again while *confirming*. A hang under MPI is shrunk in simulation; if the smallest case does not
    hang under MPI, the search is repeated without simulation: it draws the same cases, and skips those that were coherent the
    first time.
    """

    def __init__(
        self,
        world: World,
        runner: CaseRunner,
        subject: Subject,
        check: str,
        budget: Budget,
        tick: Callable[[int], None],
        on_failure: Callable[[SearchResult], None] = lambda result: None,
    ) -> None:
        self.stage = Stage.DRAWING
        self._world, self._runner, self._subject, self._check = world, runner, subject, check
        self._budget, self._tick, self._on_failure = budget, tick, on_failure
        self._ranks = min(world.ranks, budget.ranks or world.ranks)
        self._needs_several_ranks = max(subject.ranks_up_to(self._ranks), default=1) > 1
        self._seed = secrets.randbits(32) if budget.seed is None else budget.seed
        self._drawn_until = time.monotonic() + budget.seconds
        self._seconds_left = budget.shrinking
        self._confirmation = Confirmation(world, subject, self._run, explains=budget.shrinking > 0)
        self._simulator = HangSimulator(subject, world.watchdog) if world.can_revoke else None
        self._drawn = DrawnCases(budget.cases)
        self._shrinking: Shrinking | None = None  # from the first failure on
        self._stopped_by = ""  # the error that ended shrinking early, if any
        self._seeks_fewer_ranks = True  # a failure that takes seconds to detect is not shrunk yet
        self._steps_from: Case | None = None  # the failure, while cases that are one step smaller run
        self._last_run = Run(())
        # If the previous case had to measure rounding, the next one most likely has to: measuring at once saves its second run.
        self._measurement = Measurement.NONE

    @without_logs_of_shapes()
    def conduct(self) -> SearchResult:
        """Draw, shrink, confirm."""
        started = time.monotonic()
        failure = self._smallest_failure()
        hang = None
        if isinstance(failure, Failing) and self._is_shrunk_in_simulation:
            self.stage = Stage.CONFIRMING
            hang = self._confirmation.hang_under_mpi(failure.case)
            if hang is None:
                self._repeat_without_simulation()
                failure = self._smallest_failure()
        result = self._result(failure if isinstance(failure, Verdict) else coherent())
        drawn = self._drawn
        if isinstance(failure, Failing):
            assert self._shrinking is not None
            self.stage = Stage.CONFIRMING
            case = self._confirmation.with_fewer_schedules(failure.case, failure.verdict)
            confirmed = Confirmed(hang) if hang else self._confirmation.confirmed(case, failure.verdict)
            is_smallest = self._shrinking.is_smallest and confirmed.is_seen_again
            verdict = confirmed.verdict
            if self._stopped_by:
                verdict = verdict.with_lines(("then", self._stopped_by))
            result = replace(self._failed(verdict, case, failure.spaces), is_smallest=is_smallest)
            # The failure counts too: its row in the table says on how many ranks it was found.
            drawn.counts.judge(*self._shrinking.first)
        seconds = time.monotonic() - started
        return replace(result, seconds=seconds, figures=drawn.figures, exact=drawn.exact, counts=drawn.counts)

    def _result(self, verdict: Verdict) -> SearchResult:
        judged = self._drawn.counts.judged
        return SearchResult(self._subject.name, self._check, self._world.name, verdict, judged, self._seed)

    def _failed(self, verdict: Verdict, case: Case, spaces: Spaces | None) -> SearchResult:
        """The result of a failed search whose smallest case so far is `case`."""
        assert self._shrinking is not None
        tried, drawn_ranks = self._drawn.counts.judged + 1, self._shrinking.first.case.ranks
        return replace(self._result(verdict), tried=tried, case=case, spaces=spaces, drawn_ranks=drawn_ranks)

    # Drawing and shrinking

    def _smallest_failure(self) -> Failing | Verdict | None:
        """Search with Hypothesis: return the smallest failing case, `None` if none fails, a verdict if too few could be judged."""
        if not self._subject.ranks_up_to(self._ranks):
            return unjudged(
                f"it is declared for {min(self._subject.ranks)} ranks and more, and there are {self._ranks}"
            )
        failure = self._drawn_failure()
        if failure is None and self._lacks_several_ranks:
            # A small budget may have drawn none on several ranks. If the check rejects them all, the report has to say so.
            failure = self._searched(max(1, self._budget.cases // 10), 2, self._ranks)
        if isinstance(failure, Failing):
            return self._in_single_steps(self._on_fewer_ranks(failure))
        return failure or self._drawn.counts.shortfall(needs_several_ranks=self._needs_several_ranks)

    def _drawn_failure(self) -> Failing | Verdict | None:
        """Draw the cases of the budget, some of them on each number of ranks.

        The number of ranks is drawn at random, so a small budget may draw no case on two ranks. Missing ones are drawn separately.
        """
        drawn, cases, numbers = self._drawn, self._budget.cases, self._subject.ranks_up_to(self._ranks)
        fair = max(1, cases // (3 * len(numbers)))
        failure = self._searched_in_batches(cases - cases // 4)
        for ranks in sorted(numbers, key=lambda ranks: (drawn.on_ranks[ranks], -ranks)):
            missing = min(fair - drawn.on_ranks[ranks], cases - drawn.judged)
            if failure is None and missing > 0 and not drawn.counts.is_cut_short:
                failure = self._searched(missing, ranks, ranks, stream=f" on {ranks}")
        if failure is None and not drawn.counts.is_cut_short:
            failure = self._searched_in_batches(cases - drawn.judged, " more")
        return failure

    def _searched_in_batches(self, number: int, stream: str = "") -> Failing | Verdict | None:
        """Draw `number` cases in batches, one search each: Hypothesis keeps some 8 KB for each case of a search."""
        failure = None
        for start in range(0, number, _BATCH):
            some = min(_BATCH, number - start)
            failure = self._searched(some, 1, self._ranks, stream=f"{stream} {start}" if start else stream)
            if failure is not None or self._drawn.counts.is_cut_short:
                break
        return failure

    @property
    def _lacks_several_ranks(self) -> bool:
        return self._needs_several_ranks and not self._drawn.counts.on_several_ranks

    def _has_judged_enough(self) -> bool:
        """Return True once lack of time may end the check."""
        return self._drawn.counts.judged >= _LEAST_CASES and not self._lacks_several_ranks

    def _on_fewer_ranks(self, failure: Failing) -> Failing:
        """Return a failure of the same kind on the fewest ranks on which one is found.

        The shrinker keeps what it need not change, such as a grid shape that does not exist on fewer ranks. So cases on fewer ranks
        are drawn afresh, and the first that fails is shrunk again.
        """
        if failure.verdict.kind in _SLOW:
            return self._on_fewest_ranks(failure)
        while self._has_time() and self._subject.ranks_up_to(failure.case.ranks)[0] < failure.case.ranks:
            number = min(self._budget.cases, _REDRAWN)
            fewer = self._searched(number, 1, failure.case.ranks - 1)
            if not isinstance(fewer, Failing):
                break
            failure = fewer
        return failure

    def _on_fewest_ranks(self, failure: Failing) -> Failing:
        """Return a failure of the same kind on the fewest ranks on which one is drawn, shrunk as far as time allows.

        A failing case takes seconds, a passing one next to nothing. So numbers of ranks are tried in increasing order before anything
        is shrunk. The clock is ignored here: a job that repeats the search of another must find what that one found.
        """
        self._seeks_fewer_ranks = False
        for ranks in self._subject.ranks_up_to(failure.case.ranks - 1):
            fewer = self._searched(min(self._budget.cases, _REDRAWN), ranks, ranks)
            if isinstance(fewer, Failing):
                return fewer
        return self._smaller_drawn(failure) or failure

    def _smaller_drawn(self, failure: Failing) -> Failing | None:
        """Draw cases afresh, run those that are smaller than the failure, and shrink the first that fails in the same way."""
        is_smaller = partial(_is_smaller, than=failure.case)
        smaller = self._searched(_REDRAWN_SMALLER, 1, failure.case.ranks, is_smaller)
        return smaller if isinstance(smaller, Failing) else None

    def _in_single_steps(self, failure: Failing) -> Failing:
        """Return a failure of the same kind that, as far as time permits to find out, no single step makes smaller.

        A case that is one step smaller is made by changing the parameters, and the strategy may be unable to draw it. So it is never
        reported itself: if it fails, smaller cases are drawn, and the first of them that fails is shrunk again. If none of them fails,
        the failure is not called the smallest. Such cases run on simulated ranks only: one may end its process, and under MPI the job.
        While they run, the record holds the failure itself, so that it is stored if the process ends.
        """
        if failure.verdict.kind in _SLOW:
            return failure
        while self._world.can_schedule:
            self._steps_from = failure.case
            fails = self._fails_one_step_smaller(failure.case)
            self._steps_from = None
            if not fails:
                assert self._shrinking is not None
                self._shrinking.is_smallest = fails is False
                break
            smaller = self._smaller_drawn(failure)
            if smaller is None:
                break
            failure = smaller
        return failure

    def _fails_one_step_smaller(self, case: Case) -> bool | None:
        """Return True if a case that is one step smaller fails in the same way, and `None` if not all of them could be tried."""
        counts = self._subject.ranks_up_to(case.ranks)
        for number, smaller in enumerate(one_step_smaller(case), 1):
            judgement = self._judge(smaller) if smaller.ranks in counts else None
            if judgement is not None and self._is_the_failure(judgement.verdict):
                return True
            if not self._has_time() or number == MOST_STEPS:
                return None
        return False

    def _is_the_failure(self, verdict: Verdict) -> bool:
        """Return True for any failure at first, and while shrinking for one of the same kind."""
        if self._shrinking is None:
            return not verdict.is_coherent
        return self._shrinking.is_failure(verdict)

    def _searched(
        self,
        number: int,
        least_ranks: int,
        most_ranks: int,
        accepts: Callable[[Case], bool] = lambda case: True,
        stream: str = "",
    ) -> Failing | Verdict | None:
        """Draw `number` cases within these numbers of ranks, run those that `accepts` is true of, and shrink the first that fails.

        Another `stream` draws other cases. A failure is returned once it is found, whatever the strategy raises during shrinking.
        """
        failing: list[Failing] = []
        schedules = self._budget.schedules if self._world.can_schedule else 1

        @hypothesis.seed(seed_of_draws(self._seed, self._check + stream))
        @settings_of(number)
        @given(
            case=cases(self._subject, self._check, (least_ranks, most_ranks), schedules, self._budget.device)
        )
        def every_case_is_coherent(case: Case) -> None:
            if not accepts(case):
                return  # not `reject`, after which Hypothesis would draw up to ten times as many cases
            try:
                judgement = self._judge(case)
            except BaseException as error:
                if ended_a_case(error):
                    raise BrokenOff(error) from None
                raise
            if judgement is None:
                hypothesis.reject()
            if self._is_the_failure(judgement.verdict):
                if self._shrinking is None:
                    judgement = self._begin_shrinking(case, judgement)
                self._on_failure(self._unconfirmed(case, judgement))
                failing.append(Failing(case, judgement))
                raise Enough if self._seeks_fewer_ranks and judgement.verdict.kind in _SLOW else failing[-1]

        # The key for Hypothesis's database, which is not used. Without it, Hypothesis would tokenise the source above to make one.
        vars(every_case_is_coherent)["_hypothesis_internal_database_key"] = b""
        try:
            ended = end_of(every_case_is_coherent)
        except (KeyboardInterrupt, Exhausted):
            raise
        except BaseException as error:  # SystemExit, Overdue and pytest's `skip` among them
            if self._shrinking is None:
                raise
            self._stopped_by = f"looking at smaller cases raised {with_kind(type(error).__name__, in_brief(message_of(error)))}"
        else:
            if self._shrinking is None or isinstance(ended, Failing):
                return ended
            if isinstance(ended, Verdict):
                self._stopped_by = f"when smaller cases were looked at, {ended.headline}"
        return failing[-1] if failing else None

    def _unconfirmed(self, case: Case, judgement: Judgement) -> SearchResult:
        """The result of a search that is interrupted now."""
        verdict = judgement.verdict.with_lines(("interrupted", "before it was shrunk and seen again"))
        return self._failed(verdict, case, judgement.spaces)

    def _judge(self, case: Case) -> Judgement | None:
        """Judge a case that Hypothesis has drawn; `None` if the check does not apply to it."""
        # Before the first failure cases rarely repeat, and looking them up would cost more than it saves.
        if self._shrinking is None:
            return self._judge_next(case)
        return self._shrinking.judged(case, self._run_and_judge, self._may_run)

    def _may_run(self, case: Case) -> bool:
        """Return True while there is time, and after that only for a case that an earlier job has run."""
        return self._has_time() or self._runner.known(case) is not None

    def _judge_next(self, case: Case) -> Judgement | None:
        drawn = self._drawn
        was_judged = drawn.add(case)
        if was_judged is not None:
            return Judgement(coherent(), None) if was_judged else None
        self._tick(drawn.number)
        if time.monotonic() > self._drawn_until and self._has_judged_enough():
            drawn.counts.end()
        if drawn.counts.is_hopeless or drawn.counts.is_cut_short:
            raise Enough
        measuring = structs.replace(case, measurement=self._measurement)
        judgement = run_case(self._run, measuring, Measurement.ONE_SAMPLE)
        if judgement is not None:
            self._measurement = _measurement_after(judgement.verdict)
        return drawn.note(case, self._last_run, judgement)

    def _begin_shrinking(self, case: Case, judgement: Judgement) -> Judgement:
        """Start the clock at the first failure and choose where to shrink it, in the world or in simulation; return its judgement there."""
        self.stage = Stage.SHRINKING
        deadline = time.monotonic() + self._seconds_left
        first, simulator = FirstFailure(case, self._last_run, judgement.spaces), None
        if self._simulator is not None and judgement.verdict.is_hang:
            simulated = self._simulator.judged(case)
            if simulated is not None and simulated.verdict.is_hang:
                simulator, judgement = self._simulator, simulated
        self._shrinking = Shrinking(first, judgement, deadline, simulator)
        return judgement

    @property
    def _is_shrunk_in_simulation(self) -> bool:
        return self._shrinking is not None and self._shrinking.simulator is not None

    def _repeat_without_simulation(self) -> None:
        """Go back to *drawing*: the same seed draws the same cases up to the first failure, and those are known to pass."""
        assert self._shrinking is not None
        self.stage = Stage.DRAWING
        self._seconds_left = self._shrinking.seconds_left
        self._simulator = self._shrinking = None
        self._stopped_by = ""
        self._seeks_fewer_ranks = True
        self._drawn.repeat()

    def _run_and_judge(self, case: Case) -> Judgement | None:
        if self._shrinking is not None and self._shrinking.simulator is not None:
            return self._shrinking.simulator.judged(case, self._shrinking.kind)
        return run_case(self._run, case)

    def _run(self, payload: Case, ranks: int, *, seed: int = 0, schedule: Schedule | None = None) -> Run:
        """Run a case in the world. This method is the search's :class:`~adjointlab.worlds.world.Runner`."""
        # The number of cases before this one. While drawing, this one has already been counted.
        done = self._drawn.number - (self.stage is Stage.DRAWING)
        # The smallest case has to end a job twice before that counts as confirmed, unless there is no time for it.
        times = 2 if self.stage is Stage.CONFIRMING and self._has_time() else 1
        try:
            self._last_run = self._runner(
                payload,
                ranks,
                seed=seed,
                schedule=schedule,
                stage=self.stage,
                done=done,
                times=times,
                step_from=self._steps_from,
            )
        except (KeyboardInterrupt, Exhausted):
            raise
        except BaseException as error:
            error.add_note(WHILE_A_CASE_RAN)
            raise
        return self._last_run

    def _has_time(self) -> bool:
        """Return True while a failure may be investigated: there is time, and MPI has communicators left.

        Every failure under MPI leaves communicators behind that can no longer be freed.
        """
        if self._shrinking is None:
            return True
        return time.monotonic() <= self._shrinking.deadline and not self._world.is_exhausted


def _is_smaller(case: Case, than: Case) -> bool:
    own, most = size(case), size(than)
    return own != most and all(one <= other for one, other in zip(own, most, strict=True))


def _measurement_after(verdict: Verdict) -> Measurement:
    """The measurement that the case after this verdict makes in its first run, to save most cases a second one."""
    if verdict.kind == UNDECIDED:
        return Measurement.ALL
    return Measurement.ONE_SAMPLE if Figure.ROUNDING in verdict.figures else Measurement.NONE
