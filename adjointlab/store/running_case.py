"""The record of the running case, which is on disk before the case runs, so that it is known however the process ends.

Each record overwrites that of the previous case, in a file that stays open, because creating a file for each case would take
longer than many cases do. (A record of 600 bytes takes about 10 microseconds, most of them to encode the case.) Nothing is
synchronised to the disk: the kernel keeps what a killed process has written.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shlex
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec
from msgspec import structs

from adjointlab.engine.case import Case
from adjointlab.engine.run_case import Stage
from adjointlab.spelling import from_here
from adjointlab.store import files
from adjointlab.store.files import in_folder, open_file, paths_in, printable
from adjointlab.store.json_lines import encoded
from adjointlab.variables import COMMAND
from adjointlab.worlds.forks import forks_cut_off
from adjointlab.worlds.interrupts import signals_held
from adjointlab.worlds.world import WorldName

__all__ = [
    "NAME",
    "EndedBy",
    "Progress",
    "Running",
    "RunningCaseFile",
    "at_work",
    "is_record",
    "left_behind",
    "read",
    "read_file",
    "recording",
    "write_end",
]

NAME: Final = "running.json"
"""The file's name in the folder of failures."""

_OTHERS: Final = "running-*.json"
"""The files of further processes that use the same folder."""

_BLOCK: Final = 1024
"""The file grows in multiples of this many bytes."""


class EndedBy(StrEnum):
    """The reason why a job has ended itself. The values are stored in files."""

    NOTHING = ""
    WATCHDOG = "watchdog"
    EXHAUSTION = "communicators"
    """MPI has no communicators left. The job continues after a restart."""


class Progress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The check of a subject that a job is running."""

    reference: str  # the subject's name on a command line
    location: str  # where it is declared, "module:name"
    check: str
    world: WorldName
    ranks: int  # of the world
    seed: int  # of the draws; 0 during a replay


class Running(Progress, frozen=True, forbid_unknown_fields=True, tag_field="schema", tag=1):
    """The contents of a record file: these fields and those of :class:`Progress`, in addition to ``"schema": 1``.

    `done` is the number of cases judged before `case` in the stage "drawing"; later stages run cases again. A job that the watchdog
    has ended leaves the `kind` of failure and the path of its `reproducer`, or, if no case was running, the reason in `because`.
    A `command` that runs its checks in several processes reads the records of its dead processes itself.
    """

    done: int
    stage: Stage
    ended: EndedBy
    kind: str
    reproducer: str
    case: Case | None
    because: str = ""
    command: str = ""

    @staticmethod
    def of(
        progress: Progress,
        case: Case | None,
        done: int = 0,
        stage: Stage = Stage.DRAWING,
        ended: EndedBy = EndedBy.NOTHING,
        kind: str = "",
        reproducer: str = "",
        because: str = "",
    ) -> Running:
        """Return the record of `case`."""
        return Running(
            **structs.asdict(progress),
            done=done,
            stage=stage,
            ended=ended,
            kind=kind,
            reproducer=reproducer,
            case=case,
            because=because,
            command=os.environ.get(COMMAND, ""),
        )

    def replay_command(self, path: Path) -> str:
        """Return the command that replays the case stored at `path`. It names the subject, which need not be installed."""
        start = self.world.launcher(1 if self.case is None else self.case.ranks)
        words = [*start, "adjointlab", "replay", str(from_here(path)), "--subject", self.reference]
        return printable(shlex.join(words))


class RunningCaseFile:
    """Keeps the record of one check in `folder`. On one rank only.

    The file is locked as long as it is open. If another live process has the lock, this one's record has a unique name,
    ``running-<random>.json``. The records of dead processes are read first (:attr:`previous`) and then overwritten or removed,
    except for those of the same command, which reads them itself (:func:`left_behind`). If the folder is not writable, or the
    file system has no locks, the check runs without a record.
    """

    def __init__(self, folder: Path, progress: Progress) -> None:
        self.path = folder / NAME
        self.last: Case | None = None  # the last case that was recorded
        self._progress = progress
        self._made = [parent for parent in (folder, *folder.parents) if not parent.exists()]
        self._file = _locked(self.path)
        found = [] if self._file is None else [read_file(self.path)]
        if self._file is not None and _is_asked_for(found[0]):
            os.close(self._file)
            self._file, found = None, []
        if self._file is None:
            self.path = folder / f"running-{secrets.token_hex(8)}.json"
            self._file = _locked(self.path)
        others = (path for path in paths_in(folder, _OTHERS) if path != self.path)
        found += _taken(others, lambda running: not _is_asked_for(running))
        self.previous = tuple(running for running in found if running is not None)
        self._length = 0 if self._file is None else os.fstat(self._file).st_size

    def record(self, case: Case, done: int, stage: Stage = Stage.DRAWING) -> None:
        """Record that `case` is about to run."""
        self.last = case
        if self._file is None:
            return
        data = _encoded(Running.of(self._progress, case, done, stage))
        if len(data) >= self._length:
            self._length = (len(data) // _BLOCK + 1) * _BLOCK
        with suppress(OSError):  # for example, a full disk
            _write_over(self._file, data, self._length)

    def forget(self) -> None:
        """Stop recording, in a child process. The parent keeps its record, and alone holds the lock."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def clear(self) -> None:
        """Remove the record: the check has ended, with whatever result."""
        file, self._file = self._file, None
        if file is not None:
            _remove(self.path, file)
            for folder in self._made:
                with suppress(OSError):  # not empty: it contains a reproducer
                    folder.rmdir()


@contextmanager
def recording(folder: Path, progress: Progress, *, is_leader: bool) -> Iterator[RunningCaseFile | None]:
    """Context that keeps the record of a check on the leader, and removes it at the end. Only a process that dies leaves it."""
    file: RunningCaseFile | None = None
    try:
        # A signal between creating the file and the `with` below would leave the file, as if the process had died.
        with signals_held():
            file = RunningCaseFile(folder, progress) if is_leader else None
        with nullcontext() if file is None else forks_cut_off(file.forget):
            yield file
    finally:
        if file is not None:
            with signals_held():
                file.clear()


def at_work(folder: Path) -> list[Running]:
    """Return the records that processes keep in `folder` now."""
    records = (read_file(path) for path in (folder / NAME, *paths_in(folder, _OTHERS)))
    return [running for running in records if running is not None]


def is_record(path: Path) -> bool:
    """Return True if the file has the name of a record."""
    return path.name == NAME or path.match(_OTHERS)


def left_behind(folder: Path, location: str, check: str) -> Running | None:
    """Read and remove the record that a dead process has left of the check of the subject at `location`."""

    def is_of_check(running: Running | None) -> bool:
        return running is not None and (running.location, running.check) == (location, check)

    return next(_taken((folder / NAME, *paths_in(folder, _OTHERS)), is_of_check), None)


def write_end(path: Path, running: Running) -> None:
    """Overwrite the record at `path` with `running`, from a process or thread that does not keep it.

    Does not wait for the lock, because its owner is the process that is about to be ended.
    """
    file = in_folder(path, lambda: open_file(path, os.O_WRONLY | os.O_CREAT))
    try:
        _write_over(file, _encoded(running), os.fstat(file).st_size)
    finally:
        os.close(file)


def read(folder: Path) -> Running | None:
    """Read the record of `folder`; `None` if there is none, or if it cannot be read."""
    return read_file(folder / NAME)


def read_file(path: Path) -> Running | None:
    """Read the record in a file; `None` if there is none, or if it cannot be read."""
    for _ in range(3):
        try:
            data = files.read_file(path)
            if not data:
                return None  # the file is new, and nothing has been recorded yet
            running = msgspec.json.decode(data, type=Running)
            return structs.replace(running, case=running.case and running.case.restored())
        except OSError:
            return None
        except (msgspec.DecodeError, ValueError, TypeError, RecursionError):
            # A write may be in progress; try again.
            time.sleep(0.01)
    return None


def _locked(path: Path) -> int | None:
    """Open and lock a file; `None` if another process has the lock, or if it cannot be created or locked.

    The kernel releases the lock when the process ends, however it ends. So an unlocked file with a record was left by a process
    that has died. A child process must not keep the lock beyond that: programs that are started do not inherit the descriptor,
    and forks close theirs (:meth:`RunningCaseFile.forget`).
    """
    try:
        file = in_folder(path, lambda: open_file(path, os.O_RDWR | os.O_CREAT))
    except OSError:
        return None
    try:
        return _lock(file)
    except OSError:
        # Without locks, the record of a dead process could not be distinguished from that of a live one.
        with suppress(OSError):
            if not path.stat().st_size:
                path.unlink()
        return None


def _lock(file: int) -> int | None:
    """Lock an open file; close it and return `None` if another process has the lock. Closes it and raises `OSError` if there are no locks."""
    try:
        # Not lockf, which job_log uses: this process would lose the lock whenever it reads the record and closes the file.
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(file).st_nlink:
            return file
        # The owner removed the file between `open` and `flock`, so nobody would find a record in it.
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            os.close(file)
            raise
    os.close(file)
    return None


def _taken(paths: Iterable[Path], is_wanted: Callable[[Running | None], bool]) -> Iterator[Running | None]:
    """Read the records whose owners have died; remove and yield those that are wanted."""
    for path in paths:
        try:
            file = _lock(open_file(path, os.O_RDWR))
        except OSError:
            continue
        if file is None:
            continue
        running = read_file(path)
        if is_wanted(running):
            _remove(path, file)
            yield running
        else:
            os.close(file)


def _is_asked_for(running: Running | None) -> bool:
    """Return True if the record belongs to a process of the same command, which reads it itself (:func:`left_behind`)."""
    return running is not None and running.command != "" and running.command == os.environ.get(COMMAND)


def _remove(path: Path, file: int) -> None:
    """Remove a record that this process has locked, and close it."""
    # Removed before it is closed: once the lock is released, the file may become another process's record. Compared first, because
    # the file may have been removed already, and another process may have created its record under the same name.
    with suppress(OSError):
        if os.path.samestat(os.fstat(file), path.stat(follow_symlinks=False)):
            path.unlink(missing_ok=True)
    os.close(file)


def _encoded(running: Running) -> bytes:
    try:
        case = running.case and running.case.plain()
    except TypeError:  # parameters that are not plain data: storing the failure reports this
        case = None
    return encoded(structs.replace(running, case=case))


def _write_over(file: int, data: bytes, length: int) -> None:
    """Overwrite the last record in a single call, without truncating the file first.

    A process that is killed leaves one record or the other, never an empty file. The record is padded with blanks, which JSON
    ignores, to `length` bytes, so that nothing of a longer record remains.
    """
    os.pwrite(file, data.ljust(length - 1) + b"\n", 0)
