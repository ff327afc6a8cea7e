"""Notes on exceptions of user code: how it came to be called, which the exception itself does not say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["noted"]


@contextmanager
def noted(note: str) -> Iterator[None]:
    """Context that adds `note` to an exception that is raised in it, unless the note is empty."""
    try:
        yield
    except Exception as error:
        if note:
            error.add_note(note)
        raise
