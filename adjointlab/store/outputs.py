"""Files that a user has named for results: whether they can be written over, and each by one option alone."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from adjointlab.store.files import overwrite

__all__ = ["is_replaceable", "named_twice", "write_results"]


def is_replaceable(target: str) -> bool:
    """Return True for a file that may be written more than once: a regular file, or none so far."""
    path = Path(target)
    return path.is_file() or not path.exists()


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
