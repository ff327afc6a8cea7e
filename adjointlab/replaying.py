"""Replay of stored failures: a single one, or all of a check before fresh cases are drawn; and notes on those not replayed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from adjointlab.check_result import CheckResult
from adjointlab.checks.check import check_named
from adjointlab.checks.memory_orders import unmixed
from adjointlab.checks.verdict import Status, unjudged
from adjointlab.core.arrays import installed
from adjointlab.devices.memories import on
from adjointlab.engine.case import Case
from adjointlab.engine.case_body import body
from adjointlab.engine.confirming import explained
from adjointlab.engine.discovery import Found
from adjointlab.engine.failed_runs import MISDECLARED
from adjointlab.engine.folded_warnings import FoldedWarnings
from adjointlab.engine.run_case import CaseRunner, run_case
from adjointlab.engine.search_result import SearchResult
from adjointlab.engine.subject import Subject
from adjointlab.quantities import counted
from adjointlab.recording import at_work
from adjointlab.store.corpus import damaged, homeless, stored
from adjointlab.store.files import printable
from adjointlab.store.job_log import check_id_of, supervised
from adjointlab.store.reproducer import BadReproducer, Written, read
from adjointlab.unjudged_checks import unsupported, verdict_on, without_case
from adjointlab.worlds.world import Exhausted, Runner, World

__all__ = ["has_unseen_failures", "replay", "replay_corpus", "say_not_replayed"]

_NOTHING_TO_SAY = "nothing to say"
"""Kind of the verdict on a case to which its check does not apply."""


def replay(world: World, subject: Subject, case: Case) -> SearchResult:
    """Collective: run one stored case and judge it."""
    if (verdict := unsupported(world, subject)) is not None:
        return without_case(world, subject, case.check, case.setting.seed, verdict)

    def conduct(run: Runner) -> SearchResult:
        return _replayed(world, CaseRunner(run), subject, case)

    with check_named(case.check).surroundings():
        return world.lead(body(subject), conduct, subject.location)


def replay_corpus(
    world: World, found: Found, check: str, folder: Path, device: str | None = None
) -> CheckResult | None:
    """Collective: replay the cases of the subject and check in `folder`; return the first that still fails.

    Skips cases that need more ranks than the world has or memory that is not available, cases in memory other than that of
    `device` (if given), and cases that were stored during this supervised run, because they are still being shrunk.
    """
    job_log = supervised()
    if unsupported(world, found.subject) is not None or (
        job_log is not None
        and job_log.death_without_case(check_id_of(found.subject.location, check)) is not None
    ):
        return None

    replayed: list[Path] = []  # the replay of the last one may not have finished

    def conduct(run: Runner) -> tuple[Path, SearchResult] | None:
        for path, case in _replayable(world, found.subject, check, folder, device):
            replayed.append(path)
            result = _replayed(world, CaseRunner(run, record, known), found.subject, case)
            if (
                result.verdict.kind == MISDECLARED
            ):  # the declaration has changed since: such a failure is never stored
                _note_of_other_declaration(world, path, f"in which {result.verdict.headline}")
                continue
            if result.status is not Status.COHERENT and result.verdict.kind != _NOTHING_TO_SAY:
                return path, result
            _note_of_other_world(world, path)
        return None

    try:
        with (
            at_work(world, found, check, 0, folder) as (record, known),
            FoldedWarnings(is_leader=world.is_leader) as folded,
            check_named(check).surroundings(),
        ):
            failing = world.lead(body(found.subject), conduct, found.subject.location)
    except (KeyboardInterrupt, Exhausted):
        raise
    except BaseException as error:
        # As after a search that fails: the check could not be judged, and the session goes on with the next one.
        last = printable(str(replayed[-1])) if replayed else "what is stored"
        verdict = verdict_on(error, found.subject, f"while {last} was replayed")
        return CheckResult(found, without_case(world, found.subject, check, 0, verdict))
    if failing is None:
        return None
    path, result = failing
    note = "this stored case still fails, so none was drawn; remove it if the strategy draws no such case any more"
    result = replace(result, verdict=result.verdict.with_lines(("stored", note)), warnings=folded.found)
    return CheckResult(found, result, Written.beside(path), replayed=path)


def _replayable(
    world: World, subject: Subject, check: str, folder: Path, device: str | None
) -> Iterator[tuple[Path, Case]]:
    """Yield the stored cases that can be replayed in this run; print a note on each that the subject no longer declares."""
    job_log = supervised()
    for path, case in stored(folder, subject, check):
        if _obstacle(world, case, device) or (job_log is not None and job_log.is_newer(path)):
            continue
        if undeclared := _undeclared(subject, case):
            _note_of_other_declaration(world, path, undeclared)
        else:
            yield path, case


def _replayed(world: World, run: Runner, subject: Subject, case: Case) -> SearchResult:
    judgement = run_case(run, case)
    if judgement is None:
        verdict = unjudged("the check has nothing to say about this case", kind=_NOTHING_TO_SAY)
        spaces = None
    else:
        verdict, spaces = explained(world, subject, run, case, judgement.verdict), judgement.spaces
    return SearchResult(
        subject.name,
        case.check,
        world.name,
        verdict,
        tried=1,
        seed=case.setting.seed,
        case=case,
        spaces=spaces,
        drawn_ranks=case.ranks,
        figures=verdict.figures,
        exact=int(verdict.is_exact),
    )


def _obstacle(world: World, case: Case, device: str | None) -> str:
    """Return the reason why a stored case cannot be replayed in this run; empty if it can."""
    memory = case.setting.library
    if case.ranks > world.ranks:
        return f"it needs {case.ranks} ranks, and this run has {world.ranks}"
    if not on(device, [memory]):
        return f"it is in the memory {memory}, and this run is on --device {device}"
    if not installed(memory):
        return f"it is in the memory {memory}, which cannot be used here"
    return ""


def _undeclared(subject: Subject, case: Case) -> str:
    """Describe the ranks or memory of a stored case that the subject no longer declares; empty if it declares all."""
    setting = case.setting
    if case.ranks not in subject.ranks_up_to(case.ranks):
        return f"not for {counted(case.ranks, 'rank')}"
    if setting.library not in subject.arrays:
        return f"and has no arrays in the memory {setting.library}"
    orders = map(unmixed, setting.orders)
    return next(
        (f"and has no arrays in {order} memory" for order in orders if order not in subject.orders), ""
    )


def has_unseen_failures(world: World, found: Found, check: str, folder: Path, device: str | None) -> bool:
    """Collective: return True if stored failures cannot be replayed in this run; for the one on the fewest ranks, print the reason."""
    unseen = []
    if world.is_leader:
        by_ranks = sorted(stored(folder, found.subject, check), key=lambda entry: entry[1].ranks)
        unseen = [(path, why) for path, case in by_ranks if (why := _obstacle(world, case, device))]
    if unseen:
        path, why = unseen[0]
        more = f" (and {len(unseen) - 1} more)" if len(unseen) > 1 else ""
        world.watchdog.say(
            f"adjointlab: note: a failure of {printable(found.subject.label)} ({check}) is not replayed: {why}: {printable(str(path))}{more}\n"
        )
    return world.share(bool(unseen))


def _note_of_other_declaration(world: World, path: Path, why: str) -> None:
    """Print that the failure stored at `path` no longer matches the declaration of its subject."""
    world.watchdog.say(
        f"adjointlab: note: the failure stored in {printable(str(path))} is not replayed: remove it, because its subject is now "
        f"declared differently, {printable(why)}\n"
    )


def _note_of_other_world(world: World, path: Path) -> None:
    """Print a note if the failure stored at `path`, which does not show in `world`, was found in another world."""
    try:
        entry = read(path)
    except BadReproducer:  # removed since it was listed
        return
    if entry.world != world.name:
        world.watchdog.say(
            f"adjointlab: note: a failure of {printable(entry.subject)} ({entry.check}) that was found under "
            f"{entry.world.ranks_run_under} was replayed and is not seen under {world.name.ranks_run_under}: replay "
            f"{printable(str(path))} there, or remove it once that passes\n"
        )


def say_not_replayed(world: World, folder: Path, subjects: Iterable[Subject]) -> None:
    """Print a warning for each stored failure that is not replayed with these subjects, so that it is not taken for one that passes."""
    if not world.is_leader:
        return
    warnings = [f"this failure is not replayed: {problem}" for problem in damaged(folder)]
    if os.path.isdir(folder) and not os.access(folder, os.R_OK | os.X_OK):
        warnings.insert(0, f"no stored failure is replayed: {folder} may not be read")
    warnings += [
        f"this failure is not replayed: {path}: it is of {entry.subject} at {entry.location}, {gone}; if it was renamed, "
        "name what it is now with --subject of adjointlab replay, or remove the file"
        for path, entry, gone in homeless(folder, subjects)
    ]
    for text in warnings:
        world.watchdog.say(printable(f"adjointlab: warning: {text}") + "\n")
