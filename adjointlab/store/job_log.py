"""The log of a supervised job, from which a restarted job reads what earlier jobs have found out.

The log of a supervised job (``adjointlab run``) is a folder, named by the variable ``ADJOINTLAB_SUPERVISED``, of JSON files:

- ``settings.json``: the seed of all draws, and the seconds for making a failure smaller;
- ``deaths.jsonl``: a line for each death of the job, written by the supervisor;
- ``done.jsonl``: a line for each finished check of a subject, written by the leader;
- ``stop.json``: the signal because of which the supervisor is about to end the job;
- ``check.json``: the check that the leader is running; ``running.json``: its case (:mod:`adjointlab.store.running_case`).

A restarted job skips the checks that are done. It draws the same cases again, and counts those that have killed a job as failures
without running them, so that Hypothesis goes on shrinking where it stopped.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from adjointlab.checks.check import Spaces
from adjointlab.checks.verdict import Verdict, unjudged
from adjointlab.engine.case import Case
from adjointlab.engine.case_data import from_data, to_data
from adjointlab.engine.search_result import SearchResult
from adjointlab.store import json_lines
from adjointlab.store.files import open_file
from adjointlab.store.json_lines import json_figures
from adjointlab.store.reproducer import Written
from adjointlab.variables import HOOKED, SUPERVISED
from adjointlab.worlds.run import Dead, Finding, Run

__all__ = ["DeadlyCases", "Death", "Done", "JobLog", "check_id_of", "claimed", "stopped_by", "supervised"]


@dataclass(frozen=True)
class Death:
    """The death of a job, and the case, check or test that it was running; a line of the file."""

    kind: str  # e.g. "a rank died of a segmentation fault"
    lines: tuple[tuple[str, str], ...] = ()
    ranks: Mapping[int, str] = field(default_factory=dict)  # the ranks known to have died, with the reasons
    case: str = ""  # its digest
    check_id: str = ""
    test: str = ""  # its node id
    at: float = 0.0  # seconds since the epoch
    # True if no second death is needed to confirm it: the job hung, and would take as long to hang again.
    certain: bool = False
    reproducer: str = ""  # the supervisor's file of the case, and the folder of failures to which it belongs
    folder: str = ""

    def run(self, ranks: int) -> Run:
        """Return the run that stands for running the case again."""
        outcomes = tuple(Dead(self.ranks.get(rank, "ended with the job")) for rank in range(ranks))
        return Run(outcomes, (Finding(self.kind, ""), *(Finding(*line) for line in self.lines)))

    def verdict(self) -> Verdict:
        """Return the verdict of the check, if the job died outside its cases."""
        ranks = tuple((f"rank {rank}", reason) for rank, reason in sorted(self.ranks.items()))
        return unjudged(self.kind, *ranks, *self.lines)


@dataclass(frozen=True)
class Done:
    """A check of a subject that an earlier job has finished."""

    check_id: str
    result: SearchResult
    written: Written | None
    unwritten: str  # why a failure could not be stored


class _DoneLine(msgspec.Struct, frozen=True):
    """:class:`Done` as a line of its file. `case` and `spaces` are taken out of `result`, because msgspec alone could not restore them."""

    check_id: str
    result: SearchResult
    case: Case | None
    spaces: (
        tuple[Any, Any] | None
    )  # as to_data returns them; msgspec 0.22 does not support recursive type aliases
    written: tuple[str, str | None] | None
    unwritten: str
    process: str  # the process that has finished the check
    command: int  # number of the command, if the job is a script that runs several
    deaths: int  # number of jobs that had died in this check by then

    @staticmethod
    def of(done: Done, command: int, deaths: int) -> _DoneLine:
        result, spaces, written = done.result, done.result.spaces, done.written
        # Without the matrix entry, which only the script needs, and that has been written: JSON has no complex numbers.
        verdict = replace(result.verdict, entry=None, figures=json_figures(result.verdict.figures))
        return _DoneLine(
            done.check_id,
            replace(result, verdict=verdict, figures=json_figures(result.figures), case=None, spaces=None),
            result.case and result.case.plain(),
            (to_data(spaces.domain), to_data(spaces.codomain)) if spaces else None,
            (str(written.json), None if written.script is None else str(written.script)) if written else None,
            done.unwritten,
            _own_pid(),
            command,
            deaths,
        )

    def done(self) -> Done:
        result = replace(
            self.result,
            case=self.case and self.case.restored(),
            spaces=self.spaces and Spaces(*map(from_data, self.spaces)),
        )
        written = None
        if self.written is not None:
            json, script = self.written
            written = Written(Path(json), None if script is None else Path(script))
        return Done(self.check_id, result, written, self.unwritten)


class CurrentCheck(NamedTuple):
    """A check of a subject (:func:`check_id_of`), and the folder of its failures."""

    check_id: str
    folder: Path | None


class _Settings(msgspec.Struct, frozen=True):
    seed: int
    shrinking: float


class _Current(msgspec.Struct, frozen=True):
    check_id: str
    folder: str


@dataclass(frozen=True)
class JobLog:
    """The folder of a supervised job. The supervisor and the job's leader write different files there."""

    folder: Path

    # Read by both

    @property
    def deaths(self) -> list[Death]:
        """The deaths so far, in order."""
        return json_lines.lines(self.folder / "deaths.jsonl", Death)

    @property
    def current(self) -> CurrentCheck:
        """The check that the leader is running; empty between two checks."""
        lines = json_lines.lines(self._current_file, _Current)
        return CurrentCheck(lines[0].check_id, Path(lines[0].folder)) if lines else CurrentCheck("", None)

    @property
    def done(self) -> list[Done]:
        """The checks that are done."""
        return [done for _, done in self._restored(lambda _: True)]

    def outcome(self, check_id: str) -> Done | None:
        """Return the result of a check that this command has finished in an earlier job, if it certainly belongs to this check.

        Subjects that one function declares may have the same name and location. So if there are several results, or a check with
        this id has killed a job since, the check runs again. Other commands of a script do not count: they may have other settings.
        """
        command = self._command
        found = self._restored(lambda line: line.check_id == check_id and line.command == command)
        if len(found) != 1:
            return None
        line, done = found[0]
        is_certain = line.process != _own_pid() and line.deaths == self._deaths_of(check_id)
        return done if is_certain else None

    def _restored(self, is_wanted: Callable[[_DoneLine], bool]) -> list[tuple[_DoneLine, Done]]:
        """Return the wanted lines with their results."""
        found = []
        for line in filter(is_wanted, json_lines.lines(self.folder / "done.jsonl", _DoneLine)):
            # A valid line may have spaces or parameters that cannot be restored: the check then runs again.
            with suppress(ValueError, TypeError, RecursionError):
                found.append((line, line.done()))
        return found

    @property
    def _command(self) -> int:
        """The number of commands that have claimed the present job on the leader; see :func:`claimed`."""
        try:
            return _lock_file(self.folder, 0).stat().st_size
        except OSError:
            return 0

    def _deaths_of(self, check_id: str) -> int:
        return sum(death.check_id == check_id for death in self.deaths)

    # Written by the supervisor

    def begin(self, seed: int, shrinking: float) -> None:
        """Make the folder and write the settings, whose time is the reference of :meth:`is_newer`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        json_lines.append(self._settings_file, _Settings(seed, shrinking))

    def is_known(self, death: Death) -> bool:
        """Return True if the same case has killed a job before."""
        return any(known.case == death.case for known in self.deaths)

    def record_death(self, death: Death) -> None:
        """Add a death and what it interrupted. Raises `OSError` if it cannot be written, because the next job would die in the same way."""
        json_lines.append(self.folder / "deaths.jsonl", death)

    def clear(self) -> None:
        """Remove the files with the current check and case, once a death has been recorded."""
        for path in (self._current_file, *self.folder.glob("running*.json")):
            path.unlink(missing_ok=True)

    def record_stop(self, number: int) -> None:
        """Record that the job is about to be ended because the supervisor has received the signal `number`."""
        json_lines.note(self._stop_file, number)

    # Used by the job

    @property
    def stop_signal(self) -> int:
        """The signal because of which the supervisor ends the job; 0 if it does not."""
        return next(iter(json_lines.lines(self._stop_file, int)), 0)

    def seed_of(self, check_id: str) -> int:
        """Return the seed of a check, which differs between checks and is the same in every job."""
        return zlib.crc32(f"{self._settings.seed}:{check_id}".encode())

    @property
    def session_seed(self) -> int:
        """The seed of a pytest session."""
        return self._settings.seed

    def shrinking(self, check_id: str) -> float:
        """Return the seconds that are left for shrinking the failure of a check, counted from its first death."""
        first = min((death.at for death in self.deaths if death.check_id == check_id), default=None)
        given = self._settings.shrinking
        return given if first is None else max(0.0, given - (time.time() - first))

    @contextmanager
    def at(self, check_id: str, folder: Path, *, is_leader: bool) -> Iterator[None]:
        """Context that records, on the leader, the running check and the folder of its failures. A job that dies leaves the record."""
        if is_leader:
            self._current_file.unlink(missing_ok=True)
            json_lines.note(self._current_file, _Current(check_id, str(folder.absolute())))
        yield
        # Not in a `finally`, because a check that raises is not done.
        if is_leader:
            self._current_file.unlink(missing_ok=True)

    def is_newer(self, path: Path) -> bool:
        """Return True if a file was written after the supervision began."""
        try:
            return path.stat().st_mtime >= self._settings_file.stat().st_mtime
        except OSError:
            return False

    def deadly_cases(self, check_id: str) -> DeadlyCases:
        """Return the cases of a check that have killed a job."""
        return DeadlyCases(tuple(death for death in self.deaths if death.check_id == check_id and death.case))

    def death_without_case(self, check_id: str) -> Death | None:
        """Return a death during a check, but outside its cases."""
        return next((death for death in self.deaths if death.check_id == check_id and not death.case), None)

    def finish(self, done: Done) -> None:
        """Record, on the leader, that a check is done. If it cannot be recorded, the check runs again in a restarted job."""
        json_lines.note(
            self.folder / "done.jsonl", _DoneLine.of(done, self._command, self._deaths_of(done.check_id))
        )

    @property
    def _settings(self) -> _Settings:
        # User code may have damaged the file: the job then goes on with default settings, and draws other cases.
        return next(iter(json_lines.lines(self._settings_file, _Settings)), _Settings(0, 60.0))

    @property
    def _settings_file(self) -> Path:
        return self.folder / "settings.json"

    @property
    def _stop_file(self) -> Path:
        return self.folder / "stop.json"

    @property
    def _current_file(self) -> Path:
        return self.folder / "check.json"


@dataclass(frozen=True)
class DeadlyCases:
    """The cases that have killed a job, as a :class:`~adjointlab.engine.run_case.KnownRuns`."""

    deaths: tuple[Death, ...] = ()

    def __call__(self, case: Case, times: int = 1) -> Run | None:
        """Return a run that stands for `case`, if it has killed a job `times` times; `None` if it has to be run."""
        if not self.deaths:
            return None  # saves the time to compute the digest
        digest = case.digest
        deaths = [death for death in self.deaths if death.case == digest]
        if not deaths or (len(deaths) < times and not deaths[0].certain):
            return None
        return deaths[-1].run(case.ranks)


def claimed(rank: int, environment: MutableMapping[str, str] = os.environ) -> JobLog | None:
    """Make this process the job of `rank`, if a supervisor started it and no other process is the job; return the log.

    The command of a supervised rank may start several processes that could be the job: workers of a test runner, or commands of
    a script. They share one folder, so only one of them at a time is the job, and the others run unsupervised.
    """
    folder = environment.get(SUPERVISED)
    if folder and HOOKED not in environment and _locked(_lock_file(Path(folder), rank)):
        environment[HOOKED] = _own_pid()
    return supervised(environment)


def supervised(environment: Mapping[str, str] = os.environ) -> JobLog | None:
    """Return the log of this job, if it is supervised; `None` in a process that has not claimed it (:func:`claimed`)."""
    folder = environment.get(SUPERVISED)
    if not folder or environment.get(HOOKED) != _own_pid():
        return None
    return JobLog(Path(folder))


def stopped_by() -> int:
    """Return the signal because of which the supervisor ends this job; 0 if it does not, or if there is no supervisor."""
    job_log = supervised()
    return 0 if job_log is None else job_log.stop_signal


def _own_pid() -> str:
    return str(os.getpid())


def _lock_file(folder: Path, rank: int) -> Path:
    """The file that the process that is the job of `rank` locks. It has a byte for each that has been; a new job begins without it."""
    return folder / f"rank-{rank}.lock"


def _locked(path: Path) -> bool:
    """Lock a file until this process ends, and append a byte; return `False` if another live process has the lock."""
    try:
        file = open_file(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
    except OSError:
        return False
    try:
        # Not flock, which running_case uses: a fork would hold that lock too, and user code may fork at any time. This lock is
        # released when the process closes any descriptor of the file, so the file is never closed or opened again (_command only
        # queries its size).
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            os.close(file)
            return False
        # A file system without locks: assume that no other process is the job.
    with suppress(OSError):
        os.write(file, b".")
    return True


def check_id_of(location: str, check: str) -> str:
    """Return the id of a check of the subject that is declared at `location`."""
    return f"{location} {check}"
