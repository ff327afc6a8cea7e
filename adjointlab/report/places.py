"""Locations of user code in messages, as properties of an error that GitHub shows beside the code."""

from __future__ import annotations

import os
import re
from itertools import chain
from pathlib import Path
from typing import Final

from adjointlab.worlds.call_sites import is_lab
from adjointlab.worlds.library_files import is_of_library

__all__ = ["in_repository", "place_in"]

_FRAME: Final = re.compile(r'File "(?P<file>[^"\n]+)", line (?P<line>\d+)')
_PYTEST_FRAME: Final = re.compile(r"^(?P<file>[^\n():]+\.py):(?P<line>\d+): ", re.MULTILINE)
_SITE: Final = re.compile(r"(?:\bat |\()(?P<file>[^\n():]+\.py):(?P<line>\d+)")


def place_in(*texts: str) -> dict[str, str]:
    """Return the first location of user code in these texts as properties of an error; empty if there is none.

    In a traceback this is the innermost frame, in other texts the first location.
    """
    for text in texts:
        frames = (reversed(list(kind.finditer(text))) for kind in (_FRAME, _PYTEST_FRAME))
        for each in (*chain.from_iterable(frames), *_SITE.finditer(text)):
            file, line = os.path.abspath(each["file"]), each["line"]
            if Path(file).is_file() and not is_lab(file) and not is_of_library(file):
                return in_repository(Path(file), int(line))
    return {}


def in_repository(file: Path, line: int) -> dict[str, str]:
    """Return a location as properties of an error, relative to the root of the repository as GitHub needs it; empty outside of it."""
    workspace, absolute = os.environ.get("GITHUB_WORKSPACE"), file.resolve()
    top = Path(workspace or ".").resolve()
    if absolute.is_relative_to(top):
        return {"file": str(absolute.relative_to(top)), "line": str(line)}
    return {} if workspace else {"file": str(absolute), "line": str(line)}
