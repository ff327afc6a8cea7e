"""The failures of a run once more, in its end; those that are one fault, seen by several checks, are one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

from adjointlab.check_result import CheckResult
from adjointlab.checks.told import hints_told
from adjointlab.report.failure_text import failure_text, replay_command
from adjointlab.store.files import printable

__all__ = ["by_fault", "diagnosis", "headline", "hint_texts", "recap"]


class HasFault(Protocol):
    """A failure in some form."""

    @property
    def fault(self) -> str:
        """Equal where several checks see one fault of a subject."""


F = TypeVar("F", bound=HasFault)


def recap(results: Sequence[CheckResult]) -> Iterator[str]:
    """The failures once more, each with the checks that see it and the command that replays it: their texts may stand far above."""
    failures = [entry for entry in results if entry.is_wrong]
    groups = by_fault(failures)
    if groups:
        yield "Failures:"
    for first, *others in groups:
        checks = ", ".join(entry.result.check for entry in (first, *others))
        yield f"  {printable(first.subject)} ({checks}): {headline(first)}"
        if first.written is not None:
            yield f"    {printable(replay_command(first))}"
    if groups:
        yield ""


def by_fault(failures: Sequence[F]) -> list[list[F]]:
    """Groups of failures of one fault, in the order of their first ones."""
    groups: dict[str, list[F]] = {}
    for each in failures:
        groups.setdefault(each.fault, []).append(each)
    return list(groups.values())


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
