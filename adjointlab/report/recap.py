"""The failures of a run once more, in its end; those that are one fault, seen by several checks, are one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from adjointlab.check_result import CheckResult
from adjointlab.checks.told import hints_told
from adjointlab.report.failure_text import failure_text, replay_command
from adjointlab.store.files import printable

__all__ = ["diagnosis", "grouped", "headline", "hint_texts", "recap"]


def recap(results: Sequence[CheckResult]) -> Iterator[str]:
    """The failures once more, each with the checks that see it and the command that replays it: their texts may stand far above."""
    failures = [entry for entry in results if entry.is_wrong]
    groups = grouped(failures)
    if groups:
        yield "Failures:"
    for first, *others in groups:
        checks = ", ".join(entry.result.check for entry in (first, *others))
        yield f"  {printable(first.subject)} ({checks}): {headline(first)}"
        if first.written is not None:
            yield f"    {printable(replay_command(first))}"
    if groups:
        yield ""


def grouped(failures: Sequence[CheckResult]) -> list[list[CheckResult]]:
    """Groups of failures that say the same of one subject, in the order of their first ones."""
    groups: list[list[CheckResult]] = []
    for entry in failures:
        group = next((group for group in groups if entry.says_the_same(group[0])), None)
        if group is None:
            groups.append([entry])
        else:
            group.append(entry)
    return groups


def headline(entry: CheckResult) -> str:
    """The headline of a failure; of a result that a list of known failures has, what the list says of it."""
    if entry.known:
        name = printable(f"{entry.subject} {entry.result.check}: ")
        return failure_text(entry).removeprefix(name)
    return printable(entry.result.verdict.headline)


def diagnosis(entry: CheckResult) -> str:
    """The headline of a failure, and the hints on the kind of fault."""
    return "; ".join([headline(entry), *hint_texts(entry)])


def hint_texts(entry: CheckResult) -> list[str]:
    """The hints on the kind of fault of a failure."""
    return [printable(hint.text) for hint in hints_told(entry.result.verdict)]
