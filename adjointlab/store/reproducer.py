"""Reproducers: a failing case as a JSON file that can be replayed, and as a script.

The JSON file is data: it is checked against a schema (:class:`Reproducer`), nothing in it is evaluated or unpickled, and
it refers to its subject by name only. A JSON file with another case is never overwritten, nor is a script that the user has changed.
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
    """A file is not a reproducer that this version can read; the message says why."""


_SCHEMA: Final = 1


class Reproducer(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    tag_field="schema",
    tag=_SCHEMA,
):
    """The contents of a reproducer file: the fields of the JSON object, in addition to ``"schema": 1``.

    A new field needs a default, so that older files can still be read. A field that changes its meaning needs a new schema number.
    """

    location: str  # where the subject was declared, "module:name"
    world: WorldName
    kind: str  # of the failure
    headline: str
    lines: tuple[tuple[str, str], ...]
    case: Case
    is_death: bool = False  # the case has ended a process
    file: str = (
        ""  # the file that declares the subject, relative to the folder where it failed; empty if not known
    )

    @property
    def subject(self) -> str:
        return self.case.subject

    @property
    def check(self) -> str:
        return self.case.check

    def is_of(self, subject: Subject) -> bool:
        """Return True if this is a failure of `subject`."""
        is_there = self.subject == subject.name and same_subject(self.location, subject.location)
        return is_there and _may_be_one_file(self.file, _file_of(subject))


@dataclass(frozen=True)
class Written:
    """The files of a failure."""

    json: Path
    script: Path | None  # None if a script cannot import the subject

    @staticmethod
    def beside(path: Path) -> Written:
        """Return the files of the reproducer at `path`, whose script may be missing."""
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
    # Writing the script inspects the user's modules and folders, and the disk may be full. The case can be replayed without it.
    except Exception:
        text = None
    return Written(path, None if text is None else beside)


_MARK: Final = b"# Written anew whenever the failure is found again, unless something above was changed: "


def _marked(text: bytes) -> bytes:
    """Append a line with a checksum, which shows if the text above it has been changed."""
    return b"%b%b%08x\n" % (text, _MARK, zlib.crc32(text))


def _is_changed(script: Path) -> bool:
    """Return True if the script has been changed since it was written."""
    try:
        text = script.read_bytes()
    except FileNotFoundError:
        return False
    return _marked(text.rpartition(_MARK)[0]) != text


def write_case(case: Case, location: str, world: str, verdict: Verdict, folder: Path, file: str = "") -> Path:
    """Store a failure of the subject declared at `location`, without a script, which would need the subject itself."""
    path = _path_of(folder, case, location, file)
    data = _encoded(case, location, world, verdict, file)
    in_folder(path, lambda: write_atomically(path, data))
    return path


def keep_interrupted(case: Case, location: str, world: str, by: str, folder: Path) -> Path:
    """Store a case that was running when `by` ended its process. A case that is already stored is left unchanged, with its failure."""
    path = _path_of(folder, case, location)
    if not path.exists():
        verdict = unjudged(f"{by} ended the process while this case ran")
        write_case(case, location, world, verdict, folder)
    return path


def read(path: Path | str) -> Reproducer:
    """Read the reproducer in a file. Raises :class:`BadReproducer`, which says what is wrong with it."""
    return _read(Path(path), Path.read_bytes)


def read_own(path: Path) -> Reproducer:
    """Read the reproducer in one of the lab's files, which must not be a symbolic link, as :func:`read` does."""
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
    # RecursionError is raised for a file with many opening brackets.
    except (msgspec.DecodeError, ValueError, TypeError, RecursionError) as error:
        raise BadReproducer(f"{path}: not a failure as adjointlab stores it: {error}") from None


def _require_schema(fields: dict[str, object]) -> None:
    """Raise `ValueError` if the schema number is missing or different: msgspec does not require the tag of a struct outside a union."""
    if "schema" not in fields:
        raise ValueError("the number of its `schema` is missing")
    if fields["schema"] != _SCHEMA:
        raise ValueError(
            f"its `schema` is {fields['schema']!r}, and this version of adjointlab reads {_SCHEMA}: another version has written it"
        )


def _refuse_unknown(given: object, known: object) -> None:
    """Raise `ValueError` if `given` has fields that are missing in `known`, which was decoded from it.

    msgspec rejects unknown fields only in structs, and a case also contains dataclasses and objects of the lab.
    """
    if isinstance(given, dict) and isinstance(known, dict):
        for name, value in given.items():
            if name not in known and value:  # `known` omits defaults
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
    """Return the file of a case in `folder`. Its name has as many digits of the digest as distinguish it from the other files there.

    Subjects with the same name, declared at different locations, may fail in the same case: each gets a separate file.
    """
    digest = case.digest
    for length in range(4, len(digest)):
        path = folder / f"{stem(case.subject, case.check)}-{digest[:length]}.json"
        if not path.exists() or _holds(path, case, location, file):
            break
    return path


def same_subject(one: str, other: str) -> bool:
    """Return True if two locations refer to the same subject, whose module may be imported under a longer or a shorter name."""
    return one == other or one.endswith(f".{other}") or other.endswith(f".{one}")


def _file_of(subject: Subject) -> str:
    """Return the file of the module that declares a subject; empty if it is not below the current folder."""
    module = sys.modules.get(subject.location.partition(":")[0])
    file = shown_path(getattr(module, "__file__", None) or os.sep)
    return "" if os.path.isabs(file) else file


def _may_be_one_file(one: str, other: str) -> bool:
    """Return False if these are two different existing files: outside packages, modules of both may have the same name."""
    return not (one and other) or one == other or not (os.path.isfile(one) and os.path.isfile(other))


def _holds(path: Path, case: Case, location: str, file: str) -> bool:
    try:
        entry = read_own(path)
    except BadReproducer:
        return False
    is_there = same_subject(entry.location, location) and _may_be_one_file(entry.file, file)
    return is_there and entry.case.key() == case.key()


def stem(subject: str, check: str) -> str:
    """Return the prefix of the file names of a check's failures."""
    return f"{_safe(subject)}-{_safe(check)}"


_MOST_BYTES: Final = 60
"""Largest length of a subject's or check's name in a file name, which most file systems limit to 255 bytes."""


def _safe(name: str) -> str:
    """Return `name` as a part of a file name, without separators and `glob` patterns, and short enough for any file system."""
    safe = "".join(char if char.isalnum() or char in "_." else "_" for char in name)
    return safe.encode()[:_MOST_BYTES].decode(errors="ignore")
