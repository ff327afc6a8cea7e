"""Reproducers: a failing case as a JSON file that replays, and as a script that stands alone.

The JSON file is data: it is checked against a schema (:class:`Reproducer`), nothing in it is evaluated or unpickled, and
what it says of its subject is a name only. A JSON file of other content is never overwritten, nor is a script that was changed.
"""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Final

import msgspec
from msgspec import structs

from adjointlab.checks.check import check_named
from adjointlab.checks.verdict import Verdict, unjudged
from adjointlab.engine.case import Case
from adjointlab.engine.search_result import SearchResult
from adjointlab.engine.subject import Subject
from adjointlab.store.files import encodable, in_folder, paths_in, read_file, write_atomically
from adjointlab.store.running_case import is_record
from adjointlab.store.script import script
from adjointlab.worlds.world import WorldName

__all__ = [
    "BadReproducer",
    "Reproducer",
    "Written",
    "damaged",
    "homeless",
    "read",
    "same_subject",
    "stored",
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

    @property
    def subject(self) -> str:
        return self.case.subject

    @property
    def check(self) -> str:
        return self.case.check


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
    path = write_case(case, subject.location, result.world, result.verdict, folder)
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


def write_case(case: Case, location: str, world: str, verdict: Verdict, folder: Path) -> Path:
    """Store a failure of the subject declared at `location` without a script, for which the subject would be needed."""
    path = _path_of(folder, case, location)
    data = _encoded(case, location, world, verdict)
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


def damaged(folder: Path) -> list[BadReproducer]:
    """The problem of each JSON file in `folder` that is neither a reproducer nor the record of a running case."""
    problems = []
    for path in paths_in(folder, "*.json"):
        try:
            if not is_record(path):
                _read(path, read_file)
        except BadReproducer as problem:
            problems.append(problem)
    return problems


def homeless(folder: Path, subjects: Iterable[Subject]) -> list[tuple[Path, Reproducer, str]]:
    """The failures in `folder` of which no subject is left, though one of these may be it under another name, and what has gone."""
    present, found = list(subjects), []
    for path in paths_in(folder, "*.json"):
        with suppress(BadReproducer):
            entry = _read(path, read_file)
            if gone := _gone(entry, present):
                found.append((path, entry, gone))
    return found


def _gone(entry: Reproducer, subjects: list[Subject]) -> str:
    """Name the part of the subject of `entry` that was renamed, if one of `subjects` may be it; else empty."""
    module, _, variable = entry.location.partition(":")
    namesakes = [each for each in subjects if each.name == entry.subject]
    in_place = [each for each in subjects if same_subject(entry.location, each.location)]
    if any(each.name == entry.subject for each in in_place):
        return ""
    for each in in_place:
        if _variables_of(each).get(variable) is each and not _is_named_in_the_file_of(each, entry.subject):
            return f"where {each.name} stands now"
    if namesakes and not _is_there(module):
        return "and this run finds no such module"
    homes = [
        _variables_of(each) for each in namesakes if same_subject(module, each.location.partition(":")[0])
    ]
    is_gone = variable.isidentifier() and any(home and variable not in home for home in homes)
    return "and that module has no such variable" if is_gone else ""


def _variables_of(subject: Subject) -> Mapping[str, object]:
    """The variables of the module that `subject` is declared in; none where it has not been imported."""
    module = sys.modules.get(subject.location.partition(":")[0])
    return {} if module is None else vars(module)


def _is_named_in_the_file_of(subject: Subject, name: str) -> bool:
    """Return True if the module of `subject` names `name`: of the subjects that a loop makes, a variable holds the last alone."""
    file = _variables_of(subject).get("__file__")
    try:
        return isinstance(file, str) and name in Path(file).read_text(errors="replace")
    except OSError:
        return False


def _is_there(module: str) -> bool:
    """Return True if there is a module of that name, as far as that can be told without importing anything."""
    # The lab begins the name of a file with "_" that can be no module of its own name.
    if module in sys.modules or module.startswith("_"):
        return True
    places: Sequence[str] = sys.path
    for part in module.split("."):
        spec = PathFinder.find_spec(part, places)
        if spec is None:
            return False
        # What a package without __init__.py gives as its folders asks for its parent among the imported modules.
        if spec.has_location:
            places = spec.submodule_search_locations or []
        else:
            places = [os.path.join(place, part) for place in places]
    return True


def stored(folder: Path, subject: Subject, check: str) -> list[tuple[Path, Case]]:
    """The cases of `subject` and `check` in `folder`, by file name. A file that is no reproducer is passed over: see :func:`damaged`."""
    found = []
    for path in paths_in(folder, f"{_stem(subject.name, check)}-*.json"):
        try:
            entry = _read(path, read_file)
        except BadReproducer:
            continue
        # The pattern fits too much: a subject's name may begin with another's.
        is_of_subject = entry.subject == subject.name and same_subject(entry.location, subject.location)
        if is_of_subject and entry.check == check:
            found.append((path, entry.case))
    return found


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


def _encoded(case: Case, location: str, world: str, verdict: Verdict) -> bytes:
    content = Reproducer(
        encodable(location),
        WorldName(world),
        encodable(verdict.kind),
        encodable(verdict.headline),
        tuple((encodable(label), encodable(text)) for label, text in verdict.lines),
        case.plain(),
        verdict.is_death,
    )
    return msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n"


def _path_of(folder: Path, case: Case, location: str) -> Path:
    """The file of a case in `folder`, named by as few digits of its digest as tell it from the other files there.

    Subjects of one name, declared at different locations, may fail at the same case: each has a file of its own.
    """
    digest = case.digest
    for length in range(4, len(digest)):
        path = folder / f"{_stem(case.subject, case.check)}-{digest[:length]}.json"
        if not path.exists() or _holds(path, case, location):
            break
    return path


def same_subject(one: str, other: str) -> bool:
    """Return True if two locations mean one subject: its file may be imported under a longer or a shorter name."""
    return one == other or one.endswith(f".{other}") or other.endswith(f".{one}")


def _holds(path: Path, case: Case, location: str) -> bool:
    try:
        entry = _read(path, read_file)
        return entry.case.key() == case.key() and same_subject(entry.location, location)
    except BadReproducer:
        return False


def _stem(subject: str, check: str) -> str:
    return f"{_safe(subject)}-{_safe(check)}"


_MOST_BYTES: Final = 60
"""Of a name in a file name: the commonest limit of file systems is 255 for all of it."""


def _safe(name: str) -> str:
    """`name` as a part of a file name: no folders, no patterns of `glob`, and short enough for any file system."""
    safe = "".join(char if char.isalnum() or char in "_." else "_" for char in name)
    return safe.encode()[:_MOST_BYTES].decode(errors="ignore")
