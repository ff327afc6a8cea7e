"""Failures for GitHub Actions: annotations at the lines of the operators, and a summary of the job."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from adjointlab.engine.subject import Subject
from adjointlab.report.failure_text import failure_text, relative, replay_command
from adjointlab.session import CheckResult
from adjointlab.store.files import printable

__all__ = ["error_commands", "is_github", "job_summary"]


def is_github(environment: Mapping[str, str]) -> bool:
    """Return True in a job of GitHub Actions."""
    return environment.get("GITHUB_ACTIONS") == "true"


def error_commands(results: Sequence[CheckResult]) -> Iterator[str]:
    """The workflow commands, a line each, that have GitHub show each failure beside the code of its operator."""
    for entry in _failures(results):
        title = f"{entry.subject} {entry.result.check}"
        place = "".join(f"{name}={_property(str(value))}," for name, value in _place(entry.found.subject))
        yield f"::error {place}title={_property(printable(title))}::{_data(failure_text(entry))}"


def job_summary(results: Sequence[CheckResult], headline: str) -> str:
    """Markdown: the counts, and a table of the failures with the commands that replay them."""
    lines = ["### adjointlab", "", headline, ""]
    if failures := list(_failures(results)):
        lines += ["| subject | check | verdict | replay |", "|---|---|---|---|"]
    for entry in failures:
        result = entry.result
        replay = "" if entry.written is None else f"`{printable(replay_command(entry))}`"
        cells = (printable(entry.subject), result.check, printable(result.verdict.headline))
        lines.append(f"| {' | '.join(map(_cell, cells))} | {replay} |")
    return "\n".join(lines) + "\n"


def _failures(results: Sequence[CheckResult]) -> Iterator[CheckResult]:
    return (entry for entry in results if entry.is_reported and not entry.is_expected)


def _place(subject: Subject) -> Iterator[tuple[str, object]]:
    """File and line of the operator; of the strategy, where the operator's code cannot be read."""
    for code in (subject.target, subject.draws):
        with suppress(OSError, TypeError):
            file, line = inspect.getsourcefile(code), inspect.getsourcelines(code)[1]
            if file is not None:
                yield from (("file", relative(Path(file))), ("line", line))
                return


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _cell(text: str) -> str:
    for sign in "\\`*_|<>[]":
        text = text.replace(sign, f"\\{sign}")
    return text.replace("\n", " ")
