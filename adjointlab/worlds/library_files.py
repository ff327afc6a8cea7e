"""Recognizes files of Python's standard library and of installed packages, which are not the user's own code."""

from __future__ import annotations

import re
import sysconfig
from typing import Final

__all__ = ["is_of_hypothesis", "is_of_library", "is_of_standard_library"]

_STANDARD: Final = ("<frozen ", *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib")))
_FOLDERS: Final = (*_STANDARD, *(sysconfig.get_path(name) for name in ("purelib", "platlib")))
_HYPOTHESIS: Final = re.compile(r"[/\\]site-packages[/\\]hypothesis[/\\]")


def is_of_library(filename: str) -> bool:
    """Return True for a file of the standard library or of an installed package."""
    return filename.startswith(_FOLDERS) or "site-packages" in filename


def is_of_standard_library(filename: str) -> bool:
    """Return True for a file of the standard library, whose folder may also contain installed packages."""
    return filename.startswith(_STANDARD) and "site-packages" not in filename


def is_of_hypothesis(filename: str) -> bool:
    """Return True for a file of Hypothesis, which calls strategies for the lab."""
    return _HYPOTHESIS.search(filename) is not None
