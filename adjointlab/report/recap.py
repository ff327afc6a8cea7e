"""The failures of a run once more, in its end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from adjointlab.checks.verdict import Status
from adjointlab.report.failure_text import replay_command
from adjointlab.session import CheckResult
from adjointlab.store.files import printable

__all__ = ["recap"]


def recap(results: Sequence[CheckResult]) -> Iterator[str]:
    """The failures once more, each with the checks that see it and the command that replays it: their texts may stand far above."""
    failures = [
        entry
        for entry in results
        if entry.status is not Status.COHERENT and not entry.is_expected and not entry.is_misdeclared
    ]
    groups: list[list[CheckResult]] = []
    for entry in failures:
        group = next((group for group in groups if entry.says_the_same(group[0])), None)
        if group is None:
            groups.append([entry])
        else:
            group.append(entry)
    if groups:
        yield "Failures:"
    for first, *others in groups:
        name, headline = printable(first.subject), printable(first.result.verdict.headline)
        checks = ", ".join(entry.result.check for entry in (first, *others))
        yield f"  {name} ({checks}): {headline}"
        if first.written is not None:
            yield f"    {printable(replay_command(first))}"
    if groups:
        yield ""
