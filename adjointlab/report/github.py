"""Failures for GitHub Actions: annotations at the lines of the operators, and a summary of the job."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from adjointlab.engine.subject import Subject
from adjointlab.report.failure_text import failure_text, relative, replay_command
from adjointlab.report.github_job import error_command
from adjointlab.report.recap import grouped, headline
from adjointlab.session import CheckResult
from adjointlab.store.files import printable

__all__ = ["error_commands", "failure_rows", "job_summary"]


def error_commands(results: Sequence[CheckResult]) -> Iterator[str]:
    """The workflow commands, a line each, that have GitHub show each failure once, beside the code of its operator."""
    for first, *others in _failures(results):
        checks = ", ".join(entry.result.check for entry in (first, *others))
        title = printable(f"{first.subject} {checks}")
        yield error_command(failure_text(first), **_place(first.found.subject), title=title)


def failure_rows(results: Sequence[CheckResult]) -> Iterator[str]:
    """Rows of a table in Markdown: subject, checks, verdict, and the command that replays the failure."""
    for first, *others in _failures(results):
        checks = ", ".join(entry.result.check for entry in (first, *others))
        replay = "" if first.written is None else f"`{printable(replay_command(first))}`"
        cells = (printable(first.subject), checks, headline(first))
        yield f"| {' | '.join(map(_cell, cells))} | {replay} |"


def job_summary(lines: str, rows: Sequence[str]) -> str:
    """Markdown: some lines, such as the counts, and a table of the failures with the commands that replay them."""
    table = ["", "| subject | check | verdict | replay |", "|---|---|---|---|", *rows] if rows else []
    return "\n".join([printable(lines, keep="\n"), *table]) + "\n"


def _failures(results: Sequence[CheckResult]) -> list[list[CheckResult]]:
    return grouped([entry for entry in results if entry.is_reported and not entry.is_expected])


def _place(subject: Subject) -> dict[str, str]:
    """File and line of the operator; of the strategy, where the operator's code cannot be read."""
    for code in (subject.target, subject.draws):
        with suppress(OSError, TypeError):
            file, line = inspect.getsourcefile(code), inspect.getsourcelines(code)[1]
            if file is not None:
                return {"file": str(_in_repository(Path(file))), "line": str(line)}
    return {}


def _in_repository(file: Path) -> Path:
    """`file` as GitHub calls it, from the top of the repository, which need not be this folder."""
    top = os.environ.get("GITHUB_WORKSPACE")
    if top and file.resolve().is_relative_to(Path(top).resolve()):
        return file.resolve().relative_to(Path(top).resolve())
    return relative(file)


def _cell(text: str) -> str:
    for sign in "\\`*_|<>[]":
        text = text.replace(sign, f"\\{sign}")
    return text.replace("\n", " ")
