"""A job of GitHub Actions: errors of a whole run, and the summary of the job. Needs no array library, so that any command can use it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Final

from adjointlab.store.files import printable
from adjointlab.worlds.call_sites import is_lab
from adjointlab.worlds.library_files import is_of_library

__all__ = [
    "add_to_summary",
    "error_command",
    "folded",
    "in_repository",
    "is_github",
    "place_in",
    "quoted",
    "run_error",
]

_MOST: Final = 10
"""GitHub shows so many errors of a step, and drops the others."""

_FRAME: Final = re.compile(r'File "(?P<file>[^"\n]+)", line (?P<line>\d+)')
_PYTEST_FRAME: Final = re.compile(r"^(?P<file>[^\n():]+\.py):(?P<line>\d+): ", re.MULTILINE)
_SITE: Final = re.compile(r"(?:\bat |\()(?P<file>[^\n():]+\.py):(?P<line>\d+)")


def is_github(environment: Mapping[str, str]) -> bool:
    """Return True in a job of GitHub Actions."""
    return environment.get("GITHUB_ACTIONS") == "true"


def error_command(message: str, **properties: str) -> str:
    """The workflow command, a line, that has GitHub show an error: its title, and perhaps a file and a line."""
    shown = ",".join(f"{name}={_property(value)}" for name, value in properties.items())
    return f"::error {shown}::{_data(message)}"


def run_error(message: str, *evidence: str) -> str:
    """The command of an error that concerns no operator, at the line of user code that its message or the evidence names, if any does."""
    return error_command(message, **place_in(message, *evidence), title="adjointlab")


def folded(commands: Sequence[str]) -> list[str]:
    """The commands, as many as GitHub shows; the last one counts those that are left out."""
    if len(commands) <= _MOST:
        return list(commands)
    left = len(commands) - _MOST + 1
    return [
        *commands[: _MOST - 1],
        run_error(f"{left} more failures: see the summary of the job, or its log"),
    ]


def place_in(*texts: str) -> dict[str, str]:
    """File and line of user code that the first of these texts names which names one, as properties of an error; else nothing.

    Of a traceback that is the innermost frame, of other texts the first place.
    """
    for text in texts:
        frames = (reversed(list(kind.finditer(text))) for kind in (_FRAME, _PYTEST_FRAME))
        for each in (*chain.from_iterable(frames), *_SITE.finditer(text)):
            file, line = os.path.abspath(each["file"]), each["line"]
            if Path(file).is_file() and not is_lab(file) and not is_of_library(file):
                return in_repository(Path(file), int(line))
    return {}


def in_repository(file: Path, line: int) -> dict[str, str]:
    """Properties of an error that name a file as GitHub calls it, from the top of the repository; nothing for one outside of it."""
    workspace, absolute = os.environ.get("GITHUB_WORKSPACE"), file.resolve()
    top = Path(workspace or ".").resolve()
    if absolute.is_relative_to(top):
        return {"file": str(absolute.relative_to(top)), "line": str(line)}
    return {} if workspace else {"file": str(absolute), "line": str(line)}


def quoted(text: str) -> str:
    """A message as a paragraph of the summary, whatever is in it."""
    return f"```text\n{printable(text, keep=chr(10)).replace('`' * 3, '` ` `')}\n```\n"


def add_to_summary(markdown: str, heading: str = "", environment: Mapping[str, str] = os.environ) -> None:
    """Add to the summary of the job, where it has one, under a heading. Raises `OSError` where that cannot be written."""
    if path := environment.get("GITHUB_STEP_SUMMARY"):
        with Path(path).open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"### {': '.join(filter(None, ['adjointlab', heading]))}\n\n{markdown}\n")


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
