"""Contexts that temporarily replace the value of an attribute or a context variable.

``unittest.mock.patch.object`` replaces attributes too, but imports `asyncio`, which takes a twentieth of a command's start-up time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

__all__ = ["replaced", "set_within"]

T = TypeVar("T")

_MISSING = object()


@contextmanager
def replaced(owner: object, name: str, value: object) -> Iterator[None]:
    """Context in which the attribute `name` of a module or class is `value`, for the whole process."""
    before = vars(owner).get(name, _MISSING)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is _MISSING:
            delattr(owner, name)  # so that a class inherits it again
        else:
            setattr(owner, name, before)


@contextmanager
def set_within(variable: ContextVar[T], value: T) -> Iterator[None]:
    """Context in which `variable` has the given value in this thread."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
