"""Ends a process whose verdicts are printed: threads, processes and hooks of user code delay it for some seconds at most, and neither
they nor a late Ctrl-C change its exit code.

Without this it could hang: the interpreter first joins all threads that are not daemons, then calls the functions registered
with `atexit`, one of which joins the processes of `multiprocessing`, and waits for each of them without limit.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Final

from adjointlab.worlds.call_sites import call_site_of_thread, frame_of_thread
from adjointlab.worlds.elapsed import Elapsed
from adjointlab.worlds.exit_guard import HookEnded
from adjointlab.worlds.interrupts import ENDING, install_handlers

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

__all__ = ["end_despite_leftovers", "ignore_late_signals", "ignore_signals_at_exit"]

_PATIENCE: Final = 5.0
_PATIENCE_IN_ALL: Final = 60.0
_PATIENCE_AFTERWARDS: Final = 0.5
"""Seconds for a hook once an earlier one did not return: the same hook may be registered at each application of an operator."""
_MOST_INTERRUPTS: Final = 30
_LEAST_CPU: Final = 0.05
_SIGNAL: Final = signal.SIGUSR2
_MOST_NAMED: Final = 3


def end_despite_leftovers(code: int, stderr: int = 2) -> None:
    """Make this process end with `code` once the interpreter begins to shut down, whatever is left running then.

    Call it at the end of the main thread.
    """
    _Ending(code, stderr).watch()


def ignore_late_signals() -> None:
    """Ignore Ctrl-C, SIGTERM and SIGHUP from here on, so that they do not change the exit code: the results are printed.

    A :class:`~adjointlab.worlds.deadline.Deadline` still receives them, and limits the time of what is left to do.
    """
    install_handlers(_ignore)


def ignore_signals_at_exit() -> None:
    """Keep ignoring them to the very end; call this before other `atexit` hooks are registered, because the first one runs last.

    After the hooks, but before it frees its modules and finalizes MPI, the interpreter restores the default action, which would
    kill the process.
    """
    atexit.register(_ignore_for_good)


def _ignore(number: int, frame: FrameType | None) -> None:
    """Handler of a signal that arrives too late: does nothing."""


def _ignore_for_good() -> None:
    for number in ENDING:
        if signal.getsignal(number) is _ignore:
            signal.signal(number, signal.SIG_IGN)


class _Ending:
    """The end of this process, watched by a daemon thread, which runs until the interpreter stops all threads after the last hook."""

    def __init__(self, code: int, stderr: int) -> None:
        self._code, self._stderr = code, stderr
        self._main = threading.main_thread()
        self._can_signal = False
        self._has_left_threads = False

    def watch(self) -> None:
        """Start the thread."""
        is_main = threading.current_thread() is self._main
        self._can_signal = is_main and signal.getsignal(_SIGNAL) is signal.SIG_DFL
        if self._can_signal:
            signal.signal(_SIGNAL, self._receive)
        sys.unraisablehook = partial(_show_unraisable, sys.unraisablehook)
        threading.Thread(target=self._watch, name="adjointlab end", daemon=True).start()

    def _watch(self) -> None:
        while not getattr(threading, "_SHUTTING_DOWN", False):
            time.sleep(0.05)
        self._wait_for_threads()
        patience = _PATIENCE
        for _ in range(_MOST_INTERRUPTS):
            self._wait_for_hooks(patience)
            if self._end_processes():
                continue
            if patience == _PATIENCE:
                self._say(f"a hook for the end of the process (atexit) does not return{self._place()}")
            if not self._can_signal:
                break
            patience = _PATIENCE_AFTERWARDS
            signal.pthread_kill(self._main.ident or 0, _SIGNAL)
        os._exit(self._code)

    def _wait_for_threads(self) -> None:
        elapsed = Elapsed()
        while (left := _left()) and elapsed.idle < _PATIENCE:
            time.sleep(0.05)
            elapsed.look(left[0].native_id or 0, len(left))
        if not left:
            return
        self._say(*map(_described, left))
        if not self._can_signal:
            os._exit(self._code)
        signal.pthread_kill(self._main.ident or 0, _SIGNAL)

    def _wait_for_hooks(self, patience: float) -> None:
        """Return when the main thread has made no progress for `patience` seconds."""
        elapsed, progress, used = Elapsed(), 0, time.process_time()
        while elapsed.idle < patience and elapsed.total < _PATIENCE_IN_ALL:
            time.sleep(0.05)
            if (now := time.process_time()) - used > _LEAST_CPU:
                progress, used = progress + 1, now
            elapsed.look(self._main.native_id or 0, progress)

    def _end_processes(self) -> bool:
        """End the processes that `multiprocessing` waits for; return False if there are none."""
        left = _left_processes()
        if not left:
            return False
        more = [f"and {len(left) - _MOST_NAMED} more"] if len(left) > _MOST_NAMED else []
        self._say(
            *(
                f"the process {each.name} ({each.pid}) of multiprocessing was left behind and does not end; it is killed"
                for each in left[:_MOST_NAMED]
            ),
            *more,
        )
        for each in left:
            with suppress(OSError):
                os.kill(each.pid or os.getpid(), signal.SIGKILL)
        return True

    def _receive(self, number: int, frame: FrameType | None) -> None:
        """Signal handler: abandon the threads first, later the hook that does not return. Only the main thread may finalize MPI."""
        if self._has_left_threads or not _left():
            raise HookEnded  # ends the current hook; the interpreter continues with the next
        self._has_left_threads = True
        with suppress(Exception):
            atexit._run_exitfuncs()
        with suppress(Exception):
            if _finalize_mpi():
                # MPICH disconnects from its launcher in a handler of C's exit. Without that, the launcher would kill the other ranks.
                ctypes.CDLL(None).exit(self._code)
        os._exit(self._code)

    def _place(self) -> str:
        ident = self._main.ident or 0
        return f"; it is at {call_site_of_thread(ident)}" if frame_of_thread(ident) is not None else ""

    def _say(self, *lines: str) -> None:
        text = "".join(f"adjointlab: {line}\n" for line in lines)
        with suppress(OSError):
            os.write(
                self._stderr,
                f"{text}  the process ends all the same, with exit code {self._code}\n".encode(
                    errors="replace"
                ),
            )


def _show_unraisable(
    shown_by: Callable[[sys.UnraisableHookArgs], object], unraisable: sys.UnraisableHookArgs
) -> None:
    if unraisable.exc_type is not HookEnded:
        shown_by(unraisable)


def _left() -> list[threading.Thread]:
    """The threads that the interpreter waits for."""
    main = threading.main_thread()
    # Threads of executors are joined even if they are daemons, as those started by simulated ranks are.
    futures = sys.modules.get("concurrent.futures.thread")
    of_executors = set(getattr(futures, "_threads_queues", ()))
    alive = [thread for thread in threading.enumerate() if thread is not main]
    return [thread for thread in alive if not thread.daemon or thread in of_executors]


def _left_processes() -> list[BaseProcess]:
    """The processes of `multiprocessing` that it waits for at the end."""
    module = sys.modules.get("multiprocessing.process")
    # Not active_children(), which reaps processes that have ended, as the main thread does at the same time.
    children: set[BaseProcess] = set(getattr(module, "_children", ()))
    return sorted((each for each in children if each.is_alive()), key=lambda each: each.pid or 0)


def _described(thread: threading.Thread) -> str:
    # The target of a Timer has another name; a subclass has its own `run` instead.
    target = getattr(thread, "_target", None) or getattr(thread, "function", None) or type(thread).run
    code = getattr(target, "__code__", None)
    where = (
        ""
        if code is None
        else f" (its target, {code.co_name}, is at {code.co_filename}:{code.co_firstlineno})"
    )
    place = call_site_of_thread(thread.ident or 0)
    return f"the thread {thread.name}{where} was left behind and does not end; it is at {place}"


def _finalize_mpi() -> bool:
    """Finalize MPI; return False if it is not initialized, or finalized already."""
    mpi4py = sys.modules.get("mpi4py.MPI")
    if mpi4py is None or not mpi4py.Is_initialized() or mpi4py.Is_finalized():
        return False
    mpi4py.Finalize()
    return True
