"""Failures for GitHub Actions: annotations at the lines of user code that have failed, and rows of a table."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from adjointlab.checks.told import hints_told
from adjointlab.report.failure_text import failure_text, replay_command
from adjointlab.report.github_job import error_command
from adjointlab.report.places import in_repository, place_in
from adjointlab.report.recap import grouped, headline
from adjointlab.session import CheckResult
from adjointlab.store.files import printable

__all__ = ["error_commands", "failure_rows"]


def error_commands(results: Sequence[CheckResult]) -> Iterator[str]:
    """The workflow commands, a line each, that have GitHub show each failure once, beside the user's code."""
    for first, *others in _failures(results):
        checks = ", ".join(entry.result.check for entry in (first, *others))
        title = printable(f"{first.subject} {checks}")
        yield error_command(_text(first), **_place(first), title=title)


def failure_rows(results: Sequence[CheckResult]) -> Iterator[str]:
    """Rows of a table in Markdown: subject, checks, verdict, the command that replays the failure, and hints on the kind of fault."""
    for first, *others in _failures(results):
        checks = ", ".join(entry.result.check for entry in (first, *others))
        replay = "" if first.written is None else f"`{printable(replay_command(first))}`"
        cells = (printable(first.subject), checks, headline(first))
        hints = "; ".join(printable(hint.text) for hint in hints_told(first.result.verdict))
        yield f"| {' | '.join(map(_cell, cells))} | {replay} | {_cell(hints)} |"


def _failures(results: Sequence[CheckResult]) -> list[list[CheckResult]]:
    return grouped([entry for entry in results if entry.is_reported and not entry.is_expected])


def _text(entry: CheckResult) -> str:
    """The text of a failure, with the hints on the kind of fault in its second lines: GitHub folds long ones."""
    first, *rest = failure_text(entry).split("\n")
    return "\n".join(
        [first, *(f"  {printable(hint.text)}" for hint in hints_told(entry.result.verdict)), *rest]
    )


def _place(entry: CheckResult) -> dict[str, str]:
    """File and line that the verdict names, such as where an exception was raised; else of the operator.

    Of the strategy where the declaration is wrong, or where the operator's code cannot be read.
    """
    subject, verdict = entry.found.subject, entry.result.verdict
    tracebacks_first = sorted(verdict.lines, key=lambda line: line[0] != "traceback")
    if place := place_in(*(text for _, text in tracebacks_first), verdict.headline):
        return place
    for code in (subject.draws,) if entry.is_misdeclared else (subject.target, subject.draws):
        with suppress(OSError, TypeError):
            file, line = inspect.getsourcefile(code), inspect.getsourcelines(code)[1]
            if file is not None:
                return in_repository(Path(file), line)
    return {}


def _cell(text: str) -> str:
    for sign in "\\`*_|<>[]":
        text = text.replace(sign, f"\\{sign}")
    return text.replace("\n", " ")
