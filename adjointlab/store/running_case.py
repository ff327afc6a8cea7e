"""What is running now, on disk before it runs: whatever ends the process, the case that it was at is known.

The file is JSON at any moment that nobody is writing it, and a process that is killed does not leave it half written: a
record is one write into a file that stays open, padded with blanks, because a file for each case would cost more than many
a case. (A record of 600 bytes takes about 10 microseconds, most of it to put the case into JSON.)
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import msgspec

from adjointlab.engine.case import Case, StoredCase

__all__ = [
    "EXHAUSTED",
    "NAME",
    "Progress",
    "Running",
    "RunningCaseFile",
    "ending",
    "read",
    "read_file",
    "recording",
]

NAME: Final = "running.json"
"""The file's name in the folder of failures."""

EXHAUSTED: Final = 75
"""The exit code of a job that has to be started again to go on (``EX_TEMPFAIL``); the record says where."""

_BLOCK: Final = 1024  # the file grows in steps of so many bytes


@dataclass(frozen=True)
class Progress:
    """Which piece of work a job is at: `reference` names the subject on a command line, `location` where it is declared."""

    reference: str
    location: str
    check: str
    world: str  # "simulated" or "mpi"
    ranks: int  # of the world
    seed: int  # of the draws


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    schema: Literal[1]
    reference: str
    location: str
    check: str
    world: Literal["simulated", "mpi"]
    ranks: int
    seed: int
    done: int
    stage: Literal["drawing", "shrinking", "replaying"]
    ended: str
    kind: str
    reproducer: str
    case: StoredCase | None


@dataclass(frozen=True)
class Running:
    """A record as read back.

    `done` cases had been judged before `case` (which is among neither them nor those to come), while `stage` was
    "drawing"; later stages run cases again. `ended` says why the job ended itself, if it could: "watchdog", with the
    `kind` of failure and where the `reproducer` lies, or "communicators", with which the job may go on after a restart.
    """

    progress: Progress
    done: int
    stage: str
    case: Case | None
    ended: str = ""
    kind: str = ""
    reproducer: str = ""


class RunningCaseFile:
    """Keeps the record of one piece of work in `folder`. On one rank only.

    Where another live process keeps one there, this one's is ``running-<process number>.json``. The record that a process
    which has died left behind is read first (:attr:`leftover`) and then taken over. A folder that cannot be written to
    leaves the work without a record, and does not stop it.
    """

    def __init__(self, folder: Path, progress: Progress) -> None:
        self.path = folder / NAME
        self.leftover: Running | None = None
        self._progress = progress
        self._made = [place for place in (folder, *folder.parents) if not place.exists()]
        self._file = _opened(self.path)
        if self._file is None:
            self.path = folder / f"running-{os.getpid()}.json"
            self._file = _opened(self.path)
        if self._file is not None:
            self.leftover = read_file(self.path)
        self._length = 0 if self._file is None else os.fstat(self._file).st_size

    def record(self, case: Case, done: int, stage: str = "drawing") -> None:
        """`case` is about to run."""
        if self._file is not None:
            self._write(Running(self._progress, done, stage, case))

    def clear(self) -> None:
        """The work is done, whatever came of it: nothing is running."""
        file, self._file = self._file, None
        if file is not None:
            # Still locked, so nobody else has begun to write here.
            self.path.unlink(missing_ok=True)
            os.close(file)
            for place in self._made:
                with suppress(OSError):  # it holds a reproducer now
                    place.rmdir()

    def _write(self, running: Running) -> None:
        data = _encoded(running)
        if len(data) >= self._length:
            self._length = (len(data) // _BLOCK + 1) * _BLOCK
        with suppress(OSError):  # such as a full disk
            assert self._file is not None
            os.pwrite(self._file, data.ljust(self._length - 1) + b"\n", 0)


@contextmanager
def recording(folder: Path, progress: Progress, *, is_leader: bool) -> Iterator[RunningCaseFile | None]:
    """The recorder of a piece of work, on the leader, cleared at the end. Only a process that dies leaves its record."""
    recorder = RunningCaseFile(folder, progress) if is_leader else None
    try:
        yield recorder
    finally:
        if recorder is not None:
            recorder.clear()


def ending(path: Path, running: Running) -> None:
    """Put `running` into the record at `path` from a process or thread that does not keep it."""
    data = _encoded(running)
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
    try:
        length = max(len(data) + 1, os.fstat(file).st_size)
        os.pwrite(file, data.ljust(length - 1) + b"\n", 0)
    finally:
        os.close(file)


def read(folder: Path) -> Running | None:
    """What is, or was, running in `folder`; `None` where there is no record, or none that can be read."""
    return read_file(folder / NAME)


def read_file(path: Path) -> Running | None:
    """The record in a file; `None` where there is none, or none that can be read."""
    for _ in range(3):
        try:
            return _decoded(path.read_bytes())
        except OSError:
            return None
        except (msgspec.DecodeError, ValueError, TypeError, RecursionError):
            # Its owner may have been writing.
            time.sleep(0.01)
    return None


def _opened(path: Path) -> int | None:
    """A file of ours alone; `None` where another process has it, or there can be none."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        return None
    return file


def _encoded(running: Running) -> bytes:
    progress = running.progress
    try:
        case = None if running.case is None else running.case.data()
    except TypeError:  # parameters that are no data: what becomes of that is told elsewhere
        case = None
    return msgspec.json.encode(
        {
            "schema": 1,
            "reference": progress.reference,
            "location": progress.location,
            "check": progress.check,
            "world": progress.world,
            "ranks": progress.ranks,
            "seed": progress.seed,
            "done": running.done,
            "stage": running.stage,
            "ended": running.ended,
            "kind": running.kind,
            "reproducer": running.reproducer,
            "case": case,
        }
    )


def _decoded(data: bytes) -> Running:
    file = msgspec.json.decode(data, type=_File)
    progress = Progress(file.reference, file.location, file.check, file.world, file.ranks, file.seed)
    case = None if file.case is None else file.case.case()
    return Running(progress, file.done, file.stage, case, file.ended, file.kind, file.reproducer)
