"""The log that a supervised job keeps, from which the job that is started after it dies learns what is known.

A supervised job (``adjointlab run``) finds in the folder that the variable ``ADJOINTLAB_SUPERVISED`` names, all of it JSON:

- ``settings.json``: the seed of all draws, and the seconds for making a failure smaller;
- ``deaths.jsonl``: a line for each time that the job died, written by the supervisor;
- ``done.jsonl``: a line for each check of a subject that is done, written by the leader;
- ``stop.json``: the signal upon which the supervisor is about to end the job;
- ``check.json``: the check that the leader is at; ``running.json``: its case (:mod:`adjointlab.store.running_case`).

So the job that is started again draws the same cases and takes those that killed it before for failures without running them,
which makes Hypothesis go on shrinking where it was; and it passes over what is done.
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
    """The end of a job that died, and the case, the check or the test that it was at; a line of the file."""

    kind: str  # e.g. "a rank died of a segmentation fault"
    lines: tuple[tuple[str, str], ...] = ()
    ranks: Mapping[int, str] = field(default_factory=dict)  # those known to have died, with the reasons
    case: str = ""  # its digest
    check_id: str = ""
    test: str = ""  # its node id
    at: float = 0.0  # seconds since the epoch
    # Need not be seen twice: the job hung, and seeing that again would take as long again.
    certain: bool = False
    reproducer: str = ""  # the supervisor's file of the case, and the folder of failures where it belongs
    folder: str = ""

    def run(self, ranks: int) -> Run:
        """The run that the case is taken for."""
        outcomes = tuple(Dead(self.ranks.get(rank, "ended with the job")) for rank in range(ranks))
        return Run(outcomes, (Finding(self.kind, ""), *(Finding(*line) for line in self.lines)))

    def verdict(self) -> Verdict:
        """The verdict of the check, where there is no case."""
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
    """:class:`Done` as a line of its file. `case` and `spaces` are those of `result`, which msgspec alone could not restore."""

    check_id: str
    result: SearchResult
    case: Case | None
    spaces: tuple[Any, Any] | None  # as to_data makes them; msgspec takes no recursive alias (0.22)
    written: tuple[str, str | None] | None
    unwritten: str
    process: str  # that has finished it
    command: int  # of the job, if that is a script of several
    deaths: int  # so often the check had ended a job by then

    @staticmethod
    def of(done: Done, command: int, deaths: int) -> _DoneLine:
        result, spaces, written = done.result, done.result.spaces, done.written
        # The matrix entry is for the script alone, which is written; and JSON has no complex numbers.
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
    """The folder of a supervised job. The supervisor and the job's leader each write files of their own there."""

    folder: Path

    # Read by both

    @property
    def deaths(self) -> list[Death]:
        """The deaths so far, the first one first."""
        return json_lines.lines(self.folder / "deaths.jsonl", Death)

    @property
    def current(self) -> CurrentCheck:
        """The check that the leader is at; empty between two."""
        lines = json_lines.lines(self._current_file, _Current)
        return CurrentCheck(lines[0].check_id, Path(lines[0].folder)) if lines else CurrentCheck("", None)

    @property
    def done(self) -> list[Done]:
        """The checks that are done."""
        return [done for _, done in self._restored(lambda _: True)]

    def outcome(self, check_id: str) -> Done | None:
        """The result of a check that this command of an earlier job has finished, if it is certain whose it is.

        Subjects that one function declares may have the same name and place. So where there are several results, or where such a
        check has ended a job after it was done, the check runs again. Another command of a script may have other settings.
        """
        command = self._command
        found = self._restored(lambda line: line.check_id == check_id and line.command == command)
        if len(found) != 1:
            return None
        line, done = found[0]
        is_certain = line.process != _own_pid() and line.deaths == self._deaths_of(check_id)
        return done if is_certain else None

    def _restored(self, is_wanted: Callable[[_DoneLine], bool]) -> list[tuple[_DoneLine, Done]]:
        """The lines that are wanted, with the results that they hold."""
        found = []
        for line in filter(is_wanted, json_lines.lines(self.folder / "done.jsonl", _DoneLine)):
            # A line of the right form whose spaces or parameters are not: the check runs again.
            with suppress(ValueError, TypeError, RecursionError):
                found.append((line, line.done()))
        return found

    @property
    def _command(self) -> int:
        """The number of commands of the present job that have claimed it on the leader; see :func:`claimed`."""
        try:
            return _lock_file(self.folder, 0).stat().st_size
        except OSError:
            return 0

    def _deaths_of(self, check_id: str) -> int:
        return sum(death.check_id == check_id for death in self.deaths)

    # Written by the supervisor

    def begin(self, seed: int, shrinking: float) -> None:
        """Make the folder and write the settings; :meth:`is_newer` counts from then on."""
        self.folder.mkdir(parents=True, exist_ok=True)
        json_lines.append(self._settings_file, _Settings(seed, shrinking))

    def is_known(self, death: Death) -> bool:
        """Return True if the same case has ended a job before."""
        return any(known.case == death.case for known in self.deaths)

    def record_death(self, death: Death) -> None:
        """Add a death, and what it interrupted. Raises `OSError` where it cannot be written: the next job would die alike."""
        json_lines.append(self.folder / "deaths.jsonl", death)

    def clear(self) -> None:
        """Remove the files that say where the job was, once that is recorded."""
        for path in (self._current_file, *self.folder.glob("running*.json")):
            path.unlink(missing_ok=True)

    def record_stop(self, number: int) -> None:
        """Record that the job is about to be ended because the supervisor has received the signal `number`."""
        json_lines.note(self._stop_file, number)

    # Used by the job

    @property
    def stop_signal(self) -> int:
        """The signal upon which the job is ended; 0 before."""
        return next(iter(json_lines.lines(self._stop_file, int)), 0)

    def seed_of(self, check_id: str) -> int:
        """The seed of a check: other draws for each, and the same in every job."""
        return zlib.crc32(f"{self._settings.seed}:{check_id}".encode())

    @property
    def session_seed(self) -> int:
        """The seed of a pytest session."""
        return self._settings.seed

    def shrinking(self, check_id: str) -> float:
        """The seconds that are left for shrinking the failure of a check; they count from its first death on."""
        first = min((death.at for death in self.deaths if death.check_id == check_id), default=None)
        given = self._settings.shrinking
        return given if first is None else max(0.0, given - (time.time() - first))

    @contextmanager
    def at(self, check_id: str, folder: Path, *, is_leader: bool) -> Iterator[None]:
        """Record on the leader that it is at a check, whose failures go to `folder`. A job that dies leaves that record."""
        if is_leader:
            self._current_file.unlink(missing_ok=True)
            json_lines.note(self._current_file, _Current(check_id, str(folder.absolute())))
        yield
        # Not in a `finally`: a check that an exception ends is not done.
        if is_leader:
            self._current_file.unlink(missing_ok=True)

    def is_newer(self, path: Path) -> bool:
        """Return True if a file was written after the supervision began."""
        try:
            return path.stat().st_mtime >= self._settings_file.stat().st_mtime
        except OSError:
            return False

    def deadly_cases(self, check_id: str) -> DeadlyCases:
        """The cases of a check that have ended a job."""
        return DeadlyCases(tuple(death for death in self.deaths if death.check_id == check_id and death.case))

    def death_without_case(self, check_id: str) -> Death | None:
        """A death at a check, but at none of its cases."""
        return next((death for death in self.deaths if death.check_id == check_id and not death.case), None)

    def finish(self, done: Done) -> None:
        """Record on the leader that a check is done; one that cannot be recorded runs again if the job is started again."""
        json_lines.note(
            self.folder / "done.jsonl", _DoneLine.of(done, self._command, self._deaths_of(done.check_id))
        )

    @property
    def _settings(self) -> _Settings:
        # User code that runs in the same folder may have damaged the file: its jobs draw other cases then, and go on.
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
    """The cases that have ended a job, as :class:`~adjointlab.engine.run_case.KnownRuns`."""

    deaths: tuple[Death, ...] = ()

    def __call__(self, case: Case, times: int = 1) -> Run | None:
        """The run of `case`, if it has ended a job `times` times; `None` if it has to be run."""
        if not self.deaths:
            return None  # spares each case its digest
        digest = case.digest
        deaths = [death for death in self.deaths if death.case == digest]
        if not deaths or (len(deaths) < times and not deaths[0].certain):
            return None
        return deaths[-1].run(case.ranks)


def claimed(rank: int, environment: MutableMapping[str, str] = os.environ) -> JobLog | None:
    """Make this process the job of `rank`, if it is started by a supervisor and no other process is; return its log.

    The command of a supervised rank may start several processes that could be the job: workers of a test runner, commands of
    a script. They share one folder, so one of them at a time is the job, and the others run as they would unsupervised.
    """
    folder = environment.get(SUPERVISED)
    if folder and HOOKED not in environment and _locked(_lock_file(Path(folder), rank)):
        environment[HOOKED] = _own_pid()
    return supervised(environment)


def supervised(environment: Mapping[str, str] = os.environ) -> JobLog | None:
    """The log of this job, if it is supervised; `None` in a process that has not claimed it (:func:`claimed`)."""
    folder = environment.get(SUPERVISED)
    if not folder or environment.get(HOOKED) != _own_pid():
        return None
    return JobLog(Path(folder))


def stopped_by() -> int:
    """The signal upon which the supervisor of this job ends it; 0 where it does not, or there is none."""
    job_log = supervised()
    return 0 if job_log is None else job_log.stop_signal


def _own_pid() -> str:
    return str(os.getpid())


def _lock_file(folder: Path, rank: int) -> Path:
    """The file with which one process of a rank is the job; it has a byte for each that was. A new job begins without it."""
    return folder / f"rank-{rank}.lock"


def _locked(path: Path) -> bool:
    """Lock a file until this process ends, and add a byte; `False` where another live process has it."""
    try:
        file = open_file(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
    except OSError:
        return False
    try:
        # Not flock, as running_case has it: a fork would hold that lock too, and user code may fork at any time. This lock goes
        # when the process closes any descriptor of the file. So it is never closed, nor opened again: _command asks for its size.
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            os.close(file)
            return False
        # A file system without locks: nobody can tell.
    with suppress(OSError):
        os.write(file, b".")
    return True


def check_id_of(location: str, check: str) -> str:
    """Name the check of the subject that is declared at `location`."""
    return f"{location} {check}"
