"""Result files that a user has named: validating their names, and writing them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from adjointlab.store.files import overwrite, why_unreachable, why_unusable

__all__ = ["is_replaceable", "is_source", "named_twice", "refused", "write_results"]


def is_replaceable(target: str) -> bool:
    """Return True if the file can be written more than once: a regular file, or one that does not exist yet."""
    return os.path.isfile(target) or not os.path.exists(target)


def is_source(target: str) -> bool:
    """Return True for a Python file, which is probably the next argument, taken for the file that was left out after the option."""
    return Path(target).suffix == ".py"


def refused(target: str) -> str:
    """Return the reason why results cannot be written to `target`, as far as it can be found out in advance; "" if they can."""
    # Not with the methods of Path, which raise if a name is too long or a folder has no search permission.
    place = Path(os.path.realpath(target))
    if not os.path.isdir(place.parent):
        return f"the folder of {target} does not exist"
    if os.path.isdir(target):
        return f"{target} is a folder; name a file in it"
    if is_source(target):
        return f"{target} would be overwritten: the option takes the name of the file to write"
    if not is_replaceable(target) or os.access(place, os.W_OK):
        return ""
    problem = why_unreachable(place) or why_unusable(place.parent)
    return problem and f"{target} cannot be written: {problem}"


def named_twice(files: Iterable[tuple[str, str]]) -> str:
    """Return an error message if two options, given as pairs of option and file, name the same file, unless it is a device; else ""."""
    options: dict[str, str] = {}
    for option, name in files:
        place = os.path.realpath(name)
        if place in options and is_replaceable(place):
            return f"{options[place]} and {option} both name {name}; each needs a file of its own"
        options[place] = option
    return ""


def write_results(target: str | Path, text: str) -> str:
    """Write the file `target`; a regular file is replaced atomically. Return the reason if writing fails, else ""."""
    try:
        overwrite(Path(target), text.encode("utf-8", "backslashreplace"))
    except OSError as error:
        return f"the results cannot be written to {target}: {error.strerror or error}"
    return ""
