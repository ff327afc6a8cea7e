"""One check of one subject from beginning to end, as all front ends run it: replay or draw, judge, store."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from adjointlab.check_result import CheckResult, SearchInterrupted
from adjointlab.checks.check import check_named
from adjointlab.checks.verdict import unjudged
from adjointlab.engine.discovery import Found
from adjointlab.engine.folded_warnings import FoldedWarnings
from adjointlab.engine.run_case import Stage
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget, SearchResult
from adjointlab.recording import at_work
from adjointlab.replaying import has_unseen_failures, replay_corpus
from adjointlab.store.interrupted import note_seed
from adjointlab.store.job_log import Done, JobLog, check_id_of, supervised
from adjointlab.store.reproducer import Written, write
from adjointlab.store.running_case import left_behind
from adjointlab.unjudged_checks import unsupported, verdict_on, without_case
from adjointlab.worlds.exception_text import kind_and_message
from adjointlab.worlds.interrupts import signal_of, signals_held
from adjointlab.worlds.shared_functions import put_back
from adjointlab.worlds.world import Exhausted, World

__all__ = ["PROCESS_ENDED", "check_with_corpus", "kept", "lost", "run_check"]

PROCESS_ENDED = "process ended"
"""Kind of the verdict on a check whose process has died."""


def run_check(
    world: World,
    found: Found,
    check: str,
    budget: Budget,
    folder: Path,
    tick: Callable[[int], None] = lambda tried: None,
) -> CheckResult:
    """Collective: search for a failure, and store it in `folder` if there is one. Every rank returns the same result.

    A restarted supervised job reads from its log which checks are done and which cases have crashed earlier jobs.

    Raises :class:`~adjointlab.worlds.world.Exhausted` if the job has to be restarted.
    """
    job_log, check_id = supervised(), check_id_of(found.subject.location, check)
    seed = budget.seed
    if (verdict := unsupported(world, found.subject, budget.device)) is not None:
        return CheckResult(found, without_case(world, found.subject, check, seed or 0, verdict))
    if seed is None:
        seed = world.share(secrets.randbits(32) if job_log is None else job_log.seed_of(check_id))
    budget = replace(budget, seed=seed, cases=check_named(check).cases_of(budget.cases, found.subject))
    if job_log is not None:
        if (logged := _logged(job_log, world, found, check, seed)) is not None:
            return logged
        budget = replace(budget, shrinking=job_log.shrinking(check_id))
    result = _searched(world, found, check, budget, folder, tick)
    put_back()  # functions that a strategy may have replaced since the last run
    finished = CheckResult(found, result)
    try:
        with signals_held():
            written, unwritten = _store(world, result, found, folder)
            finished = CheckResult(found, result, written, unwritten)
            if job_log is not None and world.is_leader:
                job_log.finish(Done(check_id, result, written, unwritten))
    except KeyboardInterrupt as interrupt:
        raise SearchInterrupted(signal_of(interrupt), finished) from interrupt
    return finished


def _logged(job_log: JobLog, world: World, found: Found, check: str, seed: int) -> CheckResult | None:
    """Collective: return the result of the check in an earlier job of this supervised run; None if it has none yet."""
    check_id = check_id_of(found.subject.location, check)
    # Only the leader reads the file, because it also writes it: other ranks might read an older state.
    done: Done | None = world.share(job_log.outcome(check_id) if world.is_leader else None)
    if done is not None:
        return CheckResult(found, done.result, done.written, done.unwritten)
    if (death := job_log.death_without_case(check_id)) is not None:
        return CheckResult(found, without_case(world, found.subject, check, seed, death.verdict()))
    return None


def _searched(
    world: World, found: Found, check: str, budget: Budget, folder: Path, tick: Callable[[int], None]
) -> SearchResult:
    """Collective: return the result of a search, even if an exception of user code ends it.

    Raises :class:`SearchInterrupted`, with the smallest failure so far, if an interrupt ends a search that has found one.

    The budget has a seed.
    """
    assert budget.seed is not None
    seed = budget.seed
    failures: list[SearchResult] = []  # the smallest last
    try:
        with (
            at_work(world, found, check, seed, folder) as (record, known),
            FoldedWarnings(is_leader=world.is_leader) as folded,
        ):

            def note(failure: SearchResult) -> None:
                failures.append(failure)
                folded.ignore_more()

            result = investigate(world, found.subject, check, budget, tick, record, known, note)
        return replace(result, warnings=folded.found)
    except KeyboardInterrupt as interrupt:
        if not failures:
            note_seed(interrupt, seed)
            raise
        raise SearchInterrupted(signal_of(interrupt), kept(found, failures[-1], folder)) from interrupt
    except Exhausted:
        raise
    except BaseException as error:
        # These include SubjectError, SystemExit and pytest's `skip`. The session goes on with the next check, on all ranks, because
        # `lead` raises the leader's exception everywhere.
        return without_case(world, found.subject, check, seed, verdict_on(error, found.subject))


def check_with_corpus(
    world: World,
    found: Found,
    check: str,
    budget: Budget,
    folder: Path,
    tick: Callable[[int], None] = lambda tried: None,
) -> CheckResult:
    """Collective: replay the stored failures of the subject and check; if none still fails, call :func:`run_check`."""
    failing = replay_corpus(world, found, check, folder, budget.device)
    if failing is not None:
        return failing
    result = run_check(world, found, check, budget, folder, tick)
    unseen = has_unseen_failures(world, found, check, folder, budget.device)
    return replace(result, has_unseen_failures=unseen)


def kept(found: Found, result: SearchResult, folder: Path) -> CheckResult:
    """Store the failure of a result, if there is one, in `folder`; not collective."""
    written, problem = None, ""
    # A wrong declaration is corrected in the source: there is nothing to replay.
    if result.case is not None and not CheckResult(found, result).is_misdeclared:
        try:
            written = write(result, found.subject, folder)
        except Exception as error:  # the verdict stands without its file
            problem = kind_and_message(error)
    return CheckResult(found, result, written, problem)


def lost(world: World, found: Found, check: str, budget: Budget, folder: Path, ending: str) -> CheckResult:
    """Return the result of a check whose process has died, as `ending` describes, and store the case that was running."""
    running = left_behind(folder, found.subject.location, check)
    case = None if running is None else running.case
    # The watchdog has recorded why it ended the process.
    kind = "" if running is None else running.kind
    headline = f"{kind}: {ending}" if kind else ending
    if running is not None and running.stage is Stage.STEPPING:
        headline = f"a case fails, as its replay tells; while smaller ones were tried, {headline}"
    verdict = replace(unjudged(headline, kind=kind or PROCESS_ENDED), is_death=True)
    result = SearchResult(
        found.subject.name,
        check,
        world.name,
        verdict,
        tried=0 if running is None else running.done + 1,
        seed=(budget.seed or 0) if running is None else running.seed,
        case=case,
        drawn_ranks=0 if case is None else case.ranks,
    )
    own = kept(found, result, folder)
    if own.written is not None and running is not None and running.stage is Stage.REPLAYING:
        return replace(own, replayed=own.written.json)
    return own


def _store(world: World, result: SearchResult, found: Found, folder: Path) -> tuple[Written | None, str]:
    entry: tuple[Written | None, str] = None, ""
    if world.is_leader:
        own = kept(found, result, folder)
        entry = own.written, own.unwritten
    # Shared, so that all ranks agree on whether there is a file.
    return world.share(entry)
