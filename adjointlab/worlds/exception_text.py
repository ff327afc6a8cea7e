"""Text of exceptions, including those whose ``__str__`` raises."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

__all__ = ["causes", "in_brief", "kind_and_message", "message_of", "with_kind"]


def causes(exception: BaseException) -> Iterator[BaseException]:
    """`exception` and its causes or contexts, each once, because user code can create cycles."""
    seen: set[int] = set()
    cause: BaseException | None = exception
    while cause is not None and id(cause) not in seen:
        yield cause
        seen.add(id(cause))
        cause = cause.__cause__ or cause.__context__


def message_of(exception: BaseException) -> str:
    """``str(exception)``, or a placeholder if user code's ``__str__`` raises."""
    try:
        return str(exception)
    except KeyboardInterrupt:
        raise
    except BaseException:  # whatever user code raises, and Python's own TypeError for what is not a string
        return "(no message: its __str__ failed)"


_BRIEF: Final = 240
"""Characters of a message that a headline shows."""


def with_kind(kind: str, message: str) -> str:
    """Text of an exception: the name of its class, followed by its message unless that is empty, as for a bare ``assert``."""
    return f"{kind}: {message}" if message else kind


def kind_and_message(error: BaseException) -> str:
    """Text of an exception: the name of its class, followed by its message if it has one."""
    return with_kind(type(error).__name__, message_of(error))


def in_brief(message: str) -> str:
    """The first line of an exception's message, shortened for a headline; the traceback shows all of it.

    A first line that ends with a colon only announces the next one, so that is shown too.
    """
    first, *others = message.strip().splitlines() or [""]
    if first.endswith(":") and others:
        first, others = f"{first} {others[0].strip()}", others[1:]
    if len(first) > _BRIEF:
        return f"{first[:_BRIEF].rpartition(' ')[0] or first[:_BRIEF]} …"
    return f"{first} …" if others else first
