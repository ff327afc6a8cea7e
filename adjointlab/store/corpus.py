"""The folder of stored failures: lookup by subject and check, damaged files, and failures whose subject is gone."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path

from adjointlab.engine.case import Case
from adjointlab.engine.subject import Subject
from adjointlab.store.files import paths_in
from adjointlab.store.reproducer import BadReproducer, Reproducer, read_own, same_subject, stem
from adjointlab.store.running_case import is_record

__all__ = ["damaged", "homeless", "stored"]


def damaged(folder: Path) -> list[BadReproducer]:
    """Return the problem of each JSON file in `folder` that is neither a reproducer nor the record of a running case."""
    problems = []
    for path in paths_in(folder, "*.json"):
        try:
            if not is_record(path):
                read_own(path)
        except BadReproducer as problem:
            problems.append(problem)
    return problems


def homeless(folder: Path, subjects: Iterable[Subject]) -> list[tuple[Path, Reproducer, str]]:
    """Return the failures in `folder` whose subject is gone, probably because one of `subjects` is it under another name.

    The third entry says what is gone.
    """
    present, found = list(subjects), []
    for path in paths_in(folder, "*.json"):
        with suppress(BadReproducer):
            entry = read_own(path)
            if gone := _gone(entry, present):
                found.append((path, entry, gone))
    return found


def _gone(entry: Reproducer, subjects: list[Subject]) -> str:
    """Describe the part of the location of `entry` that is gone, if one of `subjects` may be its subject; else return ""."""
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
    """Return the variables of the module that declares `subject`; empty if it has not been imported."""
    module = sys.modules.get(subject.location.partition(":")[0])
    return {} if module is None else vars(module)


def _is_named_in_the_file_of(subject: Subject, name: str) -> bool:
    """Return True if the source of `subject`'s module contains `name`: if a loop makes subjects, the variable holds only the last."""
    file = _variables_of(subject).get("__file__")
    try:
        return isinstance(file, str) and name in Path(file).read_text(errors="replace")
    except OSError:
        return False


def _is_there(module: str) -> bool:
    """Return True if a module of that name exists, as far as this can be found out without importing anything."""
    # A file whose module name is taken, or not legal, is imported under a name that begins with "_".
    if module in sys.modules or module.startswith("_"):
        return True
    places: Sequence[str] = sys.path
    for part in module.split("."):
        spec = PathFinder.find_spec(part, places)
        if spec is None:
            return False
        # The search locations of a namespace package are computed from its parent in `sys.modules`, which is not imported here.
        if spec.has_location:
            places = spec.submodule_search_locations or []
        else:
            places = [os.path.join(place, part) for place in places]
    return True


def stored(folder: Path, subject: Subject, check: str) -> list[tuple[Path, Case]]:
    """Return the cases of `subject` and `check` in `folder`, by file name. Skips files that are not reproducers: see :func:`damaged`."""
    found = []
    for path in paths_in(folder, f"{stem(subject.name, check)}-*.json"):
        try:
            entry = read_own(path)
        except BadReproducer:
            continue
        # The pattern may match files of another subject whose name begins with this one's.
        if entry.check == check and entry.is_of(subject):
            found.append((path, entry.case))
    return found
