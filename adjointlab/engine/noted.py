"""A list of the subjects declared within a context. This module imports next to nothing: the pytest plugin uses it in every run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from adjointlab.replacement import set_within

if TYPE_CHECKING:
    from adjointlab.engine.subject import Subject

__all__ = ["declarations", "note"]

_declared: ContextVar[list[Subject] | None] = ContextVar("declared", default=None)


@contextmanager
def declarations() -> Iterator[list[Subject]]:
    """Context whose value is a list of all subjects declared in it, including those that no name refers to any more."""
    noted: list[Subject] = []
    with set_within(_declared, noted):
        yield noted


def note(subject: Subject) -> None:
    """Add a subject to the list of the innermost :func:`declarations`, if there is one."""
    if (noted := _declared.get()) is not None:
        noted.append(subject)
