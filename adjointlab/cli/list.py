"""``adjointlab list``: a table of subjects."""

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
        return ExitCode.COHERENT  # rank 0 prints; `check` reports an import that fails on another rank
    from adjointlab.engine.discovery import find_and_note
    from adjointlab.report.tables import subject_table

    entries, nameless = or_usage_error(lambda: find_and_note(subjects or []))
    out = Output()
    out.table(subject_table(entries), wraps=False)
    for note in nameless:
        out.line(f"\n{note}")
    return ExitCode.COHERENT
