"""Parts of every script of a failing case: its first lines, the names of what it imports, and where that lies.

No text from outside enters a script but as a literal of ASCII characters or in comments (:func:`commented`).
"""

from __future__ import annotations

import math
import os
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from adjointlab.engine.subject import Subject
from adjointlab.store.files import printable

__all__ = [
    "HEAD",
    "PATHS",
    "Name",
    "commented",
    "folders",
    "in_module",
    "literal",
    "script_name",
    "subject_name",
]

# The second line is ours and names the encoding: Python would otherwise look for a name of one in the reader's text.
HEAD = """#!/usr/bin/env python3
# -*- coding: utf-8 -*-
{findings}
#
{usage}

# fmt: off
# ruff: noqa
import sys
from pathlib import Path
"""

PATHS = """
# Where the subject and the modules that it imports were found: those of the project, as seen from this script.
for found in {folders}:
    folder = str((Path(__file__).resolve().parent / found).resolve())
    if folder not in sys.path:
        sys.path.insert(0, folder)
# On another machine: the current folder, and those that this script is in.
sys.path += ["", *map(str, Path(__file__).resolve().parents)]
"""


class Name(NamedTuple):
    """An object that a script can import: an attribute of a module, and the folder where that module is found."""

    module: str
    attribute: str
    folder: str


def commented(*texts: str) -> str:
    """Lines of comments that show `texts`, whatever is in them: what is not printable is escaped."""
    lines = [line for text in texts for line in text.splitlines() or [""]]
    return "\n".join(f"# {printable(line)}".rstrip() for line in lines)


def literal(value: object) -> str | None:
    """Python source in ASCII that makes `value`; `None` for what has no literal."""
    match value:
        case None | bool() | int() | str() if type(value).__module__ == "builtins":
            return ascii(value)
        case float():
            return repr(float(value)) if math.isfinite(value) else f"float({str(float(value))!r})"
        case complex():
            return f"complex({literal(value.real)}, {literal(value.imag)})"
        case list() | tuple():
            entries = [literal(entry) for entry in value]
            return None if None in entries else f"({''.join(f'{entry}, ' for entry in entries)})"
        case Mapping():
            pairs = [(literal(key), literal(entry)) for key, entry in value.items()]
            if any(None in pair for pair in pairs):
                return None
            return "{" + ", ".join(f"{key}: {entry}" for key, entry in pairs) + "}"
    return None


def subject_name(subject: Subject) -> Name | None:
    """Name a subject; `None` for one that no variable of its module holds, or whose module has no file."""
    module, _, name = subject.location.partition(":")
    if vars(sys.modules.get(module, subject)).get(name) is not subject:
        return None
    return in_module(module, name)


def in_module(module: str, attribute: str) -> Name | None:
    """The name of an attribute of a module that has a file: by the module's name, or by its file's where that differs."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None or not attribute.isprintable():
        return None
    path = Path(file).resolve()
    parts, stem = module.split("."), path.with_suffix("").parts
    if stem[-1] == "__init__":
        parts.append("__init__")
    if list(stem[-len(parts) :]) == parts and all(map(str.isidentifier, parts)):
        return Name(module, attribute, str(path.parents[len(parts) - 1]))
    return Name(str(path), attribute, str(path.parent))


def script_name(beside: Path) -> str:
    """The file name of the script beside that reproducer."""
    return beside.with_suffix(".py").name


_INSTALLED: Final = tuple(
    # Commands lie in "scripts", the folder that Python puts first for them.
    str(Path(sysconfig.get_paths()[key]).resolve())
    for key in ("stdlib", "platstdlib", "purelib", "platlib", "scripts")
)


def folders(names: list[Name], beside: Path) -> str:
    """The folders that a script puts on the path, the first one last: those that are on it here and no part of Python.

    `beside` is the file beside the script. A folder of the project that has their folder is named as the script sees it, for
    another checkout of the project may have the script too, and is to run its own code.
    """
    # The functions of `os.path` raise for no entry: not for one that may not be looked into, nor for one that is too long a name.
    known = [os.path.realpath(entry) for entry in sys.path if entry and os.path.isdir(entry)]
    wanted = dict.fromkeys([*(name.folder for name in names), *known])
    return str(
        literal([_seen_from(beside, entry) for entry in reversed(wanted) if not entry.startswith(_INSTALLED)])
    )


def _seen_from(file: Path, folder: str) -> str:
    """`folder` relative to that of `file`, if it is in the project whose folder has that one; else as it is."""
    own = file.resolve().parent
    return os.path.relpath(folder, own) if Path(folder).is_relative_to(own.parent) else folder
