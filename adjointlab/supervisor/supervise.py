"""Runs a job to completion, restarting it after each crash with the crashing case excluded.

A job is a command on one or more ranks (:mod:`adjointlab.supervisor.job`). When it crashes or gets stuck, the supervisor

1. ends what is left of its processes,
2. reads which work was interrupted: the case (``running.json``), else the check of a subject, else the pytest test,
3. records the crash in the job log, as a :class:`~adjointlab.store.job_log.Death`, and
4. starts the job again. It draws the same cases, treats the logged ones as failures without running them, and so shrinks
   the crashing case; then it continues with the remaining work. Finished work is not repeated.

This terminates. A check or a test is excluded after its first crash, a case after its second, which confirms the smallest
one. Shrinking has a time limit, and a job that repeatedly asks for a restart without progress is abandoned.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from adjointlab.checks.verdict import Status
from adjointlab.exit_codes import ExitCode
from adjointlab.quantities import counted
from adjointlab.store import running_case
from adjointlab.store.files import in_folder, read_file, write_atomically
from adjointlab.store.job_log import Death, JobLog, check_id_of
from adjointlab.store.reproducer import BadReproducer, keep_interrupted, read, write_case
from adjointlab.supervisor.exit_report import ExitReport, exit_report
from adjointlab.supervisor.job import Job, JobEnd
from adjointlab.supervisor.job_output import Output
from adjointlab.supervisor.launcher import Launcher
from adjointlab.supervisor.processes import adopt_orphans
from adjointlab.supervisor.pytest_results import SessionResults
from adjointlab.supervisor.stop_signals import StopSignals

__all__ = ["SupervisedCommand", "supervise"]

_MOST_CRASHES: Final = 2
"""Crashes that one case may cause: one, and one more to confirm it."""
_MOST_STALLS: Final = 3
"""Number of consecutive jobs that may ask for a restart without progress."""

Log = Callable[[str], None]


@dataclass(frozen=True)
class SupervisedCommand:
    """A command to supervise, on `ranks` ranks of a launcher, or in one process without one; and its limits."""

    command: tuple[str, ...]
    ranks: int
    launcher: Launcher | None
    patience: float  # seconds without progress after which a case counts as stuck
    shrinking: float  # seconds for shrinking a crashing case
    seed: int
    folder: Path


def supervise(command: SupervisedCommand, log: Log) -> int:
    """Run `command` to completion; return the exit code. The supervisor's own messages go to `log`."""
    adopt_orphans()
    # A folder for each supervision: several may run in one working directory at the same time.
    folder = in_folder(
        command.folder / "run-", lambda: Path(tempfile.mkdtemp(prefix="run-", dir=command.folder)).absolute()
    )
    supervisor = _Supervisor(command, JobLog(folder), log)
    try:
        with StopSignals() as signals:
            return supervisor.run(signals)
    finally:
        if supervisor.store_unshrunk_cases():
            _remove(folder)


class _Supervisor:
    """Starts the jobs of one command one after the other, and logs their crashes."""

    def __init__(self, command: SupervisedCommand, job_log: JobLog, log: Log) -> None:
        self._command, self._job_log, self._log = command, job_log, log
        self._results = SessionResults(job_log.folder, command.ranks)
        self._jobs = 0
        self._stalls = 0
        self._progress: object = None  # progress at the last request for a restart
        job_log.begin(command.seed, command.shrinking)

    def run(self, signals: StopSignals) -> int:
        """Start jobs until one of them determines the exit code."""
        code, lost = None, ""
        while code is None:
            output = Output(self._held_until())
            code = self._code_of_job(output, signals)
            lost = lost or output.lost
        if lost:
            self._log(f"standard output: {lost}")
        return code or (ExitCode.UNJUDGED if lost else ExitCode.COHERENT)

    def _code_of_job(self, output: Output, signals: StopSignals) -> int | None:
        """Run a job to its end; return the exit code if that determines it, else None."""
        self._jobs += 1
        self._results.record_finished()
        command = self._command
        job = Job(
            command.command, command.ranks, command.launcher, self._job_log.folder, output, self._before_stop
        )
        end = job.run(command.patience, signals)
        if end.unkillable:
            self._log(f"{counted(end.unkillable, 'process', 'processes')} of the job could not be ended")
        if not signals.count:
            return self._code_after(end, output)
        output.release()
        if signals.first != signal.SIGINT:  # which the command line reports itself
            self._log(f"ended by {signal.Signals(signals.first).name}")
        if not end.in_order:
            self._log_results()
        return signals.exit_code

    def _before_stop(self, number: int) -> None:
        """Record for the job which signal ends it, and store the running case."""
        self._job_log.record_stop(number)
        record, folder = running_case.read(self._job_log.folder), self._job_log.current.folder
        # Not after Ctrl-C: the user does not want the results.
        if record is None or record.case is None or folder is None or number == signal.SIGINT:
            return
        name = signal.Signals(number).name
        with suppress(OSError):
            path = keep_interrupted(record.case, record.location, record.world, name, folder)
            self._log(f"{name}: the case that was running is kept; {record.replay_command(path)}")

    def _log_results(self) -> None:
        """Log the results of earlier jobs and of this one, which has not printed them."""
        for done in self._job_log.done:
            if done.result.status is not Status.COHERENT:
                where = f"; replay {done.written.json}" if done.written else ""
                self._log(f"{done.check_id}: {done.result.verdict.headline}{where}")
        for death in self._job_log.deaths:
            if self._job_log.outcome(death.check_id) is None:
                self._log(f"{_name(death)}: {death.kind}")

    def _code_after(self, end: JobEnd, output: Output) -> int | None:
        """Return the exit code if `end` determines it; `None` if the job is to be restarted."""
        if end.in_order and end.exit_code != ExitCode.RESTART:
            return self._final_code(end)
        # If the job crashed or was killed while exiting, the request for a restart is in the record.
        record = running_case.read(self._job_log.folder)
        if end.in_order or (record is not None and record.ended is running_case.EndedBy.EXHAUSTION):
            return self._code_after_request()
        ranks, simulated = self._command.ranks, self._command.launcher is None
        report = exit_report(self._job_log.folder, ranks, end, simulated=simulated)
        if report.signal:
            output.release()
            self._before_stop(report.signal)
            self._log_results()
            self._log(f"{report.kind} ({signal.Signals(report.signal).name})")
            return 128 + report.signal
        return self._code_after_crash(self._death(report, is_stuck=bool(end.stuck_reason)), output)

    def _code_after_request(self) -> int | None:
        """Allow the restart that the job asks for, as long as jobs make progress."""
        record = running_case.read(self._job_log.folder)
        progress = (
            len(self._job_log.done),
            len(self._job_log.deaths),
            self._results.finished_count,
            0 if record is None else record.done,
        )
        self._stalls = self._stalls + 1 if progress == self._progress else 0
        self._progress = progress
        if self._stalls >= _MOST_STALLS:
            self._log("the job asks for restarts without making progress: giving up")
            return self._summarise(ExitCode.UNJUDGED)
        self._job_log.clear()
        self._log("the job has used up MPI's communicators; it is restarted, to go on where it was")
        return None

    def _code_after_crash(self, death: Death, output: Output) -> int | None:
        """Log a crash; give up if nothing can be excluded from the next job, or if the crashing work had been excluded already."""
        name = _name(death)
        if not name:
            output.release()
            self._log_crash(death)
            self._log(
                "no case or test was running, so the next job cannot skip the cause of the crash: giving up"
            )
            return self._summarise(ExitCode.UNJUDGED)
        deaths = self._job_log.deaths
        culprit = (death.case, death.check_id, death.test)
        crashes = sum((known.case, known.check_id, known.test) == culprit for known in deaths)
        # The next job does not run a test or a check that has crashed one, nor a case that has crashed two. If one of
        # them still crashes it, the cause is outside the lab's control (an import, a fixture), and it always will.
        if crashes >= (_MOST_CRASHES if death.case else 1):
            output.release()
            self._log(f"{name}: it ends the job again, although it should not have been run: giving up")
            return self._summarise(ExitCode.UNJUDGED)
        try:
            self._job_log.record_death(death)
        except OSError as error:
            output.release()
            self._log_crash(death)
            problem = f"{self._job_log.folder} cannot be written to: {error.strerror or error}"
            self._log(f"{problem}; so the next job could not skip the cause of the crash: giving up")
            return self._summarise(ExitCode.UNJUDGED)
        # Remove the record of the running case, or else a crash of the next job before its first case would be attributed
        # to that case.
        self._job_log.clear()
        # Further crashes while the same failure is shrunk are not logged.
        if name not in map(_name, deaths):
            output.release()
            self._log_crash(death)
            purpose = "to shrink the case and then go on" if death.case else "to go on after it"
            self._log(f"  all its processes are ended; the job is restarted, {purpose}")
        return None

    def _death(self, report: ExitReport, *, is_stuck: bool) -> Death:
        """Combine the report of a crash with the work that the job was doing."""
        death = Death(report.kind, report.lines, report.ranks, at=time.time(), certain=is_stuck)
        record = running_case.read(self._job_log.folder)
        if record is None or record.case is None:
            if record is not None and record.ended is running_case.EndedBy.WATCHDOG:
                # The job's own watchdog ended it, so the exit report is irrelevant.
                because = (("because", record.because),) if record.because else ()
                death = replace(death, kind=record.kind or death.kind, lines=because, ranks={}, certain=True)
            # Between two cases of a check, for example while drawing; or in a test that is not a coherence test.
            if check_id := self._job_log.current.check_id:
                return replace(death, check_id=check_id)
            return replace(death, test=self._results.interrupted(report.ranks))
        death = replace(death, case=record.case.digest, check_id=check_id_of(record.location, record.check))
        if record.ended is running_case.EndedBy.WATCHDOG:
            # The job's own watchdog ended it, and its reproducer has the stack of the overdue rank.
            with suppress(BadReproducer):
                death = replace(death, lines=read(Path(record.reproducer)).lines or death.lines)
            death = replace(death, kind=record.kind or death.kind, ranks={}, certain=True)
        if not self._job_log.is_known(death):
            with suppress(OSError):  # such as a full disk, on which the death cannot be recorded either
                path = write_case(
                    record.case,
                    record.location,
                    record.world,
                    death.verdict(),
                    self._job_log.folder / f"death-{len(self._job_log.deaths)}",
                )
                death = replace(death, reproducer=str(path), folder=str(self._job_log.current.folder or ""))
        return death

    def _final_code(self, end: JobEnd) -> int:
        """The exit code of a job that ended in order, but UNJUDGED if crashes are the only failures.

        pytest reports crashes as failed tests and returns 1, which would mean that something is incoherent.
        """
        code = ExitCode.UNJUDGED if end.exit_code is None else end.exit_code
        deaths = self._job_log.deaths
        if not deaths:
            return code
        if code == ExitCode.INCOHERENT and not self._results.is_empty:
            crashed = {death.check_id for death in deaths if self._is_unjudged(death.check_id)}
            excused = self._results.of_checks(crashed) | {death.test for death in deaths}
            code = ExitCode.UNJUDGED if self._results.failed <= excused else ExitCode.INCOHERENT
        return self._summarise(code)

    def _is_unjudged(self, check_id: str) -> bool:
        """Return False if a wrong result has been found for a check in addition to its crash."""
        done = self._job_log.outcome(check_id)
        return done is None or done.result.status is Status.UNJUDGED

    def _summarise(self, code: int) -> int:
        """Log the crashes and their shrunk cases; return `code`."""
        deaths = self._job_log.deaths
        early = f", {len(deaths)} of which ended before {'its' if len(deaths) == 1 else 'their'} time"
        self._log(f"{counted(self._jobs, 'job')}{early if deaths else ''}; exit code {int(code)}")
        for name in dict.fromkeys(map(_name, deaths)):
            crashes = [death for death in deaths if _name(death) == name]
            self._log(f"  {name}: {crashes[-1].kind}")
            done = self._job_log.outcome(name)
            if done is not None and done.result.case is not None:
                smallest = counted(done.result.case.ranks, "rank")
                where = f", {done.written.json}" if done.written else ""
                self._log(f"    shrunk to {smallest} by {counted(len(crashes), 'crash', 'crashes')}{where}")
        return code

    def _log_crash(self, death: Death) -> None:
        self._log(f"{_name(death) or 'the job'}: {death.kind}")
        for rank, reason in sorted(death.ranks.items()):
            self._log(f"  rank {rank}: {reason}")
        for label, text in death.lines:
            margin = "\n" + " " * (len(label) + 4)
            self._log(f"  {label}  {text.replace(chr(10), margin)}")

    def _held_until(self) -> Callable[[], bool] | None:
        """Condition for releasing a restarted job's output: it has finished the check that crashed the last job. None for no hold."""
        deaths, job_log = self._job_log.deaths, self._job_log
        if not deaths or not (check_id := deaths[-1].check_id):
            return None
        return lambda: job_log.outcome(check_id) is not None

    def store_unshrunk_cases(self) -> bool:
        """Copy the cases of crashes that no later job has shrunk and stored to the folder of failures; return True on success.

        The case of a replayed check is there already. Further crashes of such a check are from replaying that case in other memories and
        under other schedules, to find which of these it needs: they are not separate failures.
        """
        cases = [
            death
            for death in self._job_log.deaths
            if death.reproducer and death.folder and self._job_log.outcome(death.check_id) is None
        ]
        replayed = {death.check_id for death in cases if os.path.exists(_target(death))}
        stored = [self._store_case(death) for death in cases if death.check_id not in replayed]
        return all(stored)

    def _store_case(self, death: Death) -> bool:
        """Copy the case of a crash to the folder of failures, if it is not there yet; return False if it cannot be copied."""
        source, target = Path(death.reproducer), _target(death)
        try:
            if not target.exists():
                # Not renamed: the folders may lie in different file systems.
                in_folder(target, partial(write_atomically, target, read_file(source)))
                self._log(f"  {death.check_id}: not shrunk; {target}")
        except OSError as error:
            problem = f"{source} cannot be copied to {target}: {error.strerror or error}"
            self._log(f"  {death.check_id}: not shrunk; {problem}")
            return False
        return True


def _name(death: Death) -> str:
    """Return the name under which a crash is reported: the check of a subject, or a test; empty if neither is known."""
    return death.check_id or death.test


def _target(death: Death) -> Path:
    """Return the path for the case of a crash in the folder of failures."""
    return Path(death.folder) / Path(death.reproducer).name


def _remove(folder: Path) -> None:
    """Remove the supervision's own folder, and the folder of failures if it holds none."""
    for path in sorted(folder.rglob("*"), reverse=True):  # the contents of a folder come before the folder
        with suppress(OSError):
            path.rmdir() if path.is_dir() else path.unlink()
    for path in (folder, folder.parent):
        with suppress(OSError):  # not empty
            path.rmdir()
