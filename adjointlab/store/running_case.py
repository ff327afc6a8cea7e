"""The record of the running case: on disk before the case runs, so that it is known whatever ends the process.

The record of each case is written over that of the case before, into a file that stays open; a file for each case would cost
more than many a case. (A record of 600 bytes takes about 10 microseconds, most of it to encode the case.) Nothing is
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
"""The files of further processes with the same folder."""

_BLOCK: Final = 1024
"""The file grows in steps of so many bytes."""


class EndedBy(StrEnum):
    """The cause for which a job has ended itself. The values stand in files."""

    NOTHING = ""
    WATCHDOG = "watchdog"
    EXHAUSTION = "communicators"
    """MPI has no communicators left. The job goes on after a restart."""


class Progress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The piece of work that a job is at: the check of a subject."""

    reference: str  # names the subject on a command line
    location: str  # where it is declared, "module:name"
    check: str
    world: WorldName
    ranks: int  # of the world
    seed: int  # of the draws


class Running(Progress, frozen=True, forbid_unknown_fields=True, tag_field="schema", tag=1):
    """A record as the file holds it: these fields and those of :class:`Progress`, beside ``"schema": 1``.

    `done` cases had been judged before `case` while `stage` was "drawing"; later stages run cases again. A job that the watchdog
    has ended leaves the `kind` of failure, and the path of its `reproducer`; where it was at no case, a sentence that says `because`
    of what. A `command` that is at work in several processes reads the records of those that have died itself.
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
        """The record of `case`."""
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
        """The command that runs its case again, which is stored at `path`; it names the subject, installed or not."""
        start = self.world.launcher(1 if self.case is None else self.case.ranks)
        words = [*start, "adjointlab", "replay", str(from_here(path)), "--subject", self.reference]
        return printable(shlex.join(words))


class RunningCaseFile:
    """Keeps the record of one piece of work in `folder`. On one rank only.

    The file is locked as long as it is open. Where another live process keeps its record there, this one's has a name that no
    other has, ``running-<random>.json``. The records of processes that have died are read first (:attr:`previous`), and then
    written over or removed, but for those of the same command, which asks for them (:func:`left_behind`). In a
    folder that cannot be written to, or on a file system without locks, the work goes on without a record.
    """

    def __init__(self, folder: Path, progress: Progress) -> None:
        self.path = folder / NAME
        self.last: Case | None = None  # that was recorded
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
        with suppress(OSError):  # such as a full disk
            _write_over(self._file, data, self._length)

    def forget(self) -> None:
        """Keep no record any more, in a child process: that of the parent stays, and so does its lock alone."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def clear(self) -> None:
        """Remove the record: the work is done, whatever its result."""
        file, self._file = self._file, None
        if file is not None:
            _remove(self.path, file)
            for folder in self._made:
                with suppress(OSError):  # it holds a reproducer now
                    folder.rmdir()


@contextmanager
def recording(folder: Path, progress: Progress, *, is_leader: bool) -> Iterator[RunningCaseFile | None]:
    """On the leader, keep the record of a piece of work and remove it at the end; only a process that dies leaves it."""
    file: RunningCaseFile | None = None
    try:
        # A signal in between would leave a file that says that the process has died.
        with signals_held():
            file = RunningCaseFile(folder, progress) if is_leader else None
        with nullcontext() if file is None else forks_cut_off(file.forget):
            yield file
    finally:
        if file is not None:
            with signals_held():
                file.clear()


def at_work(folder: Path) -> list[Running]:
    """The records that processes keep in `folder` now."""
    records = (read_file(path) for path in (folder / NAME, *paths_in(folder, _OTHERS)))
    return [running for running in records if running is not None]


def is_record(path: Path) -> bool:
    """Return True for a file that has the name of a record."""
    return path.name == NAME or path.match(_OTHERS)


def left_behind(folder: Path, location: str, check: str) -> Running | None:
    """Read and remove the record that a process which has died has left of the check of the subject at `location`."""

    def is_of_check(running: Running | None) -> bool:
        return running is not None and (running.location, running.check) == (location, check)

    return next(_taken((folder / NAME, *paths_in(folder, _OTHERS)), is_of_check), None)


def write_end(path: Path, running: Running) -> None:
    """Write `running` over the record at `path`, from a process or thread that does not keep it.

    This does not wait for the lock: its owner is the process that is about to be ended.
    """
    file = in_folder(path, lambda: open_file(path, os.O_WRONLY | os.O_CREAT))
    try:
        _write_over(file, _encoded(running), os.fstat(file).st_size)
    finally:
        os.close(file)


def read(folder: Path) -> Running | None:
    """Read the record of `folder`; `None` where there is none, or none that can be read."""
    return read_file(folder / NAME)


def read_file(path: Path) -> Running | None:
    """Read the record in a file; `None` where there is none, or none that can be read."""
    for _ in range(3):
        try:
            data = files.read_file(path)
            if not data:
                return None  # made, and nothing recorded yet: as each check finds its own
            running = msgspec.json.decode(data, type=Running)
            return structs.replace(running, case=running.case and running.case.restored())
        except OSError:
            return None
        except (msgspec.DecodeError, ValueError, TypeError, RecursionError):
            # A reader may see a write half done; the next one will be whole.
            time.sleep(0.01)
    return None


def _locked(path: Path) -> int | None:
    """Open and lock a file; `None` where another process has it, or it cannot be made or locked.

    The kernel gives the lock back when the process ends, however it ends. So an unlocked file with a record in it was left by
    a process that has died. A child would hold the lock after that: programs that are started do not inherit the descriptor, and
    forks close theirs (:meth:`RunningCaseFile.forget`).
    """
    try:
        file = in_folder(path, lambda: open_file(path, os.O_RDWR | os.O_CREAT))
    except OSError:
        return None
    try:
        return _lock(file)
    except OSError:
        # Without locks nobody could tell a record of a process that has died from one that is kept.
        with suppress(OSError):
            if not path.stat().st_size:
                path.unlink()
        return None


def _lock(file: int) -> int | None:
    """Lock an open file; close it and return `None` where another process has it. Raises `OSError`, the file closed, where there are no locks."""
    try:
        # Not lockf, as job_log has it: this process would lose the lock whenever it has read a record, and closes it.
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(file).st_nlink:
            return file
        # Its owner has removed it between the two calls: a record in it could not be found.
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            os.close(file)
            raise
    os.close(file)
    return None


def _taken(paths: Iterable[Path], is_wanted: Callable[[Running | None], bool]) -> Iterator[Running | None]:
    """Read the records whose owners have died; remove those that are wanted, and yield them."""
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
    """Return True for the record of a process that the command of this one has shared its checks out to as well."""
    return running is not None and running.command != "" and running.command == os.environ.get(COMMAND)


def _remove(path: Path, file: int) -> None:
    """Remove a record that this process has locked, and close it."""
    # Removed before it is closed: as soon as the lock is gone, the file may be another process's record. And compared, since
    # somebody may have removed it already and another process have made its own in the place.
    with suppress(OSError):
        if os.path.samestat(os.fstat(file), path.stat(follow_symlinks=False)):
            path.unlink(missing_ok=True)
    os.close(file)


def _encoded(running: Running) -> bytes:
    try:
        case = running.case and running.case.plain()
    except TypeError:  # parameters that are not data: storing the failure will say so
        case = None
    return encoded(structs.replace(running, case=case))


def _write_over(file: int, data: bytes, length: int) -> None:
    """Write a record over the last one, in one call and without truncating the file first.

    A process that is killed leaves one record or the other, never an empty file. Blanks, which JSON ignores, cover what is left
    of a longer record: it has `length` bytes, or more where it does not fit.
    """
    os.pwrite(file, data.ljust(length - 1) + b"\n", 0)
