"""``adjointlab list``: the subjects that there are."""

from __future__ import annotations

from adjointlab.cli.output import Output
from adjointlab.cli.parameters import Subjects
from adjointlab.cli.startup import or_usage_error
from adjointlab.exit_codes import ExitCode
from adjointlab.worlds.launch import launched_rank

__all__ = ["list_subjects"]


def list_subjects(subjects: Subjects = None) -> int:
    """List subjects, their checks, and where they are declared."""
    if launched_rank():
        return ExitCode.COHERENT  # rank 0 prints, and what fails on others of them is for `check` to tell
    from rich.table import Table

    from adjointlab.checks.check import checks_of
    from adjointlab.engine.discovery import find_and_note

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("Subject", no_wrap=True)
    table.add_column("Reference", no_wrap=True)
    table.add_column("Checks")
    entries, nameless = or_usage_error(lambda: find_and_note(subjects or []))
    for found in entries:
        table.add_row(found.subject.label, found.reference, ", ".join(checks_of(found.subject)))
    out = Output()
    out.table(table)
    for note in nameless:
        out.line(f"\n{note}")
    return ExitCode.COHERENT
