"""Recording the running case of a check, and storing it if a signal, the watchdog or MPI ends the check."""

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
    """Context in which a check of a subject runs. Yields a function that records each case (on the leader), and the cases not to run again.

    Collective. Raises :class:`~adjointlab.worlds.world.Exhausted` on all ranks if the job has to be restarted.
    """
    job_log, check_id = supervised(), check_id_of(found.subject.location, check)
    progress = Progress(found.reference, found.subject.location, check, world.name, world.ranks, seed)
    # A case that ends a supervised job is shrunk first; the supervisor then moves it to the folder of failures.
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
    """Context that records for the next job, or the supervisor, that the world can run no more cases."""
    try:
        yield
    except Exhausted:
        # Raised on all ranks alike. The record of the running case has been removed by now.
        if world.is_leader:
            write_end(record, Running.of(progress, None, ended=EndedBy.EXHAUSTION))
        raise


@contextmanager
def _terminated_case_kept(
    world: World, progress: Progress, file: RunningCaseFile, folder: Path
) -> Iterator[None]:
    """Context that stores the running case if SIGTERM or SIGHUP ends the check, and prints the command that replays it.

    After Ctrl-C nothing is stored: the user wants nothing more. But a batch system sends SIGTERM to a job that takes too long.
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
    """Store the case during which an earlier job died, before its record is overwritten."""
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
    """Context in which the watchdog stores the running case before it ends the job."""
    world.watchdog.overdue_report = _overdue_report(found, progress, folder, record)
    world.watchdog.has_fired = False
    try:
        yield
    finally:
        world.watchdog.overdue_report = None


_ENDS_HERE = f"the job ends here, with exit code {ExitCode.UNJUDGED}"


def _overdue_report(found: Found, progress: Progress, folder: Path, record: Path) -> OverdueReport:
    """Return a function that stores the case in `folder`, and writes into the `record` of the running case why the job ends.

    Every rank needs one, because the leader may be the rank that hangs. Only the leader keeps a record while cases run.
    """

    def store(payload: object, late: str, stack: str) -> str:
        if not isinstance(payload, Case):
            # No case is running: the recorded one has been judged.
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
