"""The check that an argument of an operator or a layer is a communicator, and a sum over its ranks."""

from __future__ import annotations

import numpy as np

from adjointlab.MPI import COMM_NULL
from adjointlab.typing import Communicator, NumpyArray

__all__ = ["size_of", "sum_of_ranks"]


def size_of(comm: Communicator) -> int:
    """Return the number of ranks of a communicator.

    Raises `TypeError` if it is not a communicator, and `ValueError` for a null one: before any message, so that all ranks with the
    same argument raise the same error.
    """
    given: object = comm
    if given == COMM_NULL:
        raise ValueError(
            "comm: the null communicator has no ranks; make the operator only on ranks of a communicator"
        )
    has_methods = callable(getattr(given, "Get_rank", None)) and callable(getattr(given, "Get_size", None))
    if isinstance(given, type) or not has_methods:
        raise TypeError(
            f"comm: {given!r} is not a communicator; pass the one that your function is handed, or mpi4py's MPI.COMM_WORLD"
        )
    return comm.Get_size()


def sum_of_ranks(comm: Communicator, own: NumpyArray) -> NumpyArray:
    """Return the sum of the ranks' parts of an operator's matrices, on every rank. Collective.

    Raises `ValueError` if they are not parts of one matrix.
    """
    # As objects: if another rank is still in a collective of user code, MPICH ends the process because of buffers that do not match it,
    # before the lab could report that call.
    of_ranks = comm.allgather(own)
    if others := [rank for rank, each in enumerate(of_ranks) if each.shape != of_ranks[0].shape]:
        raise ValueError(
            f"the ranks declare different spaces: those of rank {others[0]} have other dimensions than those of rank 0. Give every rank "
            "the global tensors"
        )
    return np.asarray(sum(of_ranks))
