"""Work-around for a bug of Open MPI in non-blocking neighbourhood collectives, which implement the guarded communicator's blocking ones.

On a periodic grid one or two ranks wide, both neighbours of a rank in a dimension are the same rank. There, Open MPI 5.0.11 swaps
the two blocks that this neighbour sends, but only in the non-blocking calls. A block sent to the preceding rank must arrive as the block
from the following rank [MPI41, section 8.6], as it does in the blocking calls. So the two blocks of the receive buffer are swapped back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from mpi4py import MPI

from adjointlab.typing import Buffer
from adjointlab.worlds.arguments import Blocks, blocks, elements, unpack_typed
from adjointlab.worlds.comm_world import own_handle
from adjointlab.worlds.constants import to_mpi4py
from adjointlab.worlds.mpi.calls import by_name
from adjointlab.worlds.mpi.collectives import collective_kind
from adjointlab.worlds.mpi.communicator_base import CommBase
from adjointlab.worlds.scattered import is_scattered

__all__ = ["in_blocking_order"]

Start: TypeAlias = Callable[[Sequence[Buffer], Mapping[str, object]], MPI.Request]


def in_blocking_order(comm: CommBase, name: str, start: Start) -> Start:
    """Return `start`, the non-blocking call, with blocks received in the order of the blocking call `name`."""
    grid = comm.inner
    if not isinstance(grid, MPI.Cartcomm):
        return start
    order = list(range(2 * grid.ndim))
    for dimension, (width, is_periodic) in enumerate(zip(grid.dims, grid.periods, strict=True)):
        if is_periodic and width <= 2:
            before = 2 * dimension
            order[before : before + 2] = before + 1, before
    if "alltoall" not in name or order == sorted(order) or not _mixes_up_blocks():
        return start
    start_of_blocks = getattr(grid, "Ineighbor_alltoallw" if name.endswith("w") else "Ineighbor_alltoallv")

    def started(arguments: Sequence[Buffer], keywords: Mapping[str, object]) -> MPI.Request:
        given = by_name(collective_kind(name).parameters, arguments, keywords)
        send, receive = (_in_blocks(name, given[key], len(order)) for key in ("sendbuf", "recvbuf"))
        buffer, counts, displacements, kinds = receive
        swapped = [[each[place] for place in order] for each in (counts, displacements)]
        of_blocks = [kinds[place] for place in order] if isinstance(kinds, list) else kinds
        request: MPI.Request = start_of_blocks(list(send), [buffer, *swapped, of_blocks])
        return request

    return started


def _in_blocks(name: str, spec: Any, number: int) -> tuple[Any, list[int], list[int], Any]:
    """A buffer, the counts and displacements of its blocks, and its datatype or those of the blocks."""
    if name.endswith("w"):
        buffer, counts, displacements, kinds = unpack_typed(spec, number)
        return buffer, list(counts), list(displacements), list(map(to_mpi4py, kinds))
    if name.endswith("v"):
        found = blocks(spec, number, writable=False)
    else:
        array, datatype, _ = elements(spec, writable=False, blocks=number)
        count = array.size // number
        found = Blocks(array, datatype, [count] * number, [count * place for place in range(number)])
    if is_scattered(found.array):
        raise NotImplementedError(
            f"{name}: a derived datatype, on a periodic grid one or two ranks wide, where this MPI library mixes up the blocks of "
            "the non-blocking call that the lab makes; use Neighbor_alltoallw, or elementary datatypes"
        )
    return found.array, found.counts, found.displacements, to_mpi4py(found.datatype)


@cache  # a property of the MPI library
def _mixes_up_blocks() -> bool:
    """Return True if the MPI library has the bug; tested on a grid of one rank."""
    ring = own_handle(own_handle(MPI.COMM_SELF).Create_cart([1], [True]))
    received = np.zeros(2)
    ring.Ineighbor_alltoall(np.array([1.0, 2.0]), received).Wait()
    ring.Free()
    return bool(received[0] == 1.0)
