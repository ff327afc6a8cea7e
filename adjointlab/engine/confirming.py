"""Confirmation of a failure: its smallest case runs again, and the result is explained."""

from __future__ import annotations

from functools import partial
from typing import Final, NamedTuple

from adjointlab.checks.verdict import Status, Verdict, unjudged
from adjointlab.engine.asked_at_import import with_line_on_fewer_ranks
from adjointlab.engine.case import Case
from adjointlab.engine.case_body import body
from adjointlab.engine.interleavings import narrowed
from adjointlab.engine.retries import with_hints_of_retries
from adjointlab.engine.run_case import NONDETERMINISTIC, CaseRunner, run_case, with_follow_up
from adjointlab.engine.simulation_artefacts import (
    with_lines_on_exceptions,
    with_module_state,
)
from adjointlab.engine.subject import Subject
from adjointlab.worlds.run import FindingKind
from adjointlab.worlds.world import Runner, World

__all__ = ["Confirmation", "Confirmed", "explained"]

_CONFIRMATIONS: Final = 10
"""The number of times that a wrong result must be seen again before it is taken for deterministic.

A race that goes wrong every other time passes for deterministic with probability 2**-10; with a single repetition it would
pass every other time. A run that returns costs milliseconds.
"""

_SLOW: Final = (
    "a rank took longer than the others wait for it, on a busy machine or in a first call that imports or compiles something; or it hangs "
    "only if messages arrive in a rare order"
)

_OTHER_VALUES: Final = (
    "it reads uninitialised memory, which the purity check finds, random numbers without a seed, or a clock"
)

_OTHER_MESSAGES: Final = "; or it receives messages from any source, which come in another order each time"  # not on simulated ranks


class Confirmed(NamedTuple):
    """The verdict of a case that has run again, and whether it failed as in its first run."""

    verdict: Verdict
    is_seen_again: bool = True


class Confirmation:
    """Confirms failures of `subject` in `world`, where `run` runs a case; with `explains`, spends more runs to explain them."""

    def __init__(self, world: World, subject: Subject, run: Runner, *, explains: bool) -> None:
        self._world, self._subject, self._run, self._explains = world, subject, run, explains

    def hang_under_mpi(self, case: Case) -> Verdict | None:
        """Run a case under MPI that was shrunk in simulation; `None` if it does not hang there."""
        judgement = run_case(self._run, case)
        if judgement is None or not judgement.verdict.is_hang:
            return None
        text = f"with simulated ranks, and seen again under {self._world.name.ranks_run_under}"
        return judgement.verdict.with_lines(("shrunk", text))

    def with_fewer_schedules(self, case: Case, first: Verdict) -> Case:
        """Return a case that failed with verdict `first`, without the schedules that its failure does not need."""

        def fails_alike(case: Case) -> bool:
            judgement = run_case(self._run, case)
            return judgement is not None and judgement.verdict.fails_like(first)

        return narrowed(self._run, case, fails_alike) if case.schedules else case

    def confirmed(self, case: Case, first: Verdict) -> Confirmed:
        """Run a case again that failed with verdict `first`, and explain its failure with the follow-up of its check."""
        verdict = first
        # A crash or hang runs only once more: it may cost a time-out, or the job.
        for _ in range(_CONFIRMATIONS if first.status is Status.INCOHERENT else 1):
            again = run_case(self._run, case)
            if again is None or not again.verdict.fails_like(first):
                second = "nothing to judge" if again is None else again.verdict.headline or "no failure"
                return Confirmed(self._another_result(first, second), is_seen_again=False)
            verdict = again.verdict
        return Confirmed(
            explained(self._world, self._subject, self._run, case, verdict, at_length=self._explains)
        )

    def _another_result(self, first: Verdict, second: str) -> Verdict:
        """The verdict on a case that failed with verdict `first`, and showed `second` when it ran again."""
        if first.is_death:
            return first.with_lines(("again", f"{second}, when it ran once more"))
        if first.kind == FindingKind.BLOCKED:
            cause = _SLOW
        else:
            cause = _OTHER_VALUES if self._world.can_schedule else _OTHER_VALUES + _OTHER_MESSAGES
        lines = (("first", first.headline), ("again", second), ("perhaps", cause), *first.lines)
        return unjudged("the result changes from run to run", *lines, kind=NONDETERMINISTIC)


def explained(
    world: World, subject: Subject, run: Runner, case: Case, verdict: Verdict, *, at_length: bool = True
) -> Verdict:
    """Return the verdict on a case; a failure with the explanation by its check's follow-up, and if `at_length` by further runs."""
    if verdict.is_coherent:
        return verdict
    verdict = with_follow_up(run, case, verdict)

    def passes(subject: Subject) -> bool:
        """Return True if the case passes with this declaration of its subject. For worlds of a single process only."""
        if not at_length:
            return False
        judgement = run_case(CaseRunner(partial(world.run, body(subject))), case)
        return judgement is not None and judgement.verdict.is_coherent

    verdict = with_lines_on_exceptions(verdict, is_simulated=world.can_schedule)
    if world.can_schedule:
        verdict, is_of_state = with_module_state(verdict, subject, passes, on_several_ranks=case.ranks > 1)
        if is_of_state:
            return verdict  # shared state explains it; other runs of this case would only show what they have in common
    else:
        verdict = with_line_on_fewer_ranks(verdict, subject, case.ranks, world.ranks)
    if not at_length or world.is_exhausted:
        return verdict
    return with_hints_of_retries(run, case, verdict, subject, may_change_parameters=world.can_schedule)
