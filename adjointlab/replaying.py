"""The replay of stored failures: of one, of those of a check before fresh cases are drawn, and what is said of those left out."""

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
"""Kind of the verdict on a case of which its check can tell nothing."""


def replay(world: World, subject: Subject, case: Case) -> SearchResult:
    """Collective: run one case again and judge it."""
    if (verdict := unsupported(world, subject)) is not None:
        return without_case(world, subject, case.check, case.setting.seed, verdict)

    def conduct(run: Runner) -> SearchResult:
        return _replayed(world, CaseRunner(run), subject, case)

    with check_named(case.check).surroundings():
        return world.lead(body(subject), conduct, subject.location)


def replay_corpus(
    world: World, found: Found, check: str, folder: Path, device: str | None = None
) -> CheckResult | None:
    """Collective: replay the cases that `folder` holds of the subject and check; the first that still fails.

    Cases on more ranks than the world has, or in memory that there is not, are passed over, those in other memory than that of
    `device`, if it is given, and those that were stored under this very supervision: they are still being shrunk.
    """
    job_log = supervised()
    if unsupported(world, found.subject) is not None or (
        job_log is not None
        and job_log.death_without_case(check_id_of(found.subject.location, check)) is not None
    ):
        return None

    replayed: list[Path] = []  # the last one may not have come to its end

    def conduct(run: Runner) -> tuple[Path, SearchResult] | None:
        for path, case in _replayable(world, found.subject, check, folder, device):
            replayed.append(path)
            result = _replayed(world, CaseRunner(run, record, known), found.subject, case)
            if result.verdict.kind == MISDECLARED:  # a case of such a verdict is not stored
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
        # As of a search: the next check has its turn, with a stored case that cannot be judged too.
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
    """The stored cases that can be replayed in this run, and which its subject still draws: of others it is said."""
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
    """Why a stored case cannot be replayed in this run; empty where it can."""
    memory = case.setting.library
    if case.ranks > world.ranks:
        return f"it needs {case.ranks} ranks, and this run has {world.ranks}"
    if not on(device, [memory]):
        return f"it is in the memory {memory}, and this run is on --device {device}"
    if not installed(memory):
        return f"it is in the memory {memory}, which cannot be used here"
    return ""


def _undeclared(subject: Subject, case: Case) -> str:
    """The ranks or the memory of a stored case that the subject, as it is declared now, has no more; empty where it has both."""
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
    """Collective: return True if stored failures cannot be replayed in this run, and say why that on the fewest ranks cannot."""
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
    """Say that the failure stored at `path` is of a case that the subject's declaration does not fit any more."""
    world.watchdog.say(
        f"adjointlab: note: the failure stored in {printable(str(path))} is not replayed: remove it, because its subject is now "
        f"declared differently, {printable(why)}\n"
    )


def _note_of_other_world(world: World, path: Path) -> None:
    """Say that the failure stored at `path`, which is not seen in `world`, was found in another one, where that is so."""
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
    """Say which files of failures are not replayed with these subjects: passed over in silence, they would look like ones that pass."""
    if not world.is_leader:
        return
    told = [f"this failure is not replayed: {problem}" for problem in damaged(folder)]
    if os.path.isdir(folder) and not os.access(folder, os.R_OK | os.X_OK):
        told.insert(0, f"no stored failure is replayed: {folder} may not be read")
    told += [
        f"this failure is not replayed: {path}: it is of {entry.subject} at {entry.location}, {gone}; if it was renamed, "
        "name what it is now with --subject of adjointlab replay, or remove the file"
        for path, entry, gone in homeless(folder, subjects)
    ]
    for text in told:
        world.watchdog.say(printable(f"adjointlab: warning: {text}") + "\n")
