"""The ways in which user code may end a process, replaced by ones that keep the exit code that the verdicts have earned.

``os._exit`` raises nothing and runs no handlers, and ``os.execv`` puts another program in the process's place: either would
end a command with an exit code that its verdicts have not earned. Both are replaced for this process, not for its forks.
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

_LEAVING: Final = ("_exit", "execv", "execve")  # the other forms of exec call one of these two


def install_exit_guard(stderr: int = 2, *, is_active: bool = True) -> None:
    """Have this process end with what it has earned, whoever ends it; messages go to the descriptor `stderr`.

    Until a call with `is_active` the functions do what they did; but user code that gets hold of them has those that will not.
    """
    guard = _installed_guard()
    if guard is not None:
        guard.stderr, guard.is_active, guard.is_final = stderr, is_active or guard.is_active, False
        return
    guard = _ExitGuard(stderr, os._exit, is_active)
    for name in _LEAVING:
        original = getattr(os, name)
        # The other module is posix, from which os has its functions; nt elsewhere.
        for module in (os, sys.modules[original.__module__]):
            setattr(module, name, guard.replacement_of(name, original))


def earn(code: int, *, is_final: bool = False) -> None:
    """Set the exit code that the verdicts so far have earned; before the first it is that of an unjudged check.

    Where it `is_final`, the process is about to end by itself, and nothing that calls the functions hastens that.
    """
    if (guard := _installed_guard()) is not None:
        guard.earned, guard.is_final = code, is_final


@contextmanager
def before_forced_end(action: Callable[[int, str], None]) -> Iterator[None]:
    """Context in which `action` is called before user code ends the process, with the exit code and the call; it has some seconds.

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
    """The guard of this process. The functions that it replaces know it, so nothing else need keep it."""
    # Not os._exit: a supervised process has a function in its place that calls ours.
    guard = getattr(os.execv, "guard", None)
    return guard if isinstance(guard, _ExitGuard) else None


class HookEnded(BaseException):
    """Raised in user code that runs while the process ends by itself: a hook that wants to end it, or does not return."""


class _ExitGuard:
    """State of the functions that stand for those that end the process."""

    def __init__(self, stderr: int, leave: Callable[[int], NoReturn], is_active: bool) -> None:
        self.stderr, self.is_active, self.is_final = stderr, is_active, False
        self.earned: int = ExitCode.UNJUDGED
        self.before_end: Callable[[int, str], None] | None = None
        self._leave = leave
        self._pid = os.getpid()

    def replacement_of(self, name: str, original: Callable[..., NoReturn]) -> Callable[..., NoReturn]:
        """Function for user code to call instead of `original`, which forks and the lab itself still reach by it."""

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
                # In a thread of its own: this one may hold a lock that it needs.
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
"""The file with the function that stands before ours in a supervised process."""


def _caller() -> str:
    """Return "file:line" of what called the guarded function; empty where only Python itself did."""
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
    """A sentence on a run that user code has ended by a call (see :func:`before_forced_end`), with its place as seen from `folder`."""
    here = f" at {folder}{os.sep}"
    return f"the run is not complete: user code ended the process by {call.replace(here, ' at ')}"
