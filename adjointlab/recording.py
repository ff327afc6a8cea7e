"""Recording a subject at work, and storing its case where a signal, the watchdog or MPI ends the work."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from adjointlab.checks.verdict import unjudged
from adjointlab.engine.case import Case
from adjointlab.engine.discovery import Found
from adjointlab.engine.failed_runs import LIMIT, NO_RETURN
from adjointlab.engine.run_case import KnownRuns, RecordCase, Stage, nothing_known
from adjointlab.engine.search_result import SearchResult
from adjointlab.exit_codes import ExitCode
from adjointlab.store.files import printable
from adjointlab.store.interrupted import keep_running, note_replay
from adjointlab.store.job_log import check_id_of, supervised
from adjointlab.store.reproducer import keep_interrupted, write
from adjointlab.store.running_case import (
    NAME,
    EndedBy,
    Progress,
    Running,
    RunningCaseFile,
    read_file,
    recording,
    write_end,
)
from adjointlab.worlds.interrupts import Terminated, signal_of
from adjointlab.worlds.watchdog import OverdueReport
from adjointlab.worlds.world import Exhausted, World

__all__ = ["at_work"]


@contextmanager
def at_work(
    world: World, found: Found, check: str, seed: int, folder: Path
) -> Iterator[tuple[RecordCase | None, KnownRuns]]:
    """Context in which a subject is at work. Yields what records each case, on the leader, and the cases that must not be run again.

    Collective. Raises :class:`~adjointlab.worlds.world.Exhausted` on all ranks where the job has to be started again.
    """
    job_log, check_id = supervised(), check_id_of(found.subject.location, check)
    progress = Progress(found.reference, found.subject.location, check, world.name, world.ranks, seed)
    # The supervisor has a case that ended its job made smaller first, and then puts it where it belongs.
    record_folder, late_folder = (
        (folder, folder) if job_log is None else (job_log.folder, job_log.folder / "late")
    )
    with _exhaustion_recorded(world, progress, record_folder / NAME), ExitStack() as stack:
        if world.share(world.is_exhausted):
            raise Exhausted("failed cases have leaked too many communicators: restart the job")
        if job_log is not None:
            stack.enter_context(job_log.at(check_id, folder, is_leader=world.is_leader))
        file = stack.enter_context(recording(record_folder, progress, is_leader=world.is_leader))
        path = record_folder / NAME if file is None or job_log is not None else file.path
        stack.enter_context(_overdue_reported(world, found, progress, late_folder, path))
        if file is not None and job_log is None:
            for previous in file.previous:
                _keep_previous(previous, folder, world)
            stack.enter_context(_terminated_case_kept(world, progress, file, folder))
        known = nothing_known if job_log is None else job_log.deadly_cases(check_id)
        yield None if file is None else file.record, known


@contextmanager
def _exhaustion_recorded(world: World, progress: Progress, record: Path) -> Iterator[None]:
    """Context that leaves word for the next job, or its supervisor, where a world can run no more cases."""
    try:
        yield
    except Exhausted:
        # On all ranks alike; the record of the running case is removed by now.
        if world.is_leader:
            write_end(record, Running.of(progress, None, ended=EndedBy.EXHAUSTION))
        raise


@contextmanager
def _terminated_case_kept(
    world: World, progress: Progress, file: RunningCaseFile, folder: Path
) -> Iterator[None]:
    """Context that stores the case that runs when a signal ends the work, and says how to run it again.

    Not upon Ctrl-C, by which somebody says that nothing more is wanted; but a batch system ends what runs too long.
    """
    try:
        yield
    except Terminated as interrupt:
        if file.last is not None:
            name = signal.Signals(signal_of(interrupt)).name
            if command := keep_running(Running.of(progress, file.last), folder, name):
                note_replay(interrupt, command)
                world.watchdog.say(f"adjointlab: {name}: the case that was running is kept; {command}\n")
        raise


def _keep_previous(previous: Running, folder: Path, world: World) -> None:
    """Store the case at which an earlier job died, before its record is written over."""
    if previous.case is None or previous.ended is not EndedBy.NOTHING:
        return
    try:
        path = keep_interrupted(previous.case, previous.location, previous.world, "something", folder)
    except (OSError, TypeError):
        return
    world.watchdog.say(
        f"adjointlab: note: an earlier job was ended while it ran a case of {printable(previous.case.subject)}; if it was "
        f"not you who ended it, {previous.replay_command(path)}\n"
    )


@contextmanager
def _overdue_reported(
    world: World, found: Found, progress: Progress, folder: Path, record: Path
) -> Iterator[None]:
    """Tell the watchdog what to do before it ends the job."""
    world.watchdog.overdue_report = _overdue_report(found, progress, folder, record)
    world.watchdog.has_fired = False
    try:
        yield
    finally:
        world.watchdog.overdue_report = None


_ENDS_HERE = f"the job ends here, with exit code {ExitCode.UNJUDGED}"


def _overdue_report(found: Found, progress: Progress, folder: Path, record: Path) -> OverdueReport:
    """Store the case in `folder`, and put into the `record` of the running case why the job ends.

    Every rank can do so, since the leader may be the one that hangs; a rank other than the leader keeps no record itself.
    """

    def store(payload: object, late: str, stack: str) -> str:
        if not isinstance(payload, Case):
            # Not in a case: the one on record has been judged.
            end = Running.of(progress, None, ended=EndedBy.WATCHDOG, kind=NO_RETURN, because=late)
            write_end(record, end)
            return f"adjointlab: {found.subject.label} could not be judged: {late}\n  {_ENDS_HERE}"
        verdict = unjudged(
            late, ("because", late), *([("stack", stack)] if stack else ()), LIMIT, kind=NO_RETURN
        )
        before = read_file(record)
        done, stage = (0, Stage.DRAWING) if before is None else (before.done, before.stage)
        result = SearchResult(
            found.subject.name,
            payload.check,
            progress.world,
            verdict,
            done,
            progress.seed,
            case=payload,
            drawn_ranks=payload.ranks,
        )
        path = str(write(result, found.subject, folder).json)
        write_end(record, Running.of(progress, payload, done, stage, EndedBy.WATCHDOG, NO_RETURN, path))
        return printable(
            f"adjointlab: {found.subject.label} could not be judged: {late}\n  limit    {LIMIT[1]}\n  stored   {path}\n  {_ENDS_HERE}",
            keep="\n",
        )

    return store
