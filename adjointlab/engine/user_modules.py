"""Import of the modules and files in which users declare subjects, with messages on failures there."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Final

from adjointlab.spelling import from_here
from adjointlab.worlds.exception_text import kind_and_message
from adjointlab.worlds.interposition import follow_imports
from adjointlab.worlds.library_files import is_of_library
from adjointlab.worlds.watchdog import Overdue

__all__ = ["FORMS", "NotFound", "load_entry_point", "load_file", "load_module", "shown_name", "shown_path"]

FORMS: Final = "give package.module:name, path/to/file.py:name, a module or file alone for all its subjects, or an installed name"
"""The forms of references to subjects."""

_EXTRAS: Final = {"cupy": "gpu", "jax": "jax", "mpi4py": "mpi", "spmd_types": "spmd", "torch": "torch"}
"""Extras of adjointlab by the module that they install."""

_OWN_NAME: Final = "_adjointlab_file_"
"""Prefix of the module names that files get here."""

_LAB: Final = str(Path(__file__).parents[1]) + os.sep


class NotFound(ValueError):
    """A reference leads to no subject; the message says what to do."""


def load_entry_point(entry: EntryPoint) -> object:
    """The module or subject that an entry point names. Raises :class:`NotFound`."""
    owner = entry.dist.name if entry.dist is not None else "?"
    with _importing(f"the entry point {entry.name} = {entry.value} of {owner} cannot be loaded"):
        return entry.load()


def load_module(name: str, reference: str) -> ModuleType | None:
    """The module of that name; None if there is none. Raises :class:`NotFound`, whose message names the `reference`."""
    if not all(part.isidentifier() for part in name.split(".")):
        raise NotFound(f"{reference} is not the name of a subject; {FORMS}")
    _make_importable(Path.cwd())
    with _importing(f"{name} cannot be imported"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if not (error.name and f"{name}.".startswith(f"{error.name}.")):
                raise
    return None


def load_file(path: Path, reference: str) -> ModuleType:
    """The module of a file, under the name by which its package imports it. Raises :class:`NotFound`, whose message names the `reference`."""
    if path.suffix != ".py" or not os.path.isfile(path):
        is_folder = os.path.isdir(path)
        what = "it is a folder; give a Python file" if is_folder else "there is no Python file of that name"
        raise NotFound(f"{reference}: {what}; {FORMS}")
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
    # A dot in a file's name must not be taken for a package separator. A dash or a blank is harmless, and pytest keeps them too.
    if name in sys.modules or not all(re.fullmatch(r"[\w -]+", part) for part in parts):
        name = own
    with _importing(f"{path} cannot be imported"):
        if "." in name:
            # Part of a package: it may import other parts of it.
            module = importlib.import_module(name)
            if _is_from(module, file):
                return module
            name = own
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        # Registered before it runs: pickles between processes refer to classes by their module.
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            sys.modules.pop(name, None)  # it may have removed itself
            raise
    return module


@contextmanager
def _importing(problem: str) -> Iterator[None]:
    """Turn any exception that user code raises on import into :class:`NotFound`, including ``SystemExit`` and pytest's ``skip``."""
    follow_imports()
    try:
        yield
    except (NotFound, KeyboardInterrupt, Overdue):
        raise
    except BaseException as error:
        raise NotFound(f"{problem}: {_brief(error)}{_advice(error)}") from error


def _advice(error: BaseException) -> str:
    """Advice on how to make the missing module importable; empty if there is none."""
    if type(error) is ImportError and "no known parent package" in str(error):
        return "; name it as a module, package.module:name: in a folder without __init__.py a file is not part of a package"
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
    """A unique module name for `file`, for when its natural name is taken by another module, or is not a legal one."""
    # Derived from the path relative to the current folder, so that stored failures fit in another checkout too.
    for text in (shown_path(str(file)), str(file)):
        # It must be the same on all ranks, so not from hash(), which Python salts in each process.
        name = f"{_OWN_NAME}{hashlib.sha256(os.fsencode(text)).hexdigest()[:12]}"
        if name not in sys.modules or _is_from(sys.modules[name], file):
            break  # else the current folder has changed since another file of the same relative path was loaded
    return name


def _is_from(module: ModuleType, file: Path) -> bool:
    origin = getattr(module, "__file__", None)
    return origin is not None and Path(origin).resolve() == file


def _make_importable(folder: Path) -> None:
    """Put `folder` on ``sys.path``, as ``python file.py`` and ``python -m`` do with the folder of the script."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _brief(error: BaseException) -> str:
    text = kind_and_message(error)
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return f"{type(error).__name__}: {error.msg} ({shown_path(error.filename)}:{error.lineno})"
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename
    ]
    # Prefer the user's line to that of the lab or of a library that raised the error.
    outside = [frame for frame in frames if not frame.filename.startswith(_LAB)] or [
        frame for frame in frames if frame.filename != __file__
    ]
    cited = [frame for frame in outside if not is_of_library(frame.filename)] or outside
    return f"{text} ({shown_path(cited[-1].filename)}:{cited[-1].lineno})" if cited else text


def shown_name(module: ModuleType) -> str:
    """The name of a user's module, or the path of its file if its name was made here."""
    name = module.__name__
    return shown_path(str(module.__file__)) if name.startswith(_OWN_NAME) else name


def shown_path(file: str) -> str:
    """The path of a file relative to the current folder, or its full path if it is elsewhere."""
    return str(from_here(Path(file).resolve()))
