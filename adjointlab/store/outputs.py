"""Files that a user has named for results: whether they can be written over, and each by one option alone."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from adjointlab.store.files import overwrite, why_unreachable, why_unusable

__all__ = ["is_replaceable", "is_source", "named_twice", "refused", "write_results"]


def is_replaceable(target: str) -> bool:
    """Return True for a file that may be written more than once: a regular file, or none so far."""
    return os.path.isfile(target) or not os.path.exists(target)


def is_source(target: str) -> bool:
    """Return True for a Python file: an option whose file was forgotten takes the next word of the command line for it."""
    return Path(target).suffix == ".py"


def refused(target: str) -> str:
    """A sentence on why no results can be written to `target`, as far as that can be told before; "" where they can."""
    # Not the methods of Path, which raise where a name is too long or a folder may not be searched.
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
    """A sentence on two options that name one file, by options with their files; "" where there are none, or it is a device."""
    options: dict[str, str] = {}
    for option, name in files:
        place = os.path.realpath(name)
        if place in options and is_replaceable(place):
            return f"{options[place]} and {option} both name {name}; each needs a file of its own"
        options[place] = option
    return ""


def write_results(target: str | Path, text: str) -> str:
    """Write the file `target`. A reader never sees half of it. Return the reason why that fails, and "" where it does not."""
    try:
        overwrite(Path(target), text.encode("utf-8", "backslashreplace"))
    except OSError as error:
        return f"the results cannot be written to {target}: {error.strerror or error}"
    return ""
