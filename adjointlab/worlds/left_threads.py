"""Threads that user code leaves behind: the end of a process does not wait for them for ever.

The interpreter joins all threads that are no daemons before it ends, however long that takes. By then the verdicts are printed,
and a thread that does not end would hold up the exit code.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from types import FrameType
from typing import Final, NoReturn

from adjointlab.worlds.call_sites import call_site_of_thread
from adjointlab.worlds.watchdog import Elapsed

__all__ = ["end_despite_threads"]

_PATIENCE: Final = 5.0
_SECONDS_FOR_EXIT_HANDLERS: Final = 10.0
_SIGNAL: Final = signal.SIGUSR2


def end_despite_threads(code: int, stderr: int = 2) -> None:
    """Have this process end with `code`, once the interpreter begins to end, whatever threads are left then.

    To be called at the end of the main thread.
    """

    def leave(signal_number: int, frame: FrameType | None) -> NoReturn:
        # In the main thread, which alone may leave MPI, and waits for the others.
        with suppress(Exception):
            atexit._run_exitfuncs()
        with suppress(Exception):
            if _finalize_mpi():
                # MPICH takes leave of its launcher in a handler of C's exit; without, the launcher would kill the others.
                ctypes.CDLL(None).exit(code)
        os._exit(code)

    is_main = threading.current_thread() is threading.main_thread()
    can_signal = is_main and signal.getsignal(_SIGNAL) is signal.SIG_DFL
    if can_signal:
        signal.signal(_SIGNAL, leave)
    threading.Thread(target=_end, args=(code, stderr, can_signal), name="adjointlab end", daemon=True).start()


def _end(code: int, stderr: int, can_signal: bool) -> None:
    while not getattr(threading, "_SHUTTING_DOWN", False):
        time.sleep(0.05)
    elapsed = Elapsed()
    while (left := _left()) and elapsed.idle < _PATIENCE:
        time.sleep(0.05)
        elapsed.look(left[0].native_id or 0, len(left))
    if not left:
        return
    lines = "".join(f"adjointlab: {_described(thread)}\n" for thread in left)
    with suppress(OSError):
        os.write(
            stderr,
            f"{lines}  the process ends all the same, with exit code {code}\n".encode(errors="replace"),
        )
    if can_signal:
        signal.pthread_kill(threading.main_thread().ident or 0, _SIGNAL)
        time.sleep(_SECONDS_FOR_EXIT_HANDLERS)
    os._exit(code)


def _left() -> list[threading.Thread]:
    """The threads that the interpreter waits for."""
    main = threading.main_thread()
    # Those of executors are joined in any case, and in simulated ranks, which are daemons, they are daemons.
    futures = sys.modules.get("concurrent.futures.thread")
    of_executors = set(getattr(futures, "_threads_queues", ()))
    alive = [thread for thread in threading.enumerate() if thread is not main]
    return [thread for thread in alive if not thread.daemon or thread in of_executors]


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
    """Leave MPI; return False if this process was not in it."""
    mpi4py = sys.modules.get("mpi4py.MPI")
    if mpi4py is None or not mpi4py.Is_initialized() or mpi4py.Is_finalized():
        return False
    mpi4py.Finalize()
    return True
