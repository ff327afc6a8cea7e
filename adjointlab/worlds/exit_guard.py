"""Replacements for the functions by which user code may end the process, so that the exit code still follows from the verdicts.

``os._exit`` raises nothing and runs no handlers, and ``os.execv`` replaces the process by another program: with either, the
exit code of a command would not reflect its verdicts. Both are replaced in this process, but not in its forks.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NoReturn

from adjointlab.exit_codes import ExitCode
from adjointlab.worlds.call_sites import is_lab

__all__ = ["HookEnded", "before_forced_end", "earn", "ended_by_user_code", "install_exit_guard"]

_LEAVING: Final = ("_exit", "execv", "execve")  # the other forms of exec call one of the last two


def install_exit_guard(stderr: int = 2, *, is_active: bool = True) -> None:
    """Make this process end with the code set by :func:`earn`, even if user code ends it; messages go to the descriptor `stderr`.

    Until a call with `is_active`, the replacements behave like the originals. Installing them early means that references that user
    code takes to these functions are guarded later.
    """
    guard = _installed_guard()
    if guard is not None:
        guard.stderr, guard.is_active, guard.is_final = stderr, is_active or guard.is_active, False
        return
    guard = _ExitGuard(stderr, os._exit, is_active)
    for name in _LEAVING:
        original = getattr(os, name)
        # The other module is posix (nt on Windows), where these functions are defined.
        for module in (os, sys.modules[original.__module__]):
            setattr(module, name, guard.replacement_of(name, original))


def earn(code: int, *, is_final: bool = False) -> None:
    """Set the exit code that follows from the verdicts so far; before the first call it is that of an unjudged check.

    If it `is_final`, the process is about to end by itself, and calls to the replaced functions no longer end it at once.
    """
    if (guard := _installed_guard()) is not None:
        guard.earned, guard.is_final = code, is_final


@contextmanager
def before_forced_end(action: Callable[[int, str], None]) -> Iterator[None]:
    """Context in which `action` is called with the exit code and the call before user code ends the process; it may take some seconds.

    The call is text such as ``os._exit(7) at file.py:8``.
    """
    guard = _installed_guard()
    if guard is None:
        yield
        return
    outer, guard.before_end = guard.before_end, action
    try:
        yield
    finally:
        guard.before_end = outer


def _installed_guard() -> _ExitGuard | None:
    """The guard of this process, an attribute of the replacements."""
    # Not read from os._exit: in a supervised process, that is yet another function, which calls ours.
    guard = getattr(os.execv, "guard", None)
    return guard if isinstance(guard, _ExitGuard) else None


class HookEnded(BaseException):
    """Raised in an `atexit` hook of user code that tries to end the process or does not return, while the process is ending anyway."""


class _ExitGuard:
    """State shared by the replacements."""

    def __init__(self, stderr: int, leave: Callable[[int], NoReturn], is_active: bool) -> None:
        self.stderr, self.is_active, self.is_final = stderr, is_active, False
        self.earned: int = ExitCode.UNJUDGED
        self.before_end: Callable[[int, str], None] | None = None
        self._leave = leave
        self._pid = os.getpid()

    def replacement_of(self, name: str, original: Callable[..., NoReturn]) -> Callable[..., NoReturn]:
        """Return the replacement of `original`, which still calls `original` for forks and for the lab itself."""

        def guarded(*arguments: object, **keywords: object) -> NoReturn:
            caller = _caller()
            is_ours = os.getpid() == self._pid and not (caller and is_lab(caller.rpartition(":")[0]))
            if not (self.is_active and is_ours):
                original(*arguments, **keywords)
            shown = [*map(repr, arguments), *(f"{key}={value!r}" for key, value in keywords.items())]
            self._end(f"os.{name}({', '.join(shown)}){caller and f' at {caller}'}")

        guarded.guard = self  # type: ignore[attr-defined]
        return guarded

    def _end(self, call: str) -> NoReturn:
        if self.is_final:
            self._say(f"user code wanted to end the process by {call}; the exit code stays {self.earned}")
            raise HookEnded
        rest = "; the checks that were left did not run" if self.earned == ExitCode.UNJUDGED else ""
        try:
            with suppress(Exception):  # user code may have closed it
                sys.stdout.flush()
            self._say(f"user code ended the process by {call}{rest}; exit code {self.earned}")
            if self.before_end is not None:
                # In another thread, because this one may hold a lock that before_end needs.
                last = threading.Thread(target=self.before_end, args=(self.earned, call), daemon=True)
                last.start()
                last.join(_SECONDS_TO_SAVE)
        finally:
            self._leave(self.earned)

    def _say(self, text: str) -> None:
        with suppress(OSError):
            os.write(self.stderr, f"adjointlab: {text}\n".encode(errors="backslashreplace"))


_SECONDS_TO_SAVE: Final = 5.0

_RECORDING: Final = str(Path(__file__).parents[1] / "supervisor" / "exit_hooks.py")
"""The file with the function that calls ours in a supervised process."""


def _caller() -> str:
    """Return "file:line" of the caller of the guarded function; empty if that is Python itself."""
    try:
        frame = sys._getframe(2)
        while frame.f_code.co_filename == _RECORDING and frame.f_back is not None:
            frame = frame.f_back
        if frame.f_code.co_filename == _RECORDING:
            return ""
    except ValueError:  # an exit hook: the interpreter calls it without a frame
        return ""
    filename = frame.f_code.co_filename
    return "" if filename == threading.__file__ else f"{filename}:{frame.f_lineno}"


def ended_by_user_code(call: str, folder: Path) -> str:
    """Message that user code has ended the run by `call` (see :func:`before_forced_end`), with paths relative to `folder`."""
    here = f" at {folder}{os.sep}"
    return f"the run is not complete: user code ended the process by {call.replace(here, ' at ')}"
