"""Spelling in messages: suggestions for misspelled words, names of types with their article, and paths."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path

__all__ = ["described_type", "did_you_mean", "from_here", "this_folder"]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return "; did you mean X?" with the known word closest to `word`; empty if none is close."""
    by_lower = {name.lower(): name for name in known}
    near = get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return f"; did you mean {by_lower[near[0]]}?" if near else ""


def described_type(value: object) -> str:
    """Return the name of the type of `value` with its article, such as "an int"; "None" for None."""
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[:1] in 'aeioAEIO' or name.startswith('ndarray') else 'a'} {name}"


def this_folder() -> str:
    """Return the path of the current folder with a trailing separator; empty if user code has removed the folder."""
    with suppress(OSError):
        return os.getcwd() + os.sep
    return ""


def from_here(path: Path) -> Path:
    """Return `path` relative to the current folder; unchanged if it lies elsewhere, or if that folder has been removed."""
    try:
        here = Path.cwd().resolve()
    except OSError:  # user code has removed it
        return path
    absolute = path.resolve()
    return absolute.relative_to(here) if absolute.is_relative_to(here) else path
