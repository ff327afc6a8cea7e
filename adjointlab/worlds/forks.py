"""Child processes that user code forks: they cannot communicate as their parent, and end when they would return from user code."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Final, NoReturn

__all__ = ["forks_cut_off", "forks_ended"]


_CUT_OFFS: Final[list[Callable[[], None]]] = []
"""Functions to call in a child. (`os.register_at_fork` cannot be undone, so one function that calls these is registered once.)"""


@cache
def _install() -> None:
    os.register_at_fork(after_in_child=_cut_off)


def _cut_off() -> None:
    for cut_off in _CUT_OFFS:
        cut_off()


@contextmanager
def forks_cut_off(cut_off: Callable[[], None]) -> Iterator[None]:
    """Context in which forked children call `cut_off`, to refuse or release resources shared with the parent.

    A child inherits the connections of its parent but none of its threads. A message that it sent would seem to come from the parent,
    and a message that it received would be missing there.
    """
    _install()
    _CUT_OFFS.append(cut_off)
    try:
        yield
    finally:
        _CUT_OFFS.remove(cut_off)


@contextmanager
def forks_ended(who: str) -> Iterator[None]:
    """Context for user code: a child process forked in it by `who` ends when it would leave the context, by return or exception."""
    parent = os.getpid()
    try:
        yield
    except BaseException as exception:
        if os.getpid() != parent:
            _end(who, exception)
        raise
    if os.getpid() != parent:
        _end(who, None)


def _end(who: str, exception: BaseException | None) -> NoReturn:
    """End this process with the exit code that it would have had."""
    # Not sys.exit: its hooks are the parent's, and data buffered in sys.stdout may be too.
    if isinstance(exception, SystemExit):
        code = exception.code if isinstance(exception.code, int) else int(exception.code is not None)
        os._exit(
            code & 0xFF
        )  # the part that a parent receives; os._exit rejects numbers that do not fit a C int
    how = "" if exception is None else f", by {type(exception).__name__}"
    text = f"adjointlab: a child process that {who} has forked returned from user code{how}, and ends here\n"
    with suppress(OSError):
        os.write(2, text.encode(errors="backslashreplace"))
    os._exit(int(exception is not None))
