"""Reporting to GitHub Actions: errors of a whole run, and the job's summary. Imports no array library, so that any command can use it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from adjointlab.report.places import place_in
from adjointlab.store.files import printable

__all__ = ["Problem", "error_command", "is_github", "tell_github"]

Problem: TypeAlias = tuple[str, ...]
"""A message about a run as a whole, followed by texts that name the location, if the message does not."""

_MOST: Final = 10
"""Number of errors of a step that GitHub shows; it drops the others."""


def is_github(environment: Mapping[str, str]) -> bool:
    """Return True in a job of GitHub Actions."""
    return environment.get("GITHUB_ACTIONS") == "true"


def error_command(message: str, **properties: str) -> str:
    """Return the workflow command, one line, with which GitHub shows an error. `properties` are its title, file and line."""
    shown = ",".join(f"{name}={_property(value)}" for name, value in properties.items())
    return f"::error {shown}::{_data(message)}"


def tell_github(
    say: Callable[[str], None],
    heading: str,
    problems: Sequence[Problem],
    counts: str = "",
    commands: Sequence[str] = (),
    rows: Sequence[str] = (),
) -> None:
    """Report a run to GitHub: print its problems and failures as errors, and add a section to the job's summary.

    `say` prints a line. `commands` and `rows` are those of the failures (:mod:`adjointlab.report.github`), `heading` distinguishes
    the runs of one job, and `counts` is the line with the counts of its results.
    """
    for line in _folded([*(_run_error(*problem) for problem in problems), *commands]):
        say(line)
    try:
        _add_to_summary(_job_summary([message for message, *_ in problems], counts, rows), heading)
    except OSError as error:
        say(f"adjointlab: the job's summary cannot be written: {error}")


def _run_error(message: str, *evidence: str) -> str:
    return error_command(message, **place_in(message, *evidence), title="adjointlab")


def _folded(commands: Sequence[str]) -> list[str]:
    """Return as many commands as GitHub shows; if some are left out, the last one says how many."""
    if len(commands) <= _MOST:
        return list(commands)
    left = len(commands) - _MOST + 1
    return [
        *commands[: _MOST - 1],
        _run_error(f"{left} more failures: see the summary of the job, or its log"),
    ]


def _job_summary(messages: Sequence[str], counts: str, rows: Sequence[str]) -> str:
    """Return Markdown with the problems of the run as a whole, the counts, and a table of the failures."""
    head = ["", "| subject | check | verdict | replay | kind of fault |", "|---|---|---|---|---|"]
    return "\n".join([*map(_quoted, messages), printable(counts, keep="\n"), *(head if rows else []), *rows])


def _quoted(text: str) -> str:
    """Return a message as a verbatim paragraph of the summary."""
    return f"```text\n{printable(text, keep=chr(10)).replace('`' * 3, '` ` `')}\n```\n"


def _add_to_summary(markdown: str, heading: str) -> None:
    if path := os.environ.get("GITHUB_STEP_SUMMARY"):
        with Path(path).open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"### {': '.join(filter(None, ['adjointlab', heading]))}\n\n{markdown.rstrip()}\n\n")


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
