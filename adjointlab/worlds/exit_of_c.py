"""Guard against a call of C's ``exit`` while Python is running, as by Fortran's STOP or a library that aborts.

Such a call ends the process at once, without running any Python code, with an exit code that is unrelated to the verdicts. So a handler
of C's exit raises a signal, as the last one to run: the stacks are printed, and the process dies of the signal. When Python itself ends
in order, it disables the handler.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import signal
import sys
from functools import cache
from typing import Final

__all__ = ["allow_exit_of_c", "guard_exit_of_c"]

_SIGNAL: Final = signal.SIGVTALRM
"""Its default action ends the process without a core dump, and hardly any program uses it."""


@cache  # once in a process
def guard_exit_of_c(stderr: int = 2) -> None:
    """Make C's ``exit`` end this process by a signal, unless Python has ended in order; stacks go to the descriptor `stderr`."""
    if sys.platform == "win32" or signal.getsignal(_SIGNAL) is not signal.SIG_DFL:
        return
    try:
        libc = ctypes.CDLL(None)
        # Handlers run last in, first out. The arguments must not refer to Python objects, because Python may be finalized by then.
        register, function = getattr(libc, "__cxa_atexit"), getattr(libc, "raise")
    except (OSError, AttributeError):
        return
    atexit.register(allow_exit_of_c)
    register(ctypes.cast(function, ctypes.c_void_p), ctypes.c_void_p(_SIGNAL), None)
    # faulthandler's handler is written in C, so it does not need the GIL; then it raises the signal again with the default action.
    faulthandler.register(_SIGNAL, stderr, all_threads=True, chain=True)


def allow_exit_of_c() -> None:
    """Disable the guard, so that C's ``exit`` ends this process with its own code; `MPI_Abort` ends in such a call."""
    faulthandler.unregister(_SIGNAL)
    # Not Python's signal.signal, which works only in the main thread.
    ctypes.CDLL(None).signal(int(_SIGNAL), ctypes.c_void_p(int(signal.SIG_IGN)))
