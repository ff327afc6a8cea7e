"""Common parts of the scripts of failing cases: the first lines, the names of imported objects, and the folders of their modules.

Text from outside enters a script only as an ASCII literal or in comments (:func:`commented`).
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

# The second line names the encoding: otherwise Python would look for an encoding declaration in the findings, which are user text.
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
    """An object that a script can import: a module, an attribute of it, and the folder where the module is found."""

    module: str
    attribute: str
    folder: str


def commented(*texts: str) -> str:
    """Return `texts` as comment lines, with characters that are not printable escaped."""
    lines = [line for text in texts for line in text.splitlines() or [""]]
    return "\n".join(f"# {printable(line)}".rstrip() for line in lines)


def literal(value: object) -> str | None:
    """Return an ASCII Python expression for `value`; `None` if there is none."""
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
    """Return the name of a subject; `None` if it is not a variable of its module, or if the module has no file."""
    module, _, name = subject.location.partition(":")
    if vars(sys.modules.get(module, subject)).get(name) is not subject:
        return None
    return in_module(module, name)


def in_module(module: str, attribute: str) -> Name | None:
    """Return the name of an attribute of a module, by the module's name, or by its path if that does not match; `None` without a file."""
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
    """Return the file name of the script beside the reproducer `beside`."""
    return beside.with_suffix(".py").name


_INSTALLED: Final = tuple(
    # Console scripts lie in "scripts", which Python therefore puts first on their path.
    str(Path(sysconfig.get_paths()[key]).resolve())
    for key in ("stdlib", "platstdlib", "purelib", "platlib", "scripts")
)


def folders(names: list[Name], beside: Path) -> str:
    """Return the folders that a script puts on its path, in reverse order: those on this process's path that are not part of Python.

    `beside` is the file beside the script. A folder inside the project that contains the script is given relative to the script,
    so that a copy of the script in another checkout runs that checkout's code.
    """
    # With `os.path`, whose functions raise for no entry, even one without search permission or with too long a name.
    known = [os.path.realpath(entry) for entry in sys.path if entry and os.path.isdir(entry)]
    wanted = dict.fromkeys([*(name.folder for name in names), *known])
    return str(
        literal([_seen_from(beside, entry) for entry in reversed(wanted) if not entry.startswith(_INSTALLED)])
    )


def _seen_from(file: Path, folder: str) -> str:
    """Return `folder` relative to the folder of `file`, if it is inside the parent of that folder; else unchanged."""
    own = file.resolve().parent
    return os.path.relpath(folder, own) if Path(folder).is_relative_to(own.parent) else folder
