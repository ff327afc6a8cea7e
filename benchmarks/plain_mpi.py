"""mpi4py's own calls, for floors. From its first run on the lab replaces the methods of mpi4py's communicators.

In a run of the MPI world ``MPI.COMM_WORLD`` means the run's guarded communicator, so that a floor on it would be guarded too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from inspect import getattr_static
from types import FunctionType
from typing import Any

from mpi4py import MPI

from adjointlab.worlds.comm_world import own_handle

__all__ = ["comm_world", "library", "nothing_counted", "refuse_replaced_methods"]


def comm_world() -> MPI.Intracomm:
    """COMM_WORLD with the methods of mpi4py, in a run too."""
    return own_handle(MPI.COMM_WORLD)


@contextmanager
def nothing_counted(guarded: Any) -> Iterator[None]:
    """Raise if the guard of a communicator counts a call in this context, as the call is then not mpi4py's own."""
    before = guarded.guard.progress()
    yield
    if guarded.guard.progress() != before:
        raise RuntimeError("the guard has counted a bare call: it is not mpi4py's own, and no floor")


def refuse_replaced_methods() -> None:
    """End the script if the lab has replaced the methods of mpi4py's communicators, since COMM_WORLD would not be a floor then."""
    # mpi4py's are compiled, those of the lab are functions of Python.
    if isinstance(getattr_static(MPI.Intracomm, "Allreduce"), FunctionType):
        raise SystemExit(
            "the methods of mpi4py's communicators are replaced: COMM_WORLD is no floor any more"
        )


def library() -> str:
    """Name and version of the MPI library."""
    return " ".join(MPI.Get_library_version().splitlines()[0].split(",")[0].split())
