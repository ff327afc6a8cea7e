"""Failures for GitHub Actions: annotations at the lines of user code that have failed, and rows of a table."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from adjointlab.check_result import CheckResult
from adjointlab.report.failure_text import failure_text, replay_command
from adjointlab.report.github_job import error_command
from adjointlab.report.places import in_repository, place_in
from adjointlab.report.recap import by_fault, headline, hint_texts
from adjointlab.store.files import printable

__all__ = ["Failure", "error_commands", "failure_rows", "failures"]


@dataclass(frozen=True)
class Failure:
    """The texts of a failure for GitHub, which one process can hand to another."""

    fault: str
    """Equal where several checks see one fault of a subject."""
    subject: str
    check: str
    verdict: str
    replay: str
    """The command that runs the failing case again; empty where none is stored."""
    hints: str
    text: str
    place: dict[str, str]
    """File and line; empty where none is known."""


def failures(results: Iterable[CheckResult]) -> list[Failure]:
    """Those of these results that GitHub is told of."""
    return [_failure(entry) for entry in results if entry.is_wrong]


def error_commands(failures: Sequence[Failure]) -> Iterator[str]:
    """The workflow commands, a line each, that have GitHub show each fault once, beside the user's code."""
    for seen in by_fault(failures):
        first = seen[0]
        yield error_command(first.text, **first.place, title=printable(f"{first.subject} {_checks(seen)}"))


def failure_rows(failures: Sequence[Failure]) -> Iterator[str]:
    """Rows of a table in Markdown: subject, checks, verdict, the command that replays the failure, and hints on the kind of fault."""
    for seen in by_fault(failures):
        first = seen[0]
        replay = first.replay and f"`{first.replay}`"
        cells = (printable(first.subject), _checks(seen), first.verdict)
        yield f"| {' | '.join(map(_cell, cells))} | {replay} | {_cell(first.hints)} |"


def _checks(failures: Sequence[Failure]) -> str:
    return ", ".join(each.check for each in failures)


def _failure(entry: CheckResult) -> Failure:
    return Failure(
        entry.fault,
        entry.subject,
        entry.result.check,
        headline(entry),
        "" if entry.written is None else printable(replay_command(entry)),
        "; ".join(hint_texts(entry)),
        _text(entry),
        _place(entry),
    )


def _text(entry: CheckResult) -> str:
    """The text of a failure, with the hints on the kind of fault in its second lines: GitHub folds long ones."""
    first, *rest = failure_text(entry).split("\n")
    return "\n".join([first, *(f"  {hint}" for hint in hint_texts(entry)), *rest])


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
