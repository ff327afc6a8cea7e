"""One check of one subject from beginning to end, as the front ends run it: draw or replay, judge, store."""

from __future__ import annotations

import os
import secrets
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from adjointlab.check_result import NO_COMMUNICATOR, NO_MEMORY, CheckResult, SearchInterrupted
from adjointlab.checks.check import check_named
from adjointlab.checks.memory_orders import unmixed
from adjointlab.checks.verdict import Status, Verdict, unjudged
from adjointlab.core.arrays import installed
from adjointlab.devices.memories import on
from adjointlab.engine.case import Case
from adjointlab.engine.case_body import body
from adjointlab.engine.confirming import explained
from adjointlab.engine.discovery import Found
from adjointlab.engine.drawing_errors import advice_on, formatted, refusal
from adjointlab.engine.failed_runs import MISDECLARED, NO_RETURN
from adjointlab.engine.folded_warnings import FoldedWarnings
from adjointlab.engine.hypothesis_searches import WHILE_A_CASE_RAN, ended_a_case
from adjointlab.engine.run_case import CaseRunner, Stage, run_case
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget, SearchResult
from adjointlab.engine.subject import Subject, SubjectError
from adjointlab.quantities import counted
from adjointlab.recording import at_work
from adjointlab.store.corpus import damaged, homeless, stored
from adjointlab.store.files import printable
from adjointlab.store.interrupted import note_seed
from adjointlab.store.job_log import Done, JobLog, check_id_of, supervised
from adjointlab.store.reproducer import BadReproducer, Written, read, write
from adjointlab.store.running_case import left_behind
from adjointlab.worlds.interrupts import signal_of, signals_held
from adjointlab.worlds.shared_functions import put_back
from adjointlab.worlds.watchdog import DRAWING, Overdue
from adjointlab.worlds.world import (
    Exhausted,
    Runner,
    World,
    in_brief,
    kind_and_message,
    message_of,
    with_kind,
)

__all__ = [
    "check_with_corpus",
    "kept",
    "lost",
    "replay",
    "replay_corpus",
    "run_check",
    "say_not_replayed",
    "unsupported",
]


PROCESS_ENDED = "process ended"
"""Kind of the verdict on a check whose process has died."""

_NOTHING_TO_SAY = "nothing to say"
"""Kind of the verdict on a case of which its check can tell nothing."""


def unsupported(world: World, subject: Subject, device: str | None = None) -> Verdict | None:
    """The verdict on a subject that cannot run in `world`, or not on `device`; None if it can."""
    if device is not None:
        try:
            subject.libraries(device)
        except SubjectError as problem:
            return unjudged(message_of(problem), kind=NO_MEMORY)
    if world.has_communicator or subject.process_group:
        return None
    return unjudged(
        "it takes a communicator, which ranks of torchrun do not have: check it under mpiexec, or on simulated ranks, without a "
        "launcher; torch.distributed code says process_group=True",
        kind=NO_COMMUNICATOR,
    )


def run_check(
    world: World,
    found: Found,
    check: str,
    budget: Budget,
    folder: Path,
    tick: Callable[[int], None] = lambda tried: None,
) -> CheckResult:
    """Collective: search for a failure, and store it in `folder` if there is one. The same on every rank.

    A supervised job that is started again learns from its log what ended those before it.

    Raises :class:`~adjointlab.worlds.world.Exhausted` where the job has to be started again.
    """
    job_log, check_id = supervised(), check_id_of(found.subject.location, check)
    seed = budget.seed
    if (verdict := unsupported(world, found.subject, budget.device)) is not None:
        return CheckResult(found, _without_case(world, found.subject, check, seed or 0, verdict))
    if seed is None:
        seed = world.share(secrets.randbits(32) if job_log is None else job_log.seed_of(check_id))
    budget = replace(budget, seed=seed, cases=check_named(check).cases_of(budget.cases, found.subject))
    if job_log is not None:
        if (logged := _logged(job_log, world, found, check, seed)) is not None:
            return logged
        budget = replace(budget, shrinking=job_log.shrinking(check_id))
    result = _searched(world, found, check, budget, folder, tick)
    put_back()  # what a strategy may have replaced since the last run
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
    """Collective: the result of a check in an earlier job of a supervised one; None if it has none yet."""
    check_id = check_id_of(found.subject.location, check)
    # The leader alone reads: it writes this file, so what other ranks see of it may be older.
    done: Done | None = world.share(job_log.outcome(check_id) if world.is_leader else None)
    if done is not None:
        return CheckResult(found, done.result, done.written, done.unwritten)
    if (death := job_log.death_without_case(check_id)) is not None:
        return CheckResult(found, _without_case(world, found.subject, check, seed, death.verdict()))
    return None


def _searched(
    world: World, found: Found, check: str, budget: Budget, folder: Path, tick: Callable[[int], None]
) -> SearchResult:
    """Collective: the result of a search, also where user code ends it; an interrupt keeps the smallest failure so far.

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
        # A SubjectError, SystemExit and pytest's `skip` among them: the next check has its turn. On all ranks alike, for `lead` raises
        # the leader's exception everywhere.
        return _without_case(world, found.subject, check, seed, _verdict_on(error, found.subject))


def check_with_corpus(
    world: World,
    found: Found,
    check: str,
    budget: Budget,
    folder: Path,
    tick: Callable[[int], None] = lambda tried: None,
) -> CheckResult:
    """Collective: replay the failures of the subject and check that `folder` holds; if none fails still, :func:`run_check`."""
    failing = replay_corpus(world, found, check, folder, budget.device)
    if failing is not None:
        return failing
    result = run_check(world, found, check, budget, folder, tick)
    unseen = world.share(_unseen_failures(world, found, check, budget, folder) if world.is_leader else None)
    if not unseen:
        return result
    if world.is_leader:
        _note_of_unseen_failures(world, found, check, unseen)
    return replace(result, has_unseen_failures=True)


def _unseen_failures(world: World, found: Found, check: str, budget: Budget, folder: Path) -> dict[Path, str]:
    """The stored failures that cannot be replayed in this run, those on the fewest ranks first, and why."""
    by_ranks = sorted(stored(folder, found.subject, check), key=lambda entry: entry[1].ranks)
    return {path: why for path, case in by_ranks if (why := _obstacle(world, case, budget.device))}


def replay(world: World, subject: Subject, case: Case) -> SearchResult:
    """Collective: run one case again and judge it."""
    if (verdict := unsupported(world, subject)) is not None:
        return _without_case(world, subject, case.check, case.setting.seed, verdict)

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
        verdict = _verdict_on(error, found.subject, f"while {last} was replayed")
        return CheckResult(found, _without_case(world, found.subject, check, 0, verdict))
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


def _note_of_unseen_failures(world: World, found: Found, check: str, unseen: Mapping[Path, str]) -> None:
    """Say that stored failures are not replayed, and why the first of them is not."""
    path, why = next(iter(unseen.items()))
    more = f" (and {len(unseen) - 1} more)" if len(unseen) > 1 else ""
    world.watchdog.say(
        f"adjointlab: note: a failure of {printable(found.subject.label)} ({check}) is not replayed: {why}: {printable(str(path))}{more}\n"
    )


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


def kept(found: Found, result: SearchResult, folder: Path) -> CheckResult:
    """The result of a run on this process alone, its failure stored in `folder`."""
    written, problem = None, ""
    # A wrong declaration is corrected where it stands: there is nothing to replay.
    if result.case is not None and not CheckResult(found, result).is_misdeclared:
        try:
            written = write(result, found.subject, folder)
        except Exception as error:  # the verdict stands without its file
            problem = kind_and_message(error)
    return CheckResult(found, result, written, problem)


def lost(world: World, found: Found, check: str, budget: Budget, folder: Path, ending: str) -> CheckResult:
    """The result of a check whose process has died, in the way that `ending` describes; the case that ran then is stored."""
    running = left_behind(folder, found.subject.location, check)
    case = None if running is None else running.case
    # The watchdog has said why it ended the process.
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
    is_replay = running is not None and running.stage is Stage.REPLAYING and own.written is not None
    return replace(own, replayed=own.written.json) if is_replay and own.written else own


def _without_case(world: World, subject: Subject, check: str, seed: int, verdict: Verdict) -> SearchResult:
    """The result of a check that no case was judged in."""
    return SearchResult(subject.name, check, world.name, verdict, seed=seed)


def _store(world: World, result: SearchResult, found: Found, folder: Path) -> tuple[Written | None, str]:
    entry: tuple[Written | None, str] = None, ""
    if world.is_leader:
        own = kept(found, result, folder)
        entry = own.written, own.unwritten
    # Shared, so that the ranks do not differ in whether there is a file.
    return world.share(entry)


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


def _verdict_on(error: BaseException, subject: Subject, when: str = "") -> Verdict:
    """The verdict on a search that an error of the subject's code has ended, `when` it did something else than draw cases."""
    if isinstance(error, Overdue):
        text = "".join(traceback.format_exception(error)).rstrip()
        # No case is drawn in a replay: what is left is the code that the judge calls, such as a sequential module.
        who = "the code under test" if when else DRAWING
        headline = f"{who} {message_of(error)}" + (f", {when}" if when else "")
        return unjudged(headline, ("traceback", text), kind=NO_RETURN)
    # Its message says it all; whoever prints it names the subject.
    if (told := message_of(error) if isinstance(error, SubjectError) else refusal(error)) is not None:
        return unjudged(told.removeprefix(f"{subject.name}: "), kind=MISDECLARED)
    kind = f"raised {type(error).__name__}"
    when = when or (WHILE_A_CASE_RAN if ended_a_case(error) else "")
    sentence = with_kind(kind, in_brief(message_of(error)))
    headline = f"{sentence}, {when}" if when else f"drawing its cases {sentence}"
    advice = advice_on(error)
    perhaps = [("perhaps", advice)] if advice else []
    return unjudged(headline, ("traceback", formatted(error)), *perhaps, kind=kind)
