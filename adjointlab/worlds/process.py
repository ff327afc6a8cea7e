"""Things that a process has once and the lab replaces: the ways to end it, the handler of Ctrl-C.

``os._exit`` raises nothing and runs no handlers, and ``os.execv`` puts another program in the process's place: either would
end a command with an exit code that its verdicts have not earned. Both are replaced for this process, not for its forks.

Ctrl-C is held back while processes exchange messages, and let through where user code runs. An exception in the middle of an
exchange would leave one process waiting for what another no longer sends, and the job would hang rather than end.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import ClassVar, Final, NoReturn

from adjointlab.exit_codes import ExitCode
from adjointlab.worlds.call_sites import is_lab

__all__ = ["Interrupts", "RepeatedInterrupt", "earn", "install_exit_guard"]

_LEAVING: Final = ("_exit", "execv", "execve")  # the other forms of exec call one of these two


def install_exit_guard(stderr: int = 2) -> None:
    """Have this process end with what it has earned, whoever ends it; messages go to the descriptor `stderr`."""
    guard = _installed_guard()
    if guard is not None:
        guard.stderr = stderr
        return
    guard = _ExitGuard(stderr, os._exit)
    for name in _LEAVING:
        original = getattr(os, name)
        for module in (
            os,
            sys.modules[original.__module__],
        ):  # posix, from which os has its functions; nt elsewhere
            setattr(module, name, guard.replacement_of(name, original))


def earn(code: int) -> None:
    """Set the exit code that the verdicts so far have earned; before the first it is that of an unjudged check."""
    if (guard := _installed_guard()) is not None:
        guard.earned = code


def _installed_guard() -> _ExitGuard | None:
    """The guard of this process. The functions that it replaces know it, so nothing else need keep it."""
    guard = getattr(os._exit, "guard", None)
    return guard if isinstance(guard, _ExitGuard) else None


class _ExitGuard:
    """State of the functions that stand for those that end the process."""

    def __init__(self, stderr: int, leave: Callable[[int], NoReturn]) -> None:
        self.stderr = stderr
        self.earned: int = ExitCode.UNJUDGED
        self._leave = leave
        self._pid = os.getpid()

    def replacement_of(self, name: str, original: Callable[..., NoReturn]) -> Callable[..., NoReturn]:
        """Function for user code to call instead of `original`, which forks and the lab itself still reach by it."""

        def guarded(*arguments: object, **keywords: object) -> NoReturn:
            caller = _caller()
            if os.getpid() != self._pid or (caller and is_lab(caller.rpartition(":")[0])):
                original(*arguments, **keywords)
            shown = [*map(repr, arguments), *(f"{key}={value!r}" for key, value in keywords.items())]
            self._end(f"os.{name}({', '.join(shown)}){caller and f' at {caller}'}")

        guarded.guard = self  # type: ignore[attr-defined]
        return guarded

    def _end(self, call: str) -> NoReturn:
        rest = "; what was not judged by then is not judged" if self.earned == ExitCode.UNJUDGED else ""
        text = f"adjointlab: user code ended the process by {call}{rest}; exit code {self.earned}\n"
        try:
            sys.stdout.flush()
            os.write(self.stderr, text.encode(errors="backslashreplace"))
        finally:
            self._leave(self.earned)


def _caller() -> str:
    """Return "file:line" of what called the guarded function; empty where only Python itself did."""
    try:
        frame = sys._getframe(2)
    except ValueError:  # an exit hook: the interpreter calls it without a frame
        return ""
    filename = frame.f_code.co_filename
    return "" if filename == threading.__file__ else f"{filename}:{frame.f_lineno}"


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
        self.ends_process = False  # an interrupt that leaves this context does
        self._held = True
        self._before: Callable[[int, FrameType | None], object] | int | None = None
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
            is_interrupted = self.pending or kind is KeyboardInterrupt
            # The same Ctrl-C may come a second time, when nothing but the way out is left.
            signal.signal(
                signal.SIGINT, signal.SIG_IGN if self.ends_process and is_interrupted else self._before
            )
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
