"""Child processes that user code forks: they do not communicate in their parent's place, and do not come back from user code."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Final, NoReturn

__all__ = ["forks_cut_off", "forks_ended"]


_CUT_OFFS: Final[list[Callable[[], None]]] = []
"""The calls in a child. (Python cannot forget what it is to call in one, so it is told once.)"""


@cache
def _install() -> None:
    os.register_at_fork(after_in_child=_cut_off)


def _cut_off() -> None:
    for cut_off in _CUT_OFFS:
        cut_off()


@contextmanager
def forks_cut_off(cut_off: Callable[[], None]) -> Iterator[None]:
    """Context in which a child that is forked calls `cut_off`, to refuse or forget what it shares with its parent.

    A child has the connections of its parent but none of its threads. What it sent would come in its parent's place, and what
    it received the parent would wait for.
    """
    _install()
    _CUT_OFFS.append(cut_off)
    try:
        yield
    finally:
        _CUT_OFFS.remove(cut_off)


@contextmanager
def forks_ended(who: str) -> Iterator[None]:
    """Context for user code: a child process forked in it ends where it would leave it, however it does; `who` has forked it."""
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
    # Not sys.exit: its hooks are the parent's, and what is buffered in sys.stdout may be too.
    if isinstance(exception, SystemExit):
        code = exception.code if isinstance(exception.code, int) else int(exception.code is not None)
        os._exit(code & 0xFF)  # all that a parent sees of it; os._exit refuses what is no int of C
    how = "" if exception is None else f", by {type(exception).__name__}"
    text = f"adjointlab: a child process that {who} has forked returned from user code{how}, and ends here\n"
    with suppress(OSError):
        os.write(2, text.encode(errors="backslashreplace"))
    os._exit(int(exception is not None))
