"""Objects that outlive the interpreter.

MPI may write into the buffer of an abandoned receive until Finalize, which mpi4py calls after Python has taken its
objects down. So an abandoned request, with the buffers it holds, is never freed.
"""

from __future__ import annotations

import ctypes

__all__ = ["keep_alive"]


def keep_alive(thing: object) -> None:
    """Keep `thing` and what it refers to until the process has gone."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
