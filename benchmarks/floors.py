"""Hand-written data movement in plain mpi4py with preallocated buffers, which the primitives are measured against.

Each floor does one job on fixed arrays, as somebody would write it who needs nothing else. Faces and columns are packed
by hand: MPI's derived datatypes were tried and are slower (MPICH 5.0: 4 times for columns of 1024 x 1024, 1.05 times for
4096 x 4096).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

__all__ = ["HaloFloor", "all_gather_floor", "bare_exchange", "reduce_scatter_floor", "repartition_floor"]

Array = np.ndarray[Any, Any]
Call = Callable[[], None]


class HaloFloor:
    """A nested halo exchange of `width` cells in the dimensions of a Cartesian grid, on a padded local tensor `u`.

    Workers at the border have no halo there. `x` is the bulk, for the out-of-place form, which copies it in first.
    """

    def __init__(self, comm: MPI.Comm, grid: Sequence[int], bulk: Sequence[int], width: int) -> None:
        cart = comm.Create_cart(list(grid))
        self.comm = cart
        neighbours = [cart.Shift(dim, 1) for dim in range(len(grid))]
        low = [width if before != MPI.PROC_NULL else 0 for before, _ in neighbours]
        high = [width if after != MPI.PROC_NULL else 0 for _, after in neighbours]
        # Zeros, but written, and in `x` too: in place, every adjoint adds to what the passes before have left.
        self.u = np.full(
            [lo + side + hi for lo, side, hi in zip(low, bulk, high, strict=True)], 0, np.float32
        )
        self.inner = tuple(slice(lo, lo + side) for lo, side in zip(low, bulk, strict=True))
        self.x, self.gx = np.full(bulk, 0, np.float32), np.empty(bulk, np.float32)
        self.y = np.full_like(self.u, 0)
        # For each dimension and side: the neighbour, where the halo is, where the bulk next to it is, and both buffers.
        self.faces: list[list[tuple[int, Any, Any, Array, Array]]] = []
        for dim, (before, after) in enumerate(neighbours):
            sides = []
            for neighbour, halo, edge in (
                (before, (0, low[dim]), (low[dim], low[dim] + width)),
                (
                    after,
                    (low[dim] + bulk[dim], low[dim] + bulk[dim] + high[dim]),
                    (low[dim] + bulk[dim] - width, low[dim] + bulk[dim]),
                ),
            ):
                if neighbour == MPI.PROC_NULL:
                    continue
                place = [slice(None)] * dim + [slice(0)] + list(self.inner[dim + 1 :])
                ghost, cells = list(place), list(place)
                ghost[dim], cells[dim] = slice(*halo), slice(*edge)
                shape = self.u[tuple(cells)].shape
                sides.append(
                    (
                        neighbour,
                        tuple(ghost),
                        tuple(cells),
                        np.empty(shape, np.float32),
                        np.empty(shape, np.float32),
                    )
                )
            self.faces.append(sides)

    @property
    def bytes_sent(self) -> int:
        """By this rank, in one direction."""
        return sum(out.nbytes for sides in self.faces for _, _, _, out, _ in sides)

    def exchange(self) -> None:
        """Forward, in place."""
        u = self.u
        for sides in self.faces:
            requests = [self.comm.Irecv(into, peer) for peer, _, _, _, into in sides]
            for peer, _, edge, out, _ in sides:
                np.copyto(out, u[edge])
                requests.append(self.comm.Isend(out, peer))
            MPI.Request.Waitall(requests)
            for _, ghost, _, _, into in sides:
                np.copyto(u[ghost], into)

    def exchange_adjoint(self) -> None:
        """Adjoint, in place."""
        u = self.u
        for sides in reversed(self.faces):
            requests = [self.comm.Irecv(into, peer) for peer, _, _, _, into in sides]
            for peer, ghost, _, out, _ in sides:
                np.copyto(out, u[ghost])
                requests.append(self.comm.Isend(out, peer))
            MPI.Request.Waitall(requests)
            for _, ghost, edge, _, into in sides:
                u[edge] += into
                u[ghost] = 0

    def in_place(self) -> None:
        """Both, in place."""
        self.exchange()
        self.exchange_adjoint()

    def copied_once(self) -> None:
        """Both in place, with one copy of the bulk in each pass: the minimum for any out-of-place form."""
        np.copyto(self.u[self.inner], self.x)
        self.exchange()
        np.copyto(self.gx, self.y[self.inner])
        self.exchange_adjoint()

    def out_of_place(self) -> None:
        """Both, from and to the bulk, through a separate padded tensor."""
        np.copyto(self.u[self.inner], self.x)
        self.exchange()
        np.copyto(self.u, self.y)
        self.exchange_adjoint()
        np.copyto(self.gx, self.u[self.inner])


def repartition_floor(comm: MPI.Comm, side: int) -> Call:
    """Rows to columns of a square matrix and back, each rank with equal parts."""
    rank, size = comm.Get_rank(), comm.Get_size()
    part = side // size
    mine = slice(rank * part, (rank + 1) * part)
    x, y = np.ones((part, side), np.float32), np.empty((side, part), np.float32)
    others = [(peer, slice(peer * part, (peer + 1) * part)) for peer in range(size) if peer != rank]
    buffers = [np.empty((part, part), np.float32) for _ in others]

    def forward() -> None:
        requests = [comm.Irecv(y[there], peer) for peer, there in others]
        for (peer, there), out in zip(others, buffers, strict=True):
            np.copyto(out, x[:, there])
            requests.append(comm.Isend(out, peer))
        np.copyto(y[mine], x[:, mine])
        MPI.Request.Waitall(requests)

    def adjoint() -> None:
        requests = [comm.Irecv(into, peer) for (peer, _), into in zip(others, buffers, strict=True)]
        requests += [comm.Isend(y[there], peer) for peer, there in others]
        np.copyto(x[:, mine], y[mine])
        MPI.Request.Waitall(requests)
        for (_, there), into in zip(others, buffers, strict=True):
            np.copyto(x[:, there], into)

    def both() -> None:
        forward()
        adjoint()

    return both


def all_gather_floor(comm: MPI.Comm, count: int) -> Call:
    """An all-gather of `count` numbers per rank, and the reduce-scatter that is its adjoint."""
    size = comm.Get_size()
    x, y = np.ones(count, np.float32), np.empty(count * size, np.float32)
    g, h = np.ones(count * size, np.float32), np.empty(count, np.float32)

    def both() -> None:
        comm.Allgather(x, y)
        comm.Reduce_scatter_block(g, h, MPI.SUM)

    return both


def reduce_scatter_floor(comm: MPI.Comm, count: int) -> Call:
    """The same in the other order."""
    size = comm.Get_size()
    x, y = np.ones(count * size, np.float32), np.empty(count, np.float32)
    g, h = np.ones(count, np.float32), np.empty(count * size, np.float32)

    def both() -> None:
        comm.Reduce_scatter_block(x, y, MPI.SUM)
        comm.Allgather(g, h)

    return both


def bare_exchange(comm: MPI.Comm, nbytes: int) -> Call:
    """Two bare Sendrecv calls between ranks 0 and 1: a forward and an adjoint pass with no other work."""
    out, into = np.ones(nbytes, np.uint8), np.empty(nbytes, np.uint8)
    rank = comm.Get_rank()
    peer = 1 - rank if rank < 2 else MPI.PROC_NULL

    def both() -> None:
        comm.Sendrecv(out, peer, 0, into, peer, 0)
        comm.Sendrecv(out, peer, 0, into, peer, 0)

    return both
