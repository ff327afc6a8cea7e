"""A planted bug: a faulty operator or layer, and the check that is asked to find it."""

from __future__ import annotations

from dataclasses import dataclass

from adjointlab.engine.subject import Subject


@dataclass(frozen=True)
class PlantedBug:
    """A bug, on how many ranks it first shows and, where it happened in a public project, the key of its `source`."""

    bug: str
    subject: Subject
    check: str
    least_ranks: int = 2
    source: str = ""


def recreated(source: str, bug: str, subject: Subject, check: str) -> PlantedBug:
    """A documented fault of a public project, recreated."""
    return PlantedBug(bug, subject, check, source=source)
