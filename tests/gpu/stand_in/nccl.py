"""A module that stands in for CuPy's ``cupy.cuda.nccl``: simulated ranks, addresses of the stand-in's arrays, and groups of calls.

A call reads and writes what its stream holds when it is made, or when its group ends. An address outside the memory of an array is
an `AssertionError`: a real device would write there.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from adjointlab.typing import Communicator
from tests.gpu.stand_in.arrays import Memory
from tests.gpu.stand_in.streams import Stream

__all__ = ["Nccl", "Ranks"]

Values = np.ndarray[Any, Any]


class Ranks:
    """``NcclCommunicator`` of the ranks of a simulated communicator."""

    def __init__(self, comm: Communicator, nccl: Nccl) -> None:
        self.comm, self.nccl = comm, nccl

    def send(self, sendbuf: int, count: int, datatype: str, peer: int, stream: int) -> None:
        self.nccl.call(stream, lambda: self.comm.send(_read(sendbuf, count, datatype), peer, 99))

    def recv(self, recvbuf: int, count: int, datatype: str, peer: int, stream: int) -> None:
        # The end of a group receives after it has sent: none of its messages waits for another.
        def receive() -> None:
            _write(recvbuf, count, self.comm.recv(source=peer, tag=99))

        self.nccl.call(stream, receive, is_last=True)

    def bcast(self, buff: int, count: int, datatype: str, root: int, stream: int) -> None:
        self.broadcast(buff, buff, count, datatype, root, stream)

    def broadcast(
        self, sendbuff: int, recvbuff: int, count: int, datatype: str, root: int, stream: int
    ) -> None:
        def copy() -> None:
            sent = _read(sendbuff, count, datatype) if self.comm.rank == root else None
            _write(recvbuff, count, self.comm.bcast(sent, root))

        self.nccl.call(stream, copy)

    def reduce(
        self, sendbuf: int, recvbuf: int, count: int, datatype: str, op: int, root: int, stream: int
    ) -> None:
        self._combine(sendbuf, recvbuf if self.comm.rank == root else None, count, datatype, op, stream)

    def allReduce(self, sendbuf: int, recvbuf: int, count: int, datatype: str, op: int, stream: int) -> None:
        self._combine(sendbuf, recvbuf, count, datatype, op, stream)

    def allGather(self, sendbuf: int, recvbuf: int, count: int, datatype: str, stream: int) -> None:
        def gather() -> None:
            parts = self.comm.allgather(_read(sendbuf, count, datatype))
            _write(recvbuf, count * self.comm.size, np.concatenate(parts))

        self.nccl.call(stream, gather)

    def _combine(
        self, sendbuf: int, recvbuf: int | None, count: int, datatype: str, op: int, stream: int
    ) -> None:
        def combine() -> None:
            combined = reduce(Nccl.operations[op], self.comm.allgather(_read(sendbuf, count, datatype)))
            if recvbuf is not None:
                _write(recvbuf, count, combined)

        self.nccl.call(stream, combine)


class Nccl:
    """The module: constants, and groups of the calls of one thread, which is a simulated rank."""

    available = True
    operations = (np.add, np.multiply, np.maximum, np.minimum)
    NCCL_SUM, NCCL_PROD, NCCL_MAX, NCCL_MIN = range(4)
    NCCL_UINT8, NCCL_INT32, NCCL_INT64 = "uint8", "int32", "int64"
    NCCL_FLOAT32, NCCL_FLOAT64 = "float32", "float64"

    def __init__(self) -> None:
        self._of_thread = threading.local()

    def get_unique_id(self) -> object:
        return (id(self), threading.get_ident())

    def get_version(self) -> int:
        return 22703

    def NcclCommunicator(self, ndev: int, commId: object, rank: int) -> tuple[int, object, int]:
        return ndev, commId, rank

    def groupStart(self) -> None:
        assert getattr(self._of_thread, "group", None) is None, "a group is open"
        self._of_thread.group = []

    def groupEnd(self) -> None:
        group, self._of_thread.group = self._of_thread.group, None
        for work in [each for each, is_last in group if not is_last] + [each for each, last in group if last]:
            work()

    def call(self, stream: int, work: Callable[[], None], is_last: bool = False) -> None:
        def in_order() -> None:
            Stream.by_pointer[stream].synchronize()
            work()

        group = getattr(self._of_thread, "group", None)
        if group is None:
            in_order()
        else:
            group.append((in_order, is_last))


def _read(address: int, count: int, datatype: str) -> Values:
    nbytes = count * np.dtype(datatype).itemsize
    _require_memory(address, nbytes)
    return np.frombuffer(ctypes.string_at(address, nbytes), datatype)


def _write(address: int, count: int, values: Values) -> None:
    assert len(values) == count, f"{count} elements are received of {len(values)} that were sent"
    _require_memory(address, values.nbytes)
    ctypes.memmove(address, values.tobytes(), values.nbytes)


def _require_memory(address: int, nbytes: int) -> None:
    starts = ((each.raw.ctypes.data, each.raw.nbytes) for each in list(Memory.live))
    assert nbytes == 0 or any(start <= address and address + nbytes <= start + size for start, size in starts)
