"""What is told of a documented fault."""

from __future__ import annotations

from dataclasses import dataclass

from adjointlab.engine.subject import Subject


@dataclass(frozen=True)
class Fault:
    """A documented fault: its number in the project's history of faults, what it is, and who is asked to find it."""

    number: str
    what: str
    subject: Subject
    check: str
