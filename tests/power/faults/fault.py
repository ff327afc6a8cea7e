"""A documented fault and the check that should find it."""

from __future__ import annotations

from dataclasses import dataclass

from adjointlab.engine.subject import Subject


@dataclass(frozen=True)
class Fault:
    """A fault that happened in a public project, recreated as a linear operator.

    `key` is that of its source in docs/references.md, and `check` the name of a check that finds it.
    """

    key: str
    what: str
    subject: Subject
    check: str
