"""Minimal hand-written exchanges of device memory through pinned host memory.

Everything is allocated once. All parts are packed on the device and their copies to the host enqueued one behind the other; each
message is sent when its own copy is complete; what has been received is copied back and unpacked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from devices import Device
from mpi4py import MPI

__all__ = ["PinnedHalo", "PinnedRepartition"]

Array = Any


class Part(NamedTuple):
    """One message to a peer and one from it: indices into the tensor, and buffers on the device and pinned."""

    peer: int
    source: tuple[slice, ...]
    target: tuple[slice, ...]
    packed: Array
    unpacked: Array
    outgoing: np.ndarray[Any, Any]
    incoming: np.ndarray[Any, Any]

    def reversed(self) -> Part:
        """The way back."""
        return Part(
            self.peer, self.target, self.source, self.unpacked, self.packed, self.incoming, self.outgoing
        )


class _Pinned:
    def __init__(self, comm: MPI.Comm, device: Device) -> None:
        self.comm, self.device = comm, device

    def part(
        self, peer: int, x: Array, source: tuple[slice, ...], y: Array, target: tuple[slice, ...]
    ) -> Part:
        empty = self.device.xp.empty
        packed, unpacked = empty(x[source].shape, np.float32), empty(y[target].shape, np.float32)
        return Part(
            peer, source, target, packed, unpacked, self.device.pinned(packed), self.device.pinned(unpacked)
        )

    def moved(self, parts: Sequence[Part], x: Array, unpack: Callable[[Part], object]) -> None:
        """Pack, send and receive all parts, and unpack each."""
        requests = [self.comm.Irecv(part.incoming, part.peer) for part in parts]
        copied = []
        for part in parts:
            part.packed[...] = x[part.source]
            copied.append(self.device.to_host(part.packed, part.outgoing))
        for part, wait in zip(parts, copied, strict=True):
            wait()
            requests.append(self.comm.Isend(part.outgoing, part.peer))
        MPI.Request.Waitall(requests)
        for part in parts:
            self.device.to_device(part.incoming, part.unpacked)
            unpack(part)


class PinnedHalo(_Pinned):
    """A halo exchange of `width` rows along the first dimension, in place, on a padded local tensor of `bulk` rows of `row` cells."""

    def __init__(self, comm: MPI.Comm, device: Device, bulk: int, row: tuple[int, ...], width: int) -> None:
        super().__init__(comm, device)
        rank, size = comm.Get_rank(), comm.Get_size()
        low, high = (width if rank else 0), (width if rank < size - 1 else 0)
        self.inner = slice(low, low + bulk)
        self.u = device.xp.zeros((low + bulk + high, *row), np.float32)
        places = (
            (rank - 1, slice(low, low + width), slice(0, low)),
            (rank + 1, slice(low + bulk - width, low + bulk), slice(low + bulk, low + bulk + high)),
        )
        self.parts = [
            self.part(peer, self.u, (edge,), self.u, (ghost,))
            for peer, edge, ghost in places
            if 0 <= peer < size
        ]

    @property
    def bytes_sent(self) -> int:
        return sum(part.outgoing.nbytes for part in self.parts)

    def forward(self) -> None:
        u = self.u

        def unpack(part: Part) -> None:
            u[part.target] = part.unpacked

        self.moved(self.parts, u, unpack)
        self.device.synchronize()

    def adjoint(self) -> None:
        u = self.u

        def unpack(part: Part) -> None:
            u[part.target] += part.unpacked
            u[part.source] = 0

        self.moved([part.reversed() for part in self.parts], u, unpack)
        self.device.synchronize()


class PinnedRepartition(_Pinned):
    """Rows to columns of a square matrix and back, each rank with equal parts: x of rows, y of columns."""

    def __init__(self, comm: MPI.Comm, device: Device, side: int) -> None:
        super().__init__(comm, device)
        rank, size = comm.Get_rank(), comm.Get_size()
        width = side // size
        self.x = device.xp.ones((width, side), np.float32)
        self.y = device.xp.empty((side, width), np.float32)
        every, places = slice(None), [slice(peer * width, (peer + 1) * width) for peer in range(size)]
        self.own_rows, self.own_columns = (places[rank], every), (every, places[rank])
        self.parts = [
            self.part(peer, self.x, (every, places[peer]), self.y, (places[peer], every))
            for peer in range(size)
            if peer != rank
        ]

    @property
    def bytes_sent(self) -> int:
        return sum(part.outgoing.nbytes for part in self.parts)

    def forward(self) -> None:
        def unpack(part: Part) -> None:
            self.y[part.target] = part.unpacked

        self.y[self.own_rows] = self.x[self.own_columns]
        self.moved(self.parts, self.x, unpack)
        self.device.synchronize()

    def adjoint(self) -> None:
        def unpack(part: Part) -> None:
            self.x[part.target] = part.unpacked

        self.x[self.own_columns] = self.y[self.own_rows]
        self.moved([part.reversed() for part in self.parts], self.y, unpack)
        self.device.synchronize()
