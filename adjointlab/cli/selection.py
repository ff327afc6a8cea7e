"""Selection of the subjects and checks that a command line names."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from adjointlab.cli.startup import UsageError

if TYPE_CHECKING:
    from adjointlab.engine.discovery import Found

    Plan: TypeAlias = tuple[list[tuple[Found, str]], list[str]]

__all__ = ["selected"]


def selected(references: list[str], only: list[str] | None) -> Plan:
    """Return pairs of a subject and a check, all or those named in `only`, and notes on subjects without a name."""
    from adjointlab.checks.check import check_named, checks_of
    from adjointlab.engine.discovery import find_and_note

    found, nameless = find_and_note(references)
    for name in only or ():
        try:
            check_named(name)
        except ValueError as problem:
            raise UsageError(f"--{problem}") from None
    plan = [(entry, name) for entry in found for name in checks_of(entry.subject, only)]
    if lacking := [name for name in only or () if name not in {check for _, check in plan}]:
        raise UsageError(
            f"--check: none of the subjects has the check {', '.join(lacking)}; see adjointlab list"
        )
    return plan, nameless
