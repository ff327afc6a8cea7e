"""One check of one subject from beginning to end, as the front ends run it: draw or replay, judge, store."""

from __future__ import annotations

import secrets
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from adjointlab.checks.verdict import Status, Verdict
from adjointlab.engine.case import Case
from adjointlab.engine.case_runner import (
    CaseRunner,
    KnownRuns,
    RecordCase,
    nothing_known,
    run_case,
    with_follow_up,
)
from adjointlab.engine.discovery import Found
from adjointlab.engine.run_case import body, check_named
from adjointlab.engine.search import Budget, SearchResult, investigate
from adjointlab.engine.subject import Subject, SubjectError
from adjointlab.store.job_log import Done, supervised, work_of
from adjointlab.store.reproducer import Written, stored, write, write_case
from adjointlab.store.running_case import NAME, Progress, Running, ending, recording
from adjointlab.store.watchdog_report import overdue_report
from adjointlab.worlds.world import Exhausted, Runner, World

__all__ = ["CheckResult", "kept", "replay", "replay_corpus", "run_check"]


@dataclass(frozen=True)
class CheckResult:
    """What came of one check of one subject, and where its failure is stored."""

    found: Found
    result: SearchResult
    written: Written | None = None
    unwritten: str = ""  # why a failure could not be stored
    replayed: Path | None = None  # the stored case, where no fresh ones were drawn
    known: str = ""  # where a list says that this fails, and why

    @property
    def status(self) -> Status:
        return self.result.status

    @property
    def is_expected(self) -> bool:
        """Whether it fails as a list says that it does."""
        return bool(self.known) and self.status is not Status.COHERENT

    @property
    def unexpectedly_passes(self) -> bool:
        """Whether it does not fail any more as a list says that it does."""
        return bool(self.known) and self.status is Status.COHERENT


def run_check(
    world: World,
    found: Found,
    check: str,
    budget: Budget,
    folder: Path,
    tick: Callable[[int], None] = lambda tried: None,
) -> CheckResult:
    """Collective: investigate, and store the failure if there is one. The same on every rank.

    A job that is started again knows from its job_log what ended those before it.

    Raises :class:`SubjectError` for a subject that is incomplete.
    """
    job_log, work = supervised(), work_of(found.subject.location, check)
    seed = budget.seed
    if seed is None:
        seed = world.share(secrets.randbits(32) if job_log is None else job_log.seed_of(work))
    budget = replace(budget, seed=seed)
    if job_log is not None:
        # The leader looks, for it alone writes there.
        done: Done | None = world.share(job_log.outcome(work) if world.is_leader else None)
        if done is not None:
            return CheckResult(found, done.result, done.written, done.unwritten)
        if (death := job_log.death_without_case(work)) is not None:
            return CheckResult(
                found, SearchResult(found.subject.name, check, world.name, death.verdict(), 0, seed, 0.0)
            )
        budget = replace(budget, shrinking=job_log.shrinking(work))
    try:
        with _at_work(world, found, check, seed, folder) as (record, known):
            report = investigate(world, found.subject, check, budget, tick, record, known)
    except (SubjectError, Exhausted):
        raise
    except Exception as error:
        # On all ranks alike: the leader's exception travels.
        report = _unfinished(world, found.subject, check, seed, error)
    written, unwritten = _store(world, report, found, folder)
    if job_log is not None and world.is_leader:
        job_log.finish(Done(work, report, written, unwritten))
    return CheckResult(found, report, written, unwritten)


def replay(world: World, subject: Subject, case: Case) -> SearchResult:
    """Collective: run one case again and judge it."""

    def conduct(run: Runner) -> SearchResult:
        return _again(world, run, subject, case)

    with check_named(case.check).surroundings():
        return world.lead(body(subject), conduct)


def replay_corpus(world: World, found: Found, check: str, folder: Path) -> CheckResult | None:
    """Collective: replay the cases that `folder` holds of the subject and check; the first that still fails.

    Cases on more ranks than the world has are passed over, and those that were found under this very supervision: they
    are still being made smaller.
    """
    job_log = supervised()
    if job_log is not None and job_log.death_without_case(work_of(found.subject.location, check)) is not None:
        return None

    def conduct(run: Runner) -> tuple[Path, SearchResult] | None:
        for path, case in stored(folder, found.subject, check):
            if case.ranks > world.ranks or (job_log is not None and job_log.is_younger(path)):
                continue
            report = _again(world, CaseRunner(run, record, known), found.subject, case)
            if report.status is not Status.COHERENT:
                return path, report
        return None

    with _at_work(world, found, check, 0, folder) as (record, known), check_named(check).surroundings():
        failing = world.lead(body(found.subject), conduct)
    if failing is None:
        return None
    path, report = failing
    return CheckResult(found, report, Written(path, path.with_suffix(".py")), replayed=path)


@contextmanager
def _at_work(
    world: World, found: Found, check: str, seed: int, folder: Path
) -> Iterator[tuple[RecordCase | None, KnownRuns]]:
    """The record of what is running, on the leader; and what is known of cases that must not be run again."""
    job_log, location = supervised(), found.subject.location
    progress = Progress(found.reference, location, check, world.name, world.ranks, seed)
    try:
        if world.share(world.is_exhausted):
            raise Exhausted(
                "too many communicators were left behind in cases that failed: start the job again"
            )
        with _on_record(world, found, progress, folder) as record_and_memory:
            yield record_and_memory
    except Exhausted:
        # On all ranks alike. Whoever starts the job again finds this.
        if world.is_leader:
            place = folder if job_log is None else job_log.folder
            ending(place / NAME, Running(progress, 0, "drawing", None, "communicators"))
        raise


@contextmanager
def _on_record(
    world: World, found: Found, progress: Progress, folder: Path
) -> Iterator[tuple[RecordCase | None, KnownRuns]]:
    job_log, location, check = supervised(), found.subject.location, progress.check
    if job_log is None:
        with (
            recording(folder, progress, is_leader=world.is_leader) as recorder,
            _mourned(world, found, progress, folder, folder / NAME if recorder is None else recorder.path),
        ):
            if recorder is not None and recorder.leftover is not None:
                _keep(recorder.leftover, folder, world)
            yield None if recorder is None else recorder.record, nothing_known
        return
    work = work_of(location, check)
    with (
        job_log.at(work, folder, is_leader=world.is_leader),
        recording(job_log.folder, progress, is_leader=world.is_leader) as recorder,
        # The supervisor makes it smaller first, and then puts it where it belongs.
        _mourned(world, found, progress, job_log.folder / "late", job_log.folder / NAME),
    ):
        yield None if recorder is None else recorder.record, job_log.memory(work)


def _keep(left: Running, folder: Path, world: World) -> None:
    """Store the case at which an earlier job died, before its record is written over."""
    if left.case is None or left.ended:
        return
    headline = "the job ended while this case ran"
    verdict = Verdict(Status.UNJUDGED, headline, headline)
    try:
        path = write_case(left.case, left.progress.location, left.progress.world, verdict, folder)
    except (OSError, TypeError):
        return
    world.watchdog.say(
        f"adjointlab: an earlier job ended while it ran a case of {left.case.subject}: {path}\n"
    )


@contextmanager
def _mourned(world: World, found: Found, progress: Progress, folder: Path, record: Path) -> Iterator[None]:
    """What the watchdog of this process does should it have to end the job."""
    world.watchdog.overdue_report = overdue_report(found, progress, folder, record)
    try:
        yield
    finally:
        world.watchdog.overdue_report = None


def kept(found: Found, report: SearchResult, folder: Path) -> CheckResult:
    """What came of a run that had no other ranks, its failure stored in `folder`."""
    written, problem = None, ""
    if report.case is not None:
        try:
            written = write(report, found.subject, folder)
        except Exception as error:  # the verdict stands without its file
            problem = f"{type(error).__name__}: {error}"
    return CheckResult(found, report, written, problem)


def _again(world: World, run: Runner, subject: Subject, case: Case) -> SearchResult:
    outcome = run_case(run, case)
    if outcome is None:
        verdict, spaces = Verdict(Status.COHERENT, "the check has nothing to say about this case"), None
    else:
        verdict, spaces = outcome
    verdict = with_follow_up(run, case, verdict)
    seed = case.setting.seed
    return SearchResult(
        subject.name, case.check, world.name, verdict, 1, seed, 0.0, case, spaces, case.ranks, verdict.figures
    )


def _unfinished(world: World, subject: Subject, check: str, seed: int, error: Exception) -> SearchResult:
    kind = type(error).__name__
    text = "".join(traceback.format_exception(error)).rstrip()
    verdict = Verdict(
        Status.UNJUDGED, f"drawing its cases raised {kind}: {error}", f"raised {kind}", (("traceback", text),)
    )
    return SearchResult(subject.name, check, world.name, verdict, 0, seed, 0.0)


def _store(world: World, report: SearchResult, found: Found, folder: Path) -> tuple[Written | None, str]:
    # No rank may learn alone that there is no file.
    stored = kept(found, report, folder) if world.is_leader else None
    result: tuple[Written | None, str] = world.share(stored and (stored.written, stored.unwritten))
    return result
