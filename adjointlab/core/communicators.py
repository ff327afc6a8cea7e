"""The check that every operator and layer makes first: that what it is given is a communicator."""

from __future__ import annotations

from adjointlab.MPI import COMM_NULL
from adjointlab.typing import Communicator

__all__ = ["size_of"]


def size_of(comm: Communicator) -> int:
    """Return the number of ranks of a communicator.

    Raises `TypeError` for what is no communicator, and `ValueError` for a null one: before any message, so that all ranks that were
    given the same raise the same.
    """
    given: object = comm
    if given == COMM_NULL:
        raise ValueError(
            "comm: the null communicator has no ranks; make the operator on the ranks of a communicator alone"
        )
    has_methods = callable(getattr(given, "Get_rank", None)) and callable(getattr(given, "Get_size", None))
    if isinstance(given, type) or not has_methods:
        raise TypeError(
            f"comm: {given!r} is no communicator; pass the one that your function is handed, or mpi4py's MPI.COMM_WORLD"
        )
    return comm.Get_size()
