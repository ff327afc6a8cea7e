"""The exit code of the process, which no user code takes over by ending the process itself.

``os._exit`` raises nothing and runs no handlers, and ``os.execv`` puts another program in the process's place: either would
end a command with an exit code that its verdicts have not earned. Both are replaced for this process, not for its forks.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import Any, Final, NoReturn

from adjointlab.exit_codes import ExitCode
from adjointlab.worlds.call_sites import is_lab

__all__ = ["earn", "install_exit_guard"]

_LEAVING: Final = ("_exit", "execv", "execve")  # the other forms of exec call one of these two

_earned: int | None = None
_stderr = 2


def install_exit_guard(stderr: int = 2) -> None:
    """Have this process end with what it has earned, whoever ends it; messages go to the descriptor `stderr`."""
    global _stderr
    _stderr = stderr
    for name in _LEAVING:
        original = getattr(os, name)
        if not hasattr(original, "is_guarded"):
            setattr(os, name, _guarded(name, original, os.getpid()))


def earn(code: int) -> None:
    """Set the exit code that the verdicts so far have earned; before the first it is that of an unjudged check."""
    global _earned
    _earned = code


def _guarded(name: str, original: Callable[..., NoReturn], guarded_pid: int) -> Callable[..., NoReturn]:
    leave = os._exit

    def guarded(*arguments: Any, **keywords: Any) -> NoReturn:
        caller = _caller()
        if os.getpid() != guarded_pid or (caller and is_lab(caller.rpartition(":")[0])):
            original(*arguments, **keywords)
        shown = ", ".join([*map(repr, arguments), *(f"{key}={value!r}" for key, value in keywords.items())])
        code = ExitCode.UNJUDGED if _earned is None else _earned
        text = f"adjointlab: user code ended the process by os.{name}({shown}){caller and f' at {caller}'}"
        rest = "; what was not judged by then is not judged" if code == ExitCode.UNJUDGED else ""
        try:
            sys.stdout.flush()
            os.write(_stderr, f"{text}{rest}; exit code {code}\n".encode(errors="backslashreplace"))
        finally:
            leave(code)

    guarded.is_guarded = True  # type: ignore[attr-defined]
    return guarded


def _caller() -> str:
    """Return "file:line" of what called the guarded function; empty where only Python itself did."""
    try:
        frame = sys._getframe(2)
    except ValueError:  # an exit hook: the interpreter calls it without a frame
        return ""
    return (
        ""
        if frame.f_code.co_filename == threading.__file__
        else f"{frame.f_code.co_filename}:{frame.f_lineno}"
    )
