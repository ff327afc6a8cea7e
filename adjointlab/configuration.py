"""The table ``[tool.adjointlab]`` of pyproject.toml: defaults for the command line and for pytest alike.

::

    [tool.adjointlab]
    cases = 200
    xfails = "known_failures.txt"

The keys are the names of the options, and paths are relative to the file. The command line takes precedence.
A file that cannot be read is an error, because without its settings a run might judge less than it should.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from adjointlab.options import OPTIONS
from adjointlab.spelling import did_you_mean

__all__ = ["configured", "key"]

_FILE: Final = "pyproject.toml"
_KEYS: Final = {option.name: option for option in OPTIONS}


def key(name: str) -> str:
    """Return the prefix of a message about the key `name` of a configuration file."""
    return f"{_FILE}: [tool.adjointlab] {name}"


def configured(folder: Path) -> Mapping[str, Any]:
    """Return the values of the nearest pyproject.toml that has the table, from `folder` upwards, by the names of the options.

    Raises `ValueError`, naming the file, if it cannot be read, has an unknown key, or an illegal value.
    """
    for parent in (folder, *folder.parents):
        file = parent / _FILE
        if (table := _table(file)) is not None:
            return {key: _value(file, key, value) for key, value in table.items()}
    return {}


def _table(file: Path) -> Mapping[str, object] | None:
    if not os.path.isfile(file):  # False, too, in a folder without search permission
        return None
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8-sig"))  # editors may add a byte order mark
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror or error}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"{file} is not TOML in UTF-8: {error}") from None
    tool = content.get("tool")
    table = tool.get("adjointlab") if isinstance(tool, dict) else None
    if table is not None and not isinstance(table, dict):
        raise ValueError(f"{file}: tool.adjointlab is not a table")
    return table


def _value(file: Path, key: str, value: object) -> Any:
    option: Any = _KEYS.get(key)
    if option is None:
        raise ValueError(
            f"{file}: [tool.adjointlab] has no key {key!r}{did_you_mean(key, _KEYS)}; the keys are {', '.join(_KEYS)}"
        )
    try:
        parsed = option.parse_plain(value)
    except ValueError as problem:
        raise ValueError(f"{file}: [tool.adjointlab] {problem}") from None
    return file.parent / parsed if isinstance(parsed, Path) else parsed
