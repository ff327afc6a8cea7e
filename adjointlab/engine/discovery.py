"""Finding subjects: among the installed ones, in a module, or in a file."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import os
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Final

from adjointlab.checks.check import all_checks
from adjointlab.core.operator import LinearOperator
from adjointlab.engine.declaring import how_to_declare, how_to_declare_in
from adjointlab.engine.subject import Subject, declarations
from adjointlab.quantities import counted
from adjointlab.spelling import described_type, did_you_mean
from adjointlab.worlds.collection_thresholds import few_collections
from adjointlab.worlds.interposition import follow_imports
from adjointlab.worlds.watchdog import Overdue
from adjointlab.worlds.world import kind_and_message

__all__ = [
    "GROUP",
    "Found",
    "NotFound",
    "find",
    "find_and_note",
    "find_subject",
    "found_as",
    "installed",
]

GROUP = "adjointlab.subjects"
"""The entry-point group whose modules hold subjects."""

UNAVAILABLE = "UNAVAILABLE"
"""The name of a text in a module of an entry point: why it has fewer subjects here than it could have, and what to do for more."""

_EXTRAS: Final = {"cupy": "gpu", "jax": "jax", "mpi4py": "mpi", "spmd_types": "spmd", "torch": "torch"}
"""Extras of adjointlab by the module that they install."""

_LAB: Final = str(Path(__file__).parents[1]) + os.sep

_FORMS = "give package.module:name, path/to/file.py:name, a module or file alone for all its subjects, or an installed name"


class NotFound(ValueError):
    """A reference leads to no subject; the message says what to do."""


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


def find(references: Sequence[str]) -> list[Found]:
    """The subjects that `references` name, each once; all installed ones where there are none.

    Raises :class:`NotFound`.
    """
    return find_and_note(references)[0]


def find_and_note(references: Sequence[str]) -> tuple[list[Found], list[str]]:
    """As :func:`find`; also a note on each subject of the modules asked for that no variable names, and what :data:`UNAVAILABLE` says there."""
    modules: list[ModuleType] = []
    with declarations() as declared, few_collections():
        found = _find_all(references, modules, declared)
    distinct = {id(module): module for module in modules}.values()
    notes = (note for module in distinct for note in (_nameless(module, declared), _reason(module)))
    return found, [note for note in notes if note]


def _find_all(
    references: Sequence[str], modules: list[ModuleType], declared: Sequence[Subject]
) -> list[Found]:
    """Subjects by reference; the modules of which all subjects are asked for are added to `modules`.

    Those that are `declared` meanwhile, under whatever name, are told of where a module has no others.
    """
    if not references:
        found = _installed(modules)
        if not found:
            raise NotFound(
                f"no subjects are installed (no entry points in the group {GROUP}); name one: adjointlab check "
                "package.module:name, or path/to/file.py:name"
            )
        return found
    return _distinct(entry for reference in references for entry in _find(reference, modules, declared))


def find_subject(reference: str) -> Subject:
    """The one subject that `reference` names. Raises :class:`NotFound`, also where it names several."""
    found = find([reference])
    if found[1:]:
        raise NotFound(
            f"{reference} names {len(found)} subjects: {', '.join(entry.reference for entry in found)}"
        )
    return found[0].subject


def installed() -> list[Found]:
    """The subjects that installed packages declare by entry points, operators before layers. Raises :class:`NotFound` for a broken one."""
    return _installed([])


def _installed(modules: list[ModuleType]) -> list[Found]:
    found = []
    for entry in sorted(_entries(), key=lambda entry: (entry.value, entry.name)):
        owner = entry.dist.name if entry.dist is not None else "?"
        with _importing(f"the entry point {entry.name} = {entry.value} of {owner} cannot be loaded"):
            target = entry.load()
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
    return sorted(_distinct(found), key=lambda entry: entry.subject.is_layer)


def found_as(subject: Subject, tests: tuple[Path, str] | None = None) -> Found:
    """The name on a command line of a `subject` that is already at hand, by the file and the name of its `tests` if no variable refers to it."""
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
        return Found(subject, f"{_short(str(tests[0]))}:{tests[1]}", False)
    if subject.place is None:
        # Of what the user wrote, though a decorator has put another function around it.
        file = inspect.getsourcefile(inspect.unwrap(subject.draws))
    return Found(subject, f"{_short(file) if file else module}:{name}", False)


def _entries() -> Iterable[EntryPoint]:
    return entry_points(group=GROUP)


def _find(reference: str, modules: list[ModuleType], declared: Sequence[Subject]) -> list[Found]:
    source, colon, name = reference.replace("::", ":").rpartition(":")  # two, as pytest has them
    # A colon that no name follows, such as that of a drive letter, belongs to the path. Reports add a variable in brackets.
    if not colon or not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*(\[\w+\])?", name):
        source, name = reference, ""
    if source.endswith(".py") or os.sep in source:
        module = _load_file(Path(source), reference)
        origin = source
    else:
        named = (
            [] if name or "." in source else [entry for entry in installed() if entry.subject.name == source]
        )
        if named:
            return named
        module = _load_module(source, reference)
        origin = module.__name__
    is_installed = module.__name__ in {entry.module for entry in _entries()}
    if name:
        return [
            Found(subject, f"{origin}:{attribute}", is_installed)
            for attribute, subject in _attribute(module, name, origin)
        ]
    subjects = _subjects(module)
    if not subjects:
        nameless = _nameless(module, declared) or _files_of(module)
        raise NotFound(f"{origin} has no subjects; {nameless or how_to_declare_in(module)}")
    modules.append(module)
    return [Found(subject, f"{origin}:{attribute}", is_installed) for attribute, subject in subjects]


def _files_of(module: ModuleType) -> str:
    """Words on the files of a folder, such as one of tests; empty for a module that defines something itself."""
    if any(getattr(value, "__module__", None) == module.__name__ for value in vars(module).values()):
        return ""
    for folder in map(Path, getattr(module, "__path__", ())):
        if any(file.name != "__init__.py" for file in folder.glob("*.py")):
            return f"it is a folder: name the files that have some, such as {_short(str(folder))}/*.py"
    return ""


def _reason(module: ModuleType) -> str:
    """The text :data:`UNAVAILABLE` of a module; empty if it has none."""
    return str(getattr(module, UNAVAILABLE, ""))


def _attribute(module: ModuleType, name: str, origin: str) -> list[tuple[str, Subject]]:
    value: object = module
    for part in name.split("."):
        if not hasattr(value, part):
            if references := _elsewhere(module, origin, name):
                raise NotFound(
                    f"{origin}:{name} is no variable; the subject that reports call {name} is {references}"
                )
            names = [attribute for attribute, _ in _subjects(module)]
            called = [each for each, subject in _subjects(module) if did_you_mean(name, [subject.name])]
            near = did_you_mean(name, names) or (f"; did you mean {called[0]}?" if called else "")
            known = f"its subjects are: {', '.join(names) or 'none'}{near}"
            raise NotFound(f"{origin} has no {name}; {_reason(module) or known}")
        value = getattr(value, part)
    if isinstance(value, Subject):
        return [(name, value)]
    if (tested := _tested_by(value)) is not None:
        by_variable = [(attribute, each) for attribute, each in _subjects(module) if each is tested]
        return by_variable or [(name, tested)]
    if inspect.isclass(value) and (issubclass(value, LinearOperator) or hasattr(value, "adjoint")):
        # The operator's own module first: that is where its author put the subject.
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


def _tested_by(value: object) -> Subject | None:
    """The subject of a class of tests that `coherence_tests` has made, or of one that is derived from it; None for anything else."""
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
"""Containers in containers, and attributes of classes, to which subjects are looked for."""


def _nameless(module: ModuleType, declared: Sequence[Subject]) -> str:
    """A line on the subjects of `module` that none of its names refers to; empty if there are none.

    They are in containers or classes, or were `declared` in the module under a name that was bound again.
    """
    named = {id(value) for _, value in _subjects(module)}
    places: list[str] = []
    for name, value in list(vars(module).items()):
        held = {id(each): each for each in _held(value, module, _DEPTH)}
        inside = [each for key, each in held.items() if key not in named]
        named |= held.keys()
        if inside:
            places.append(f"{_counted(inside)} in `{name}`")
    rebound = [
        each for each in declared if each.draws.__module__ == module.__name__ and id(each) not in named
    ]
    if rebound:
        places.append(f"{_counted(rebound)} to which no name refers any more")
    if not places:
        return ""
    return (
        f"{module.__name__}: {', '.join(places)}: not checked; bind each to a name of its own in the module"
    )


def _counted(subjects: Sequence[Subject]) -> str:
    names = ", ".join(dict.fromkeys(each.name for each in subjects))
    return f"{counted(len(subjects), 'subject')} ({names})"


def _held(value: object, module: ModuleType, depth: int) -> Iterator[Subject]:
    """The subjects in a container, or in a class of `module`."""
    inside: Iterable[object] = ()
    if isinstance(value, dict):
        inside = list(value.values())
    elif isinstance(value, list | tuple | set | frozenset):
        inside = list(value)
    elif isinstance(value, type) and value.__module__ == module.__name__:
        inside = list(vars(value).values())
    for each in inside if depth else ():
        if isinstance(each, Subject):
            yield each
        else:
            yield from _held(each, module, depth - 1)


def _load_module(name: str, reference: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise NotFound(f"{reference} is not the name of a subject; {_FORMS}")
    _make_importable(Path.cwd())
    with _importing(f"{name} cannot be imported"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name and f"{name}.".startswith(f"{error.name}."):
                raise _no_module(name) from None
            raise


def _no_module(name: str) -> NotFound:
    modules: list[ModuleType] = []
    names = [entry.subject.name for entry in _installed(modules)]
    near = did_you_mean(name, names)
    if name in names:
        near = f"; {name} alone is the name of an installed subject"
    if name in all_checks():
        near = f"; {name} is a check: say --check {name}"
    reasons = "".join(f"; {text}" for module in modules if (text := _reason(module)))
    return NotFound(f"there is no module or installed subject {name}{reasons}{near or f'; {_FORMS}'}")


def _load_file(path: Path, reference: str) -> ModuleType:
    if path.suffix != ".py" or not os.path.isfile(path):
        is_folder = os.path.isdir(path)
        what = "it is a folder; give a Python file" if is_folder else "there is no Python file of that name"
        raise NotFound(f"{reference}: {what}; {_FORMS}")
    file = path.resolve()
    root, parts = file.parent, [file.stem]
    while (root / "__init__.py").is_file():
        root, parts = root.parent, [root.name, *parts]
    name = ".".join(parts)
    _make_importable(root)
    own = _name_of_its_own(file)
    for known in filter(None, map(sys.modules.get, (name, own))):
        if _is_from(known, file):
            return known
    # A dot in the name of a file begins no part of a package. A dash or a blank do no harm, and pytest leaves them too.
    if name in sys.modules or not all(re.fullmatch(r"[\w -]+", part) for part in parts):
        name = own
    with _importing(f"{path} cannot be imported"):
        if "." in name:
            # Part of a package, whose other parts it may import.
            module = importlib.import_module(name)
            if _is_from(module, file):
                return module
            name = own
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        # Registered before it runs: what is pickled between processes names its class by its module.
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            sys.modules.pop(name, None)  # it may have taken itself out
            raise
    return module


@contextmanager
def _importing(problem: str) -> Iterator[None]:
    """Turn whatever user code raises when it is imported into :class:`NotFound`, also ``SystemExit`` and pytest's ``skip``."""
    follow_imports()
    try:
        yield
    except (NotFound, KeyboardInterrupt, Overdue):
        raise
    except BaseException as error:
        raise NotFound(f"{problem}: {_brief(error)}{_advice(error)}") from error


def _advice(error: BaseException) -> str:
    """Words on how to make importable what was not found; empty where there are none."""
    if type(error) is ImportError and "no known parent package" in str(error):
        return "; name it as a module, package.module:name: in a folder without __init__.py a file is no part of a package"
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing in _EXTRAS:
        return f"; pip install 'adjointlab[{_EXTRAS[missing]}]'"
    for folder in ("src", "."):
        if missing and (
            os.path.isdir(Path(folder, missing)) or os.path.isfile(Path(folder, f"{missing}.py"))
        ):
            where = "the current folder" if folder == "." else folder
            return f"; {where} has it: install the project, or set PYTHONPATH={folder}"
    return ""


def _name_of_its_own(file: Path) -> str:
    """The name of a module of `file` where another module has the one that would be its, or where none would."""
    # As seen from this folder, so that a stored failure is its own in another checkout too.
    for text in (_short(str(file)), str(file)):
        # It must be the same on all ranks, so it does not come from hash(), which Python salts in each process.
        name = f"_adjointlab_file_{hashlib.sha256(os.fsencode(text)).hexdigest()[:12]}"
        if name not in sys.modules or _is_from(sys.modules[name], file):
            break  # the folder is the same one as when another file of that name was found
    return name


def _is_from(module: ModuleType, file: Path) -> bool:
    origin = getattr(module, "__file__", None)
    return origin is not None and Path(origin).resolve() == file


def _make_importable(folder: Path) -> None:
    """Put `folder` on the path, as ``python file.py`` and ``python -m`` do with that of the script."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _brief(error: BaseException) -> str:
    text = kind_and_message(error)
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return f"{type(error).__name__}: {error.msg} ({_short(error.filename)}:{error.lineno})"
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename
    ]
    # The user's line rather than the one of the lab that refuses it.
    outside = [frame for frame in frames if not frame.filename.startswith(_LAB)] or [
        frame for frame in frames if frame.filename != __file__
    ]
    return f"{text} ({_short(outside[-1].filename)}:{outside[-1].lineno})" if outside else text


def _short(file: str) -> str:
    path = Path(file).resolve()
    try:
        here = Path.cwd()
    except OSError:  # user code has removed it
        return str(path)
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def _distinct(found: Iterable[Found]) -> list[Found]:
    return list({id(entry.subject): entry for entry in found}.values())
