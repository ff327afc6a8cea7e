"""Discovery of subjects: among the installed ones, in a module, or in a file."""

from __future__ import annotations

import gc
import importlib
import inspect
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import FrameType, ModuleType
from typing import Final, NamedTuple

from adjointlab.checks.check import all_checks
from adjointlab.engine.declaring import how_to_declare, how_to_declare_in, is_operator
from adjointlab.engine.noted import declarations
from adjointlab.engine.subject import Subject
from adjointlab.engine.user_modules import (
    FORMS,
    NotFound,
    load_entry_point,
    load_file,
    load_module,
    shown_name,
    shown_path,
)
from adjointlab.quantities import counted
from adjointlab.spelling import described_type, did_you_mean
from adjointlab.worlds.collection_thresholds import few_collections

__all__ = [
    "GROUP",
    "Found",
    "NotFound",
    "find",
    "find_and_note",
    "find_subject",
    "found_as",
    "installed",
    "require_own_names",
]

GROUP = "adjointlab.subjects"
"""The entry-point group whose modules hold subjects."""

UNAVAILABLE = "UNAVAILABLE"
"""The name of a text in an entry point's module that says why some of its subjects are not available here, and how to get them."""


@dataclass(frozen=True)
class Found:
    """A subject, and its name on a command line."""

    subject: Subject
    reference: str
    is_installed: bool  # declared by an entry point, so that it is found without being named

    @property
    def is_built_in(self) -> bool:
        """True for a subject of the lab itself."""
        return self.subject.location.startswith("adjointlab.")


class _Search(NamedTuple):
    """The subjects that a reference leads to, and the modules all of whose subjects it asks for."""

    found: list[Found]
    modules: list[ModuleType]


def find(references: Sequence[str]) -> list[Found]:
    """The subjects that `references` name, each once; all installed ones if there are no references.

    Raises :class:`NotFound`, also for a module in which a subject has replaced another of the same name.
    """
    return find_and_note(references)[0]


def find_and_note(references: Sequence[str]) -> tuple[list[Found], list[str]]:
    """As :func:`find`; also notes on the requested modules: their subjects that no variable names, and their :data:`UNAVAILABLE`."""
    with declarations() as declared, few_collections():
        searches = [_find(each, declared) for each in references] if references else [_find_installed()]
    found = _distinct(entry for search in searches for entry in search.found)
    if not found:
        raise NotFound(
            f"no subjects are installed (no entry points in the group {GROUP}); name one: adjointlab check "
            "package.module:name, or path/to/file.py:name"
        )
    modules = {id(module): module for search in searches for module in search.modules}.values()
    for module in modules:
        require_own_names(module, declared)
    notes = (note for module in modules for note in (_nameless(module, declared), _reason(module)))
    return found, [note for note in notes if note]


def find_subject(reference: str) -> Subject:
    """The one subject that `reference` names. Raises :class:`NotFound`, also if it names several."""
    found = find([reference])
    if found[1:]:
        raise NotFound(
            f"{reference} names {len(found)} subjects: {', '.join(entry.reference for entry in found)}"
        )
    return found[0].subject


def installed() -> list[Found]:
    """The subjects that installed packages declare by entry points, operators before layers. Raises :class:`NotFound` for a broken one."""
    return _find_installed().found


def _find_installed() -> _Search:
    found, modules = [], []
    for entry in sorted(_entries(), key=lambda entry: (entry.value, entry.name)):
        target = load_entry_point(entry)
        if isinstance(target, Subject):
            found.append(Found(target, entry.value, True))
        elif isinstance(target, ModuleType):
            modules.append(target)
            found += [Found(value, f"{target.__name__}:{name}", True) for name, value in _subjects(target)]
        else:
            raise NotFound(
                f"the entry point {entry.name} = {entry.value} is {described_type(target)}, not a module with subjects "
                "or a subject"
            )
    return _Search(sorted(_distinct(found), key=lambda entry: entry.subject.is_layer), modules)


def found_as(subject: Subject, tests: tuple[Path, str] | None = None) -> Found:
    """The command-line name of a given `subject`; the file and name of its `tests` if no variable refers to it."""
    module, _, name = subject.location.rpartition(":")
    package = module.rpartition(".")[0]
    for entry in _entries():
        # The module of an entry point may collect the subjects of other modules of its package. Entry points of other
        # packages are not imported: they may be slow or broken, and nobody asked for them.
        is_near = entry.module == module or (package and entry.module.rpartition(".")[0] == package)
        if not is_near:
            continue
        for variable, value in _subjects(importlib.import_module(entry.module)):
            if value is subject:
                return Found(subject, f"{entry.module}:{variable}", True)
    file = getattr(sys.modules.get(module), "__file__", None)
    if subject.place is None and tests is not None:
        return Found(subject, f"{shown_path(str(tests[0]))}:{tests[1]}", False)
    if subject.place is None:
        # The file of the user's function, though a decorator may have wrapped it.
        file = inspect.getsourcefile(inspect.unwrap(subject.draws))
    return Found(subject, f"{shown_path(file) if file else module}:{name}", False)


def _entries() -> Iterable[EntryPoint]:
    return entry_points(group=GROUP)


def _find(reference: str, declared: Sequence[Subject]) -> _Search:
    """The subjects of a reference. If a module has none, the error names those `declared` during the import under any name."""
    source, colon, name = reference.replace("::", ":").rpartition(":")  # "::" as in pytest
    # A colon that is not followed by a name, such as that of a drive letter, belongs to the path. Reports add a variable in brackets.
    if not colon or not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*(\[\w+\])?", name):
        source, name = reference, ""
    is_file = source.endswith(".py") or os.sep in source
    if not (is_file or name or "." in source):
        named = [entry for entry in installed() if entry.subject.name == source]
        if named:
            return _Search(named, [])
    module = load_file(Path(source), reference) if is_file else load_module(source, reference)
    if module is None:
        raise _no_module(source)
    origin = source if is_file else module.__name__
    is_installed = module.__name__ in {entry.module for entry in _entries()}
    if name:
        require_own_names(module, declared)
    subjects = _attribute(module, name, origin) if name else _subjects(module)
    if not subjects:
        nameless = _nameless(module, declared) or _files_of(module)
        raise NotFound(f"{origin} has no subjects; {nameless or how_to_declare_in(module)}")
    found = [Found(subject, f"{origin}:{attribute}", is_installed) for attribute, subject in subjects]
    return _Search(found, [] if name else [module])


def _files_of(module: ModuleType) -> str:
    """Advice to name the files of a folder, such as one of tests; empty for a module that defines something itself."""
    if any(getattr(value, "__module__", None) == module.__name__ for value in vars(module).values()):
        return ""
    for folder in map(Path, getattr(module, "__path__", ())):
        if any(file.name != "__init__.py" for file in folder.glob("*.py")):
            return f"it is a folder: name the files that have some, such as {shown_path(str(folder))}/*.py"
    return ""


def _reason(module: ModuleType) -> str:
    """The text :data:`UNAVAILABLE` of a module; empty if it has none."""
    return str(getattr(module, UNAVAILABLE, ""))


def _attribute(module: ModuleType, name: str, origin: str) -> list[tuple[str, Subject]]:
    """The subject that a module has under a name, or those of the operator that it has there."""
    value = _value(module, name, origin)
    if isinstance(value, Subject):
        return [(name, value)]
    if (tested := _tested_by(value)) is not None:
        by_variable = [(attribute, each) for attribute, each in _subjects(module) if each is tested]
        return by_variable or [(name, tested)]
    if is_operator(value):
        # The operator's own module first: its author most likely put the subject there.
        declared = [
            (attribute, subject) for attribute, subject in _subjects(module) if subject.target is value
        ]
        if declared:
            return declared
        others = [entry for entry in installed() if entry.subject.target is value]
        if others:
            return [(entry.subject.draws.__name__, entry.subject) for entry in others]
        raise NotFound(
            f"{origin}:{name} is an operator, and nothing says how to draw its cases; "
            f"{how_to_declare(value, name, module)}"
        )
    kind = "class" if inspect.isclass(value) else type(value).__name__
    references = _elsewhere(module, origin, name, value)
    advice = f"its subject is {references}" if references else how_to_declare(value, name, module)
    raise NotFound(f"{origin}:{name} is a {kind}, not a subject; {advice}")


def _value(module: ModuleType, name: str, origin: str) -> object:
    """The object that a module has under a name, which may be dotted."""
    value: object = module
    for part in name.split("."):
        if not hasattr(value, part):
            if references := _elsewhere(module, origin, name):
                raise NotFound(
                    f"{origin}:{name} is not a variable; the subject that reports call {name} is {references}"
                )
            names = [attribute for attribute, _ in _subjects(module)]
            called = [each for each, subject in _subjects(module) if did_you_mean(name, [subject.name])]
            near = did_you_mean(name, names) or (f"; did you mean {called[0]}?" if called else "")
            known = f"its subjects are: {', '.join(names) or 'none'}{near}"
            raise NotFound(f"{origin} has no {name}; {_reason(module) or known}")
        value = getattr(value, part)
    return value


def _tested_by(value: object) -> Subject | None:
    """The subject of a test class that `coherence_tests` has made, or of a subclass; None for anything else."""
    classes = value.__mro__ if inspect.isclass(value) else ()
    tests = (each for each_class in classes for each in vars(each_class).values())
    subjects = (vars(each).get("coherence", (None,))[0] for each in tests if inspect.isfunction(each))
    return next((subject for subject in subjects if isinstance(subject, Subject)), None)


def _elsewhere(module: ModuleType, origin: str, name: str, value: object = None) -> str:
    """The references of the subjects of `module` that are called `name` in reports, or that check `value`; empty if there are none."""
    return " or ".join(
        f"{origin}:{variable}"
        for variable, subject in _subjects(module)
        if name in (subject.name, subject.label)
        or (value is not None and any(value is each for each in (subject.target, *subject.pair)))
    )


def _subjects(module: ModuleType) -> list[tuple[str, Subject]]:
    return [(name, value) for name, value in vars(module).items() if isinstance(value, Subject)]


_DEPTH: Final = 3
"""Depth of nested containers, and of attributes of classes, to which subjects are searched for."""


def require_own_names(module: ModuleType, declared: Sequence[Subject]) -> None:
    """Raise :class:`NotFound` if a subject `declared` in `module` has been replaced by another of its name, and would not be checked."""
    kept = {id(each) for value in list(vars(module).values()) for each in _held(value, module, _DEPTH)}
    rebound = _rebound(module, declared, kept)
    for each in rebound:
        name = each.draws.__name__
        taker = vars(module).get(name)
        if isinstance(taker, Subject) and _is_kept_by_none_but(each, declared, rebound):
            raise NotFound(
                f"{shown_name(module)}: two subjects are called {name} ({each.name}, {taker.name}), and only the last one "
                "would be checked; bind each to a different name in the module"
            )


def _is_kept_by_none_but(subject: Subject, *lists: Sequence[Subject]) -> bool:
    """Return True if only these lists refer to `subject`; a user's registry, say, may hold it without a name."""
    gc.collect()  # test classes that have lost their names too
    keepers = [each for each in gc.get_referrers(subject) if not isinstance(each, FrameType)]
    return all(any(keeper is each for each in lists) for keeper in keepers)


def _rebound(module: ModuleType, declared: Sequence[Subject], kept: set[int]) -> list[Subject]:
    """The subjects that are `declared` in `module` and neither have a name there nor are `kept` otherwise."""
    kept = kept | {id(value) for _, value in _subjects(module)}
    return [each for each in declared if each.draws.__module__ == module.__name__ and id(each) not in kept]


def _nameless(module: ModuleType, declared: Sequence[Subject]) -> str:
    """A line on the subjects of `module` to which none of its names refers; empty if there are none.

    They are in containers or classes, including test classes, or were `declared` in the module under a name that was rebound.
    """
    named = {id(value) for _, value in _subjects(module)}
    places: list[str] = []
    for name, value in list(vars(module).items()):
        held = {id(each): each for each in _held(value, module, _DEPTH)}
        inside = [each for key, each in held.items() if key not in named]
        named |= held.keys()
        if inside:
            places.append(f"{_counted(inside)} in `{name}`")
    if rebound := _rebound(module, declared, named):
        places.append(f"{_counted(rebound)} to which no name refers any more")
    if not places:
        return ""
    return f"{shown_name(module)}: {', '.join(places)}: not checked; bind each to a name of its own in the module"


def _counted(subjects: Sequence[Subject]) -> str:
    names = ", ".join(dict.fromkeys(each.name for each in subjects))
    return f"{counted(len(subjects), 'subject')} ({names})"


def _held(value: object, module: ModuleType, depth: int) -> Iterator[Subject]:
    """The subjects in a container, or in a class of `module`, which may be a test class."""
    inside: Iterable[object] = ()
    if isinstance(value, dict):
        inside = list(value.values())
    elif isinstance(value, list | tuple | set | frozenset):
        inside = list(value)
    elif isinstance(value, type) and value.__module__ == module.__name__:
        inside = [*vars(value).values(), _tested_by(value)]
    for each in inside if depth else ():
        if isinstance(each, Subject):
            yield each
        else:
            yield from _held(each, module, depth - 1)


def _no_module(name: str) -> NotFound:
    found, modules = _find_installed()
    names = [entry.subject.name for entry in found]
    near = did_you_mean(name, names)
    if name in names:
        near = f"; {name} alone is the name of an installed subject"
    if name in all_checks():
        near = f"; {name} is a check: say --check {name}"
    reasons = "".join(f"; {text}" for module in modules if (text := _reason(module)))
    return NotFound(f"there is no module or installed subject {name}{reasons}{near or f'; {FORMS}'}")


def _distinct(found: Iterable[Found]) -> list[Found]:
    return list({id(entry.subject): entry for entry in found}.values())
