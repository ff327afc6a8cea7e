"""One check of one subject from beginning to end, as the front ends run it: draw or replay, judge, store."""

from __future__ import annotations

import secrets
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from adjointlab.checks.verdict import Status, Verdict
from adjointlab.harness.case import Case
from adjointlab.harness.engine import Budget, Report, investigate, run_case
from adjointlab.harness.examine import WITNESS, body, check_named
from adjointlab.harness.find import Found
from adjointlab.harness.reproducer import Written, stored, write
from adjointlab.harness.subject import Subject, SubjectError
from adjointlab.worlds.world import Runner, World

__all__ = ["Attempt", "attempt", "kept", "replay", "replay_corpus"]


@dataclass(frozen=True)
class Attempt:
    """What came of one check of one subject, and where its failure is stored."""

    found: Found
    report: Report
    written: Written | None = None
    unwritten: str = ""  # why a failure could not be stored
    replayed: Path | None = None  # the stored case, where no fresh ones were drawn

    @property
    def status(self) -> Status:
        return self.report.status


def attempt(
    world: World,
    found: Found,
    check: str,
    budget: Budget,
    folder: Path,
    tick: Callable[[int], None] = lambda tried: None,
) -> Attempt:
    """Collective: investigate, and store the failure if there is one. The same on every rank.

    Raises :class:`SubjectError` for a subject that is incomplete.
    """
    seed: int = world.share(secrets.randbits(32) if budget.seed is None else budget.seed)
    try:
        report = investigate(world, found.subject, check, replace(budget, seed=seed), tick)
    except SubjectError:
        raise
    except Exception as error:
        # On all ranks alike: the leader's exception travels.
        report = _unfinished(world, found.subject, check, seed, error)
    written, unwritten = _store(world, report, found, folder)
    return Attempt(found, report, written, unwritten)


def replay(world: World, subject: Subject, case: Case) -> Report:
    """Collective: run one case again and judge it."""

    def conduct(run: Runner) -> Report:
        return _again(world, run, subject, case)

    with check_named(case.check).surroundings():
        return world.lead(body(subject), conduct)


def replay_corpus(world: World, found: Found, check: str, folder: Path) -> Attempt | None:
    """Collective: replay the cases that `folder` holds of the subject and check; the first that still fails.

    Cases on more ranks than the world has are passed over.
    """

    def conduct(run: Runner) -> tuple[Path, Report] | None:
        for path, case in stored(folder, found.subject, check):
            if case.ranks > world.ranks:
                continue
            report = _again(world, run, found.subject, case)
            if report.status is not Status.COHERENT:
                return path, report
        return None

    with check_named(check).surroundings():
        failing = world.lead(body(found.subject), conduct)
    if failing is None:
        return None
    path, report = failing
    return Attempt(found, report, Written(path, path.with_suffix(".py")), replayed=path)


def kept(found: Found, report: Report, folder: Path) -> Attempt:
    """What came of a run that had no other ranks, its failure stored in `folder`."""
    written, problem = None, ""
    if report.case is not None:
        try:
            written = write(report, found.subject, folder)
        except Exception as error:  # the verdict stands without its file
            problem = f"{type(error).__name__}: {error}"
    return Attempt(found, report, written, problem)


def _again(world: World, run: Runner, subject: Subject, case: Case) -> Report:
    outcome = run_case(run, case)
    if outcome is None:
        verdict, spaces = Verdict(Status.COHERENT, "the check has nothing to say about this case"), None
    else:
        verdict, spaces = outcome
    if verdict.status is Status.INCOHERENT and case.check in ("adjoint", "matrix"):
        witness = run_case(run, replace(case, check=WITNESS))
        if witness is not None and witness[0].status is Status.INCOHERENT:
            verdict = replace(verdict, lines=witness[0].lines)
    seed = case.setting.seed
    return Report(
        subject.name, case.check, world.name, verdict, 1, seed, 0.0, case, spaces, case.ranks, verdict.figures
    )


def _unfinished(world: World, subject: Subject, check: str, seed: int, error: Exception) -> Report:
    kind = type(error).__name__
    text = "".join(traceback.format_exception(error)).rstrip()
    verdict = Verdict(
        Status.UNJUDGED, f"drawing its cases raised {kind}: {error}", f"raised {kind}", (("traceback", text),)
    )
    return Report(subject.name, check, world.name, verdict, 0, seed, 0.0)


def _store(world: World, report: Report, found: Found, folder: Path) -> tuple[Written | None, str]:
    # No rank may learn alone that there is no file.
    stored = kept(found, report, folder) if world.is_leader else None
    result: tuple[Written | None, str] = world.share(stored and (stored.written, stored.unwritten))
    return result
