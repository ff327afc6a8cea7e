"""A call of C's ``exit`` while Python is at work: a STOP of Fortran, or a library that gives up.

It ends the process at once, with an exit code of its own that no verdict has earned, and nothing of Python runs any more. So C is asked
to raise a signal last of all in its exit, upon which the process dies after its stacks have been printed; Python's own end
switches that off.
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
"""By default it ends the process, without a dump of its memory, and hardly any program uses it."""


@cache  # once in a process
def guard_exit_of_c(stderr: int = 2) -> None:
    """Have C's ``exit`` end this process by a signal, unless Python has ended in order; the stacks go to the descriptor `stderr`."""
    if sys.platform == "win32" or signal.getsignal(_SIGNAL) is not signal.SIG_DFL:
        return
    try:
        libc = ctypes.CDLL(None)
        # Handlers are called last in, first out. Nothing of Python is among the arguments: it may be at its end by then.
        register, function = getattr(libc, "__cxa_atexit"), getattr(libc, "raise")
    except (OSError, AttributeError):
        return
    atexit.register(allow_exit_of_c)
    register(ctypes.cast(function, ctypes.c_void_p), ctypes.c_void_p(_SIGNAL), None)
    # In C, so that it needs no lock of Python; then it raises the signal again, to the default.
    faulthandler.register(_SIGNAL, stderr, all_threads=True, chain=True)


def allow_exit_of_c() -> None:
    """Let C's ``exit`` end this process as it is called; `MPI_Abort` does so with its code."""
    faulthandler.unregister(_SIGNAL)
    # Python's own signal.signal works in the main thread alone.
    ctypes.CDLL(None).signal(int(_SIGNAL), ctypes.c_void_p(int(signal.SIG_IGN)))
