"""Reproducers: a failing case as a JSON file that replays, and as a script that stands alone.

The JSON file is data: it is checked against a schema (:class:`Reproducer`), nothing in it is evaluated or unpickled, and
what it says of its subject is a name only. A JSON file of other content is never overwritten, nor is a script that was changed.
"""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
from msgspec import structs

from adjointlab.checks.check import check_named
from adjointlab.checks.verdict import Verdict, unjudged
from adjointlab.engine.case import Case
from adjointlab.engine.search_result import SearchResult
from adjointlab.engine.subject import Subject
from adjointlab.engine.user_modules import shown_path
from adjointlab.store.files import encodable, in_folder, read_file, write_atomically
from adjointlab.store.script import script
from adjointlab.worlds.world import WorldName

__all__ = [
    "BadReproducer",
    "Reproducer",
    "Written",
    "read",
    "read_own",
    "same_subject",
    "stem",
    "write",
    "write_case",
]


class BadReproducer(ValueError):
    """A file is no reproducer that this version reads; the message says why."""


_SCHEMA: Final = 1


class Reproducer(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    tag_field="schema",
    tag=_SCHEMA,
):
    """A reproducer as its file holds it: the fields of the JSON object, beside ``"schema": 1``.

    A new field needs a default, so that older files can still be read. A field that changes its meaning needs a new number.
    """

    location: str  # where the subject was declared, "module:name"
    world: WorldName
    kind: str  # of the failure
    headline: str
    lines: tuple[tuple[str, str], ...]
    case: Case
    is_death: bool = False  # a process has ended in it
    file: str = ""  # that declares the subject, as seen from the folder where it failed; empty where that is not known

    @property
    def subject(self) -> str:
        return self.case.subject

    @property
    def check(self) -> str:
        return self.case.check

    def is_of(self, subject: Subject) -> bool:
        """Return True for a failure of that subject."""
        is_there = self.subject == subject.name and same_subject(self.location, subject.location)
        return is_there and _may_be_one_file(self.file, _file_of(subject))


@dataclass(frozen=True)
class Written:
    """The files of a failure."""

    json: Path
    script: Path | None  # where a script can import the subject

    @staticmethod
    def beside(path: Path) -> Written:
        """The files of the reproducer at `path`: its script may have gone, or never have been."""
        script = path.with_suffix(".py")
        return Written(path, script if script.is_file() else None)


def write(result: SearchResult, subject: Subject, folder: Path) -> Written:
    """Store a failure under a name made from its case. On one rank only.

    Raises `ValueError` for a result without a case.
    """
    case = result.case
    if case is None:
        raise ValueError(f"result: {result.subject} {result.check} has no failing case to store")
    path = write_case(case, subject.location, result.world, result.verdict, folder, _file_of(subject))
    beside = path.with_suffix(".py")
    try:
        text = script(case, result, subject, path)
        if text is not None and not _is_changed(beside):
            write_atomically(beside, _marked(text.encode()))
    # It looks at the user's modules and folders, and the disk may be full: the case replays without it.
    except Exception:
        text = None
    return Written(path, None if text is None else beside)


_MARK: Final = b"# Written anew whenever the failure is found again, unless something above was changed: "


def _marked(text: bytes) -> bytes:
    """The text with a last line that tells whether what stands above it was changed."""
    return b"%b%b%08x\n" % (text, _MARK, zlib.crc32(text))


def _is_changed(script: Path) -> bool:
    """Return True for a script that is not as it was written."""
    try:
        text = script.read_bytes()
    except FileNotFoundError:
        return False
    return _marked(text.rpartition(_MARK)[0]) != text


def write_case(case: Case, location: str, world: str, verdict: Verdict, folder: Path, file: str = "") -> Path:
    """Store a failure of the subject declared at `location` without a script, for which the subject would be needed."""
    path = _path_of(folder, case, location, file)
    data = _encoded(case, location, world, verdict, file)
    in_folder(path, lambda: write_atomically(path, data))
    return path


def keep_interrupted(case: Case, location: str, world: str, by: str, folder: Path) -> Path:
    """Store a case that ran when its process was ended by `by`; one that is stored already stays as it is, with its failure."""
    path = _path_of(folder, case, location)
    if not path.exists():
        verdict = unjudged(f"{by} ended the process while this case ran")
        write_case(case, location, world, verdict, folder)
    return path


def read(path: Path | str) -> Reproducer:
    """Read the reproducer in a file. Raises :class:`BadReproducer`, which says what is wrong with it."""
    return _read(Path(path), Path.read_bytes)


def read_own(path: Path) -> Reproducer:
    """Read the reproducer in a file of the lab's own, which is no link, as :func:`read` does."""
    return _read(path, read_file)


def _read(path: Path, content_of: Callable[[Path], bytes]) -> Reproducer:
    try:
        data = content_of(path)
        fields = msgspec.json.decode(data)
        if isinstance(fields, dict):
            _require_schema(fields)
        content = msgspec.json.decode(data, type=Reproducer)
        check_named(content.check)
        content = structs.replace(content, case=content.case.restored())
        _refuse_unknown(fields["case"], msgspec.to_builtins(content.case.plain()))
        return content
    except OSError as error:
        raise BadReproducer(f"{path}: {error.strerror or error}") from None
    # RecursionError: a file of many opening brackets.
    except (msgspec.DecodeError, ValueError, TypeError, RecursionError) as error:
        raise BadReproducer(f"{path}: not a failure as adjointlab stores it: {error}") from None


def _require_schema(fields: dict[str, object]) -> None:
    """Raise `ValueError` for a file of another format, or of none; msgspec takes the tag of a struct that has no alternative for granted."""
    if "schema" not in fields:
        raise ValueError("the number of its `schema` is missing")
    if fields["schema"] != _SCHEMA:
        raise ValueError(
            f"its `schema` is {fields['schema']!r}, and this version of adjointlab reads {_SCHEMA}: another version has written it"
        )


def _refuse_unknown(given: object, known: object) -> None:
    """Raise `ValueError` if `given` has fields that `known`, which was made of it, has not.

    msgspec refuses the unknown fields of structs alone, and a case holds dataclasses and objects of the lab too.
    """
    if isinstance(given, dict) and isinstance(known, dict):
        for name, value in given.items():
            if name not in known and value:  # a default is left out
                raise ValueError(f"unknown field `{name}`")
            _refuse_unknown(value, known.get(name))
    elif isinstance(given, list) and isinstance(known, list):
        for one, other in zip(given, known, strict=False):
            _refuse_unknown(one, other)


def _encoded(case: Case, location: str, world: str, verdict: Verdict, file: str) -> bytes:
    content = Reproducer(
        encodable(location),
        WorldName(world),
        encodable(verdict.kind),
        encodable(verdict.headline),
        tuple((encodable(label), encodable(text)) for label, text in verdict.lines),
        case.plain(),
        verdict.is_death,
        encodable(file),
    )
    return msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n"


def _path_of(folder: Path, case: Case, location: str, file: str = "") -> Path:
    """The file of a case in `folder`, named by as few digits of its digest as tell it from the other files there.

    Subjects of one name, declared at different locations, may fail at the same case: each has a file of its own.
    """
    digest = case.digest
    for length in range(4, len(digest)):
        path = folder / f"{stem(case.subject, case.check)}-{digest[:length]}.json"
        if not path.exists() or _holds(path, case, location, file):
            break
    return path


def same_subject(one: str, other: str) -> bool:
    """Return True if two locations mean one subject: its file may be imported under a longer or a shorter name."""
    return one == other or one.endswith(f".{other}") or other.endswith(f".{one}")


def _file_of(subject: Subject) -> str:
    """The file of the module that declares a subject; empty for one elsewhere than below the current folder."""
    module = sys.modules.get(subject.location.partition(":")[0])
    file = shown_path(getattr(module, "__file__", None) or os.sep)
    return "" if os.path.isabs(file) else file


def _may_be_one_file(one: str, other: str) -> bool:
    """Return False for the names of two files that are both there: without a package, modules of both have the name of the file alone."""
    return not (one and other) or one == other or not (os.path.isfile(one) and os.path.isfile(other))


def _holds(path: Path, case: Case, location: str, file: str) -> bool:
    try:
        entry = read_own(path)
    except BadReproducer:
        return False
    is_there = same_subject(entry.location, location) and _may_be_one_file(entry.file, file)
    return is_there and entry.case.key() == case.key()


def stem(subject: str, check: str) -> str:
    """The beginning of the names of files with failures of a check of a subject."""
    return f"{_safe(subject)}-{_safe(check)}"


_MOST_BYTES: Final = 60
"""Of a name in a file name: the commonest limit of file systems is 255 for all of it."""


def _safe(name: str) -> str:
    """`name` as a part of a file name: no folders, no patterns of `glob`, and short enough for any file system."""
    safe = "".join(char if char.isalnum() or char in "_." else "_" for char in name)
    return safe.encode()[:_MOST_BYTES].decode(errors="ignore")
