"""Reproducers: a failing case as a JSON file that replays, and as a script that stands alone.

The JSON file is data: it is checked against a schema, nothing in it is evaluated or unpickled, and what it says of
its subject is a name only. A file is written beside its final place and renamed, and a file of other content is
never overwritten.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from adjointlab.checks.verdict import Verdict
from adjointlab.engine.case import Case, StoredCase
from adjointlab.engine.run_case import check_named
from adjointlab.engine.search import SearchResult
from adjointlab.engine.subject import Subject
from adjointlab.store.script import script

__all__ = ["BadReproducer", "Stored", "Written", "read", "stored", "write", "write_case"]

SCHEMA = 1


class BadReproducer(ValueError):
    """A file is no reproducer that this version reads; the message says why."""


class _File(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    schema: Literal[1]
    location: str
    world: Literal["simulated", "mpi"]
    kind: str
    headline: str
    lines: list[tuple[str, str]]
    case: StoredCase


@dataclass(frozen=True)
class Stored:
    """A reproducer as read back: the case, where its subject was declared, and what was seen."""

    case: Case
    location: str  # "module:name"
    world: str
    kind: str
    headline: str

    @property
    def subject(self) -> str:
        return self.case.subject

    @property
    def check(self) -> str:
        return self.case.check


@dataclass(frozen=True)
class Written:
    """Where a reproducer lies."""

    json: Path
    script: Path


def write(report: SearchResult, subject: Subject, folder: Path) -> Written:
    """Store a failure under a name made from its case. On one rank only.

    Raises `ValueError` for a report without a case.
    """
    case = report.case
    if case is None:
        raise ValueError(f"report: {report.subject} {report.check} has no failing case to store")
    path = _place(folder, case)
    text = script(case, report, subject, path.name)
    _write_whole(path, _encoded(case, subject.location, report.world, report.verdict))
    _write_whole(path.with_suffix(".py"), text.encode())
    return Written(path, path.with_suffix(".py"))


def write_case(case: Case, location: str, world: str, verdict: Verdict, folder: Path) -> Path:
    """Store a failure of the subject declared at `location`, which is not at hand: the JSON file, without a script."""
    path = _place(folder, case)
    _write_whole(path, _encoded(case, location, world, verdict))
    return path


def _encoded(case: Case, location: str, world: str, verdict: Verdict) -> bytes:
    content = {
        "schema": SCHEMA,
        "location": location,
        "world": world,
        "kind": verdict.kind,
        "headline": verdict.headline,
        "lines": [list(line) for line in verdict.lines],
        "case": case.data(),
    }
    return msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n"


def _place(folder: Path, case: Case) -> Path:
    """The file of a case in `folder`, under a name that no other case has."""
    digest = hashlib.sha256(case.key()).hexdigest()
    folder.mkdir(parents=True, exist_ok=True)
    for length in range(4, len(digest)):
        path = folder / f"{_safe(case.subject)}-{case.check}-{digest[:length]}.json"
        if not path.exists() or _holds(path, case):
            break
    return path


def read(path: Path | str) -> Stored:
    """The reproducer in a file. Raises :class:`BadReproducer`, which says what is wrong with it."""
    try:
        content = msgspec.json.decode(Path(path).read_bytes(), type=_File)
        check_named(content.case.check)
        case = content.case.case()
    except OSError as error:
        raise BadReproducer(f"{path}: {error.strerror or error}") from None
    except (msgspec.DecodeError, ValueError, TypeError, RecursionError) as error:
        raise BadReproducer(f"{path}: {error}") from None
    return Stored(case, content.location, content.world, content.kind, content.headline)


def stored(folder: Path, subject: Subject, check: str) -> list[tuple[Path, Case]]:
    """The corpus: every case of `subject` and `check` in `folder`, by file name. Other files are passed over."""
    found = []
    for path in sorted(folder.glob(f"{_safe(subject.name)}-{check}-*.json")):
        try:
            entry = read(path)
        except BadReproducer:
            continue
        if (
            entry.subject == subject.name
            and entry.check == check
            and _same_place(entry.location, subject.location)
        ):
            found.append((path, entry.case))
    return found


def _same_place(one: str, other: str) -> bool:
    """Whether two locations mean one subject: the same file may be imported under a longer or a shorter name."""
    return one.rpartition(".")[2] == other.rpartition(".")[2]


def _holds(path: Path, case: Case) -> bool:
    try:
        return read(path).case.key() == case.key()
    except BadReproducer:
        return False


def _write_whole(path: Path, data: bytes) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _safe(name: str) -> str:
    return "".join(char if char.isalnum() or char in "_." else "_" for char in name)
