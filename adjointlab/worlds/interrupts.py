"""The signals that ask a process to end (Ctrl-C, SIGTERM and SIGHUP), their handlers, and the exceptions that these raise.

A signal is held back while processes exchange messages, and raised only where user code runs. An exception in the middle of an
exchange would leave one process waiting for a message that another no longer sends, and the job would hang rather than end.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from types import FrameType
from typing import ClassVar, Final, NoReturn, TypeAlias

from adjointlab.variables import HOOKED

__all__ = [
    "ENDING",
    "Interrupts",
    "RepeatedInterrupt",
    "Terminated",
    "ended_by",
    "install_handlers",
    "interrupt_by",
    "raise_interrupt",
    "restore",
    "signal_of",
    "signals_held",
]

ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that ask a process to end. Under a supervisor only SIGINT is handled: the others kill a rank, and the job goes on."""

_ECHO: Final = 1.0
"""Seconds in which one Ctrl-C may arrive twice: from the terminal, and passed on by mpiexec."""

_Handler: TypeAlias = Callable[[int, FrameType | None], object] | int | None


class Terminated(KeyboardInterrupt):
    """Raised for SIGTERM or SIGHUP, its argument. A `KeyboardInterrupt`, so that it has the same effect as Ctrl-C."""

    def __str__(self) -> str:
        return f"ended by {signal.Signals(signal_of(self)).name}"


def interrupt_by(number: int) -> KeyboardInterrupt:
    """The exception to raise for a signal."""
    return KeyboardInterrupt() if number == signal.SIGINT else Terminated(number)


def signal_of(exception: BaseException | None) -> int:
    """The signal for which an exception was raised."""
    return int(exception.args[0]) if isinstance(exception, Terminated) else signal.SIGINT


def ended_by(number: int) -> str:
    """Message that a signal has ended the run."""
    return f"the run was ended by {signal.Signals(number).name}, and is not complete"


def raise_interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """Default handler: raises the exception of the signal."""
    raise interrupt_by(number)


def install_handlers(receive: _Handler) -> dict[int, _Handler]:
    """Install `receive` for the signals that ask this process to end; return the replaced handlers, for :func:`restore`.

    Handlers set by other code are left alone, and so are ignored signals, as under nohup.
    """
    _reset_in_forks()
    is_job = os.environ.get(HOOKED) == str(os.getpid())
    before: dict[int, _Handler] = {}
    for number in ENDING[: 1 if is_job else None]:
        handler = signal.getsignal(number)
        if handler in (signal.default_int_handler, raise_interrupt) or (
            handler is signal.SIG_DFL and number != signal.SIGINT
        ):
            before[number] = signal.signal(number, receive)
    return before


@cache
def _reset_in_forks() -> None:
    """Restore the default action of SIGTERM and SIGHUP in forks, whose parents end them with these signals."""

    def reset() -> None:
        own = (raise_interrupt, Interrupts._receive, RepeatedInterrupt._receive)
        for number in ENDING[1:]:
            handler = signal.getsignal(number)
            if getattr(handler, "__func__", handler) in own:
                signal.signal(number, signal.SIG_DFL)

    os.register_at_fork(after_in_child=reset)


def restore(before: Mapping[int, _Handler]) -> None:
    """Put back the handlers that :func:`install_handlers` has replaced; all of them, even if one that is back already is called and raises."""
    try:
        for number, handler in before.items():
            signal.signal(number, handler)
    except BaseException:
        for number, handler in before.items():
            signal.signal(number, handler)
        raise


@contextmanager
def signals_held() -> Iterator[None]:
    """Context that must not be interrupted: the first signal that asks the process to end is handled when it exits."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    before: dict[int, _Handler] = {}
    try:
        for number in ENDING:
            if callable(signal.getsignal(number)):
                before[number] = signal.signal(number, lambda number, _: received.append(number))
        yield
    finally:
        try:
            restore(before)
        finally:
            if received and callable(handler := before[received[0]]):
                handler(received[0], None)


class Interrupts:
    """Context in which Ctrl-C, SIGTERM and SIGHUP are held back, except between :meth:`allow` and :meth:`hold`.

    An interrupt that is still held back at the end is raised there. A second one is raised at once, after which the
    processes may wait for each other for ever (:attr:`is_forced`). Nested entry returns the outer context.
    `number` is the signal that has ended the work, here or on another rank, or 0.
    """

    # Signal handlers are global to a process, so only one context is in force.
    _outer: ClassVar[Interrupts | None] = None

    def __init__(self) -> None:
        self.pending = False
        self.is_forced = False
        self.ends_process = False  # True if an interrupt that leaves this context ends the process
        self.number = 0
        self._held = True
        self._before: dict[int, _Handler] = {}
        self._last = float("-inf")

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is not threading.main_thread():
            return self  # Python sets and calls signal handlers only in the main thread
        if Interrupts._outer is not None:
            Interrupts._outer._install_again()
            return Interrupts._outer
        self._before = install_handlers(self._receive)
        if self._before:
            Interrupts._outer = self
        return self

    def __exit__(self, kind: object, exception: object, traceback: object) -> None:
        if self._before:
            Interrupts._outer = None
            restore(self._before)
            if self.ends_process and (self.number or kind is KeyboardInterrupt):
                # The same signal may arrive again while the process is ending.
                for number in self._before:
                    signal.signal(number, signal.SIG_IGN)
        if self.pending and kind is None:
            raise interrupt_by(self.number)

    def _install_again(self) -> None:
        """Reinstall the handlers if C code has replaced them: UCX, initialized with MPI, prints its state upon SIGHUP instead."""
        for number in self._before:
            if signal.getsignal(number) == self._receive:
                signal.signal(number, self._receive)

    @property
    def have_come(self) -> bool:
        """False if a KeyboardInterrupt raised by user code cannot be due to a signal.

        True also if other handlers are installed, such as user code's: the signals that they have received are unknown.
        """
        return (
            self.number != 0
            or not self._before
            or any(signal.getsignal(number) != self._receive for number in self._before)
        )

    def allow(self) -> None:
        """Raise interrupts at once from here on, beginning with one that was held back: user code begins."""
        self._held = False
        self.take()

    def hold(self) -> None:
        """Hold interrupts back from here on: user code has ended."""
        self._held = True

    def take(self) -> None:
        """Raise the interrupt that was held back, if any."""
        if self.pending:
            self.pending = False
            raise interrupt_by(self.number)

    def note(self, number: int) -> None:
        """Record that another rank has received the signal `number`, and that all ranks end."""
        self.number = self.number or number

    def _receive(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if now - self._last < _ECHO:
            return
        self._last = now
        self.number = self.number or number
        if self._held and not self.pending:
            self.pending = True
        else:
            self.is_forced = self._held
            self.pending = False
            raise interrupt_by(self.number)


class RepeatedInterrupt:
    """Context in which Ctrl-C, SIGTERM and SIGHUP are raised at once and, if swallowed, again by :meth:`check` or on exit.

    Python prints and drops an exception that is raised in a callback of the garbage collector (Hypothesis 6.131 and later
    has one, ``hypothesis.internal.conjecture.junkdrawer``) or in ``__del__``, and a signal's handler may run there. Since the interrupt
    is raised again, this context suppresses the traceback that calls it ignored.
    Entering has no effect within such a context, or if the signals have other handlers.
    """

    _pending: ClassVar[int] = 0

    def __init__(self) -> None:
        self._before: dict[int, _Handler] = {}
        self.number = 0  # the signal that has ended the work, or 0
        self._shown_by: Callable[[sys.UnraisableHookArgs], object] = sys.unraisablehook

    def __enter__(self) -> RepeatedInterrupt:
        if threading.current_thread() is threading.main_thread():
            self._before = install_handlers(self._receive)
            if self._before:
                RepeatedInterrupt._pending = 0
                self._shown_by, sys.unraisablehook = sys.unraisablehook, self._show
        return self

    def __exit__(self, kind: type[BaseException] | None, exception: object, traceback: object) -> None:
        if not self._before:
            return
        if sys.unraisablehook == self._show:  # user code may have replaced it
            sys.unraisablehook = self._shown_by
        restore(self._before)
        self.number, RepeatedInterrupt._pending = self._pending, 0
        if self.number and (kind is None or not issubclass(kind, KeyboardInterrupt)):
            raise interrupt_by(self.number)

    @classmethod
    def check(cls) -> None:
        """Raise again the interrupt that was swallowed, if any."""
        if cls._pending:
            raise interrupt_by(cls._pending)

    def _show(self, unraisable: sys.UnraisableHookArgs) -> None:
        if not (self._pending and issubclass(unraisable.exc_type, KeyboardInterrupt)):
            self._shown_by(unraisable)

    @staticmethod
    def _receive(number: int, frame: FrameType | None) -> None:
        RepeatedInterrupt._pending = RepeatedInterrupt._pending or number
        raise interrupt_by(number)
