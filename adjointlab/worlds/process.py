"""What the lab puts its own in place of in its process, while user code runs: exits and Ctrl-C."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, ClassVar, Final, NoReturn

from adjointlab.exit_codes import ExitCode
from adjointlab.worlds.call_sites import is_lab

__all__ = ["Interrupts", "RepeatedInterrupt", "earn", "install_exit_guard"]

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


_ECHO: Final = 1.0
"""Seconds in which one Ctrl-C may arrive twice: from the terminal, and passed on by mpiexec."""


class Interrupts:
    """Context in which Ctrl-C is held back, but for the stretches between :meth:`allow` and :meth:`hold`.

    An interrupt that is still held back at the end is raised there. A second one is raised at once, and then the
    processes may wait for each other for ever (:attr:`is_forced`). Entering within such a context returns the outer one.
    """

    # There is one handler of signals in a process, so there is one context in force.
    _outer: ClassVar[Interrupts | None] = None

    def __init__(self) -> None:
        self.pending = False
        self.is_forced = False
        self._held = True
        self._before: Any = None
        self._last = float("-inf")

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is not threading.main_thread():
            return self  # Python allows no handlers to be set there, and calls none there
        if Interrupts._outer is not None:
            return Interrupts._outer
        # Whoever has set another handler wants to decide by itself.
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._before = signal.signal(signal.SIGINT, self._receive)
            Interrupts._outer = self
        return self

    def __exit__(self, kind: object, exception: object, traceback: object) -> None:
        if self._before is not None:
            Interrupts._outer = None
            signal.signal(signal.SIGINT, self._before)
        if self.pending and kind is None:
            raise KeyboardInterrupt

    def allow(self) -> None:
        """Let interrupts through from here on, and raise one that was held back: user code begins."""
        self._held = False
        self.take()

    def hold(self) -> None:
        """Hold interrupts back from here on: user code has ended."""
        self._held = True

    def take(self) -> None:
        """Raise an interrupt that was held back, if there was one."""
        if self.pending:
            self.pending = False
            raise KeyboardInterrupt

    def _receive(self, signal_number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if now - self._last < _ECHO:
            return
        self._last = now
        if self._held and not self.pending:
            self.pending = True
        else:
            self.is_forced = self._held
            self.pending = False
            raise KeyboardInterrupt


class RepeatedInterrupt:
    """Context in which Ctrl-C is raised at once and, if something swallows it, again by :meth:`check` or at the end.

    Python prints and drops an exception that is raised in a callback of the garbage collector (Hypothesis 6.131 and later
    has one, ``hypothesis.internal.conjecture.junkdrawer``) or in ``__del__``, and a signal's handler may run there.
    Entering within such a context, or where SIGINT has another handler, changes nothing.
    """

    _pending: ClassVar[bool] = False

    def __init__(self) -> None:
        self._is_in_force = False

    def __enter__(self) -> None:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            RepeatedInterrupt._pending = False
            signal.signal(signal.SIGINT, self._receive)
            self._is_in_force = True

    def __exit__(self, kind: type[BaseException] | None, exception: object, traceback: object) -> None:
        if not self._is_in_force:
            return
        signal.signal(signal.SIGINT, signal.default_int_handler)
        pending, RepeatedInterrupt._pending = self._pending, False
        if pending and (kind is None or not issubclass(kind, KeyboardInterrupt)):
            raise KeyboardInterrupt

    @classmethod
    def check(cls) -> None:
        """Raise the interrupt again that was swallowed, if there was one."""
        if cls._pending:
            raise KeyboardInterrupt

    @staticmethod
    def _receive(signal_number: int, frame: FrameType | None) -> None:
        RepeatedInterrupt._pending = True
        raise KeyboardInterrupt
