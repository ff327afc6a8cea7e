"""Device buffers moved by NCCL, through CuPy, if every rank has its own device.

NCCL's calls are ordered by the current stream, which they are queued in; they wait for neither the host nor a device. NCCL has no tags,
and matches the messages between two ranks in the order in which they are posted; operators post the messages of a pair in the same
order on both ranks. Sends and receives are collected until one is waited for, and then started as one group, in which none waits for
another.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

from adjointlab import MPI
from adjointlab.core import arrays
from adjointlab.core.arrays.streams import Streams
from adjointlab.core.transport.calls import DeviceCommunicator, DeviceRequest
from adjointlab.devices.transport import RankEvidence
from adjointlab.MPI import ANY_SOURCE, ANY_TAG, SUM, Op
from adjointlab.typing import Communicator, Request, Status

__all__ = ["NcclCommunicator", "own_evidence", "ranks_of"]

_TYPES = {"float64": "FLOAT64", "float32": "FLOAT32", "int64": "INT64", "int32": "INT32"}
_COMPLEX = {"complex128": "float64", "complex64": "float32"}
_OPERATIONS = {Op.SUM: "SUM", Op.PROD: "PROD", Op.MAX: "MAX", Op.MIN: "MIN"}


def ranks_of(comm: Communicator) -> Any:
    """Return an NCCL communicator of the ranks of `comm`, each on its current device; collective over them."""
    nccl = _nccl()
    unique = comm.bcast(nccl.get_unique_id() if comm.Get_rank() == 0 else None)
    return nccl.NcclCommunicator(comm.Get_size(), unique, comm.Get_rank())


def own_evidence(cuda_aware: bool) -> RankEvidence:
    """Return this rank's contribution to the choice of a transport."""
    if not arrays.installed("cupy"):
        # A torch device needs no identifier that is unique in the job: NCCL is used only through CuPy.
        return RankEvidence("a device" if arrays.installed("torch-cuda") else "", cuda_aware)
    device = f"{socket.gethostname()} {sys.modules['cupy'].cuda.Device().pci_bus_id}"
    try:
        nccl = _nccl()
        version = str(nccl.get_version()) if nccl.available else ""
    except ImportError:
        version = ""
    return RankEvidence(device, cuda_aware, version)


class NcclCommunicator(DeviceCommunicator):
    """The calls of `comm` on device buffers, made by `ranks`, the NCCL communicator of the same ranks."""

    def __init__(self, comm: Communicator, ranks: Any, streams: Streams) -> None:
        super().__init__(comm)
        self._ranks, self._streams, self._nccl = ranks, streams, _nccl()
        self._collected: list[Callable[[], None]] = []

    def Isend(self, buf: Any, dest: int, tag: int = 0) -> Request:
        count, kind = _bytes(buf, self._nccl)
        return self._collect(
            buf, lambda stream: self._ranks.send(arrays.address_of(buf), count, kind, dest, stream)
        )

    def Irecv(self, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Request:
        if source < 0:
            raise ValueError(f"source: {source} is not a rank, and NCCL receives only from a given one")
        count, kind = _bytes(buf, self._nccl)
        return self._collect(
            buf, lambda stream: self._ranks.recv(arrays.address_of(buf), count, kind, source, stream)
        )

    def _collect(self, buf: Any, start: Callable[[int], None]) -> Request:
        self._collected.append(lambda: start(self._streams.pointer()))
        return _Collected(self, buf)

    def start(self) -> None:
        """Start the sends and receives that are collected, as one group."""
        collected, self._collected = self._collected, []
        if collected:
            self._group(collected)

    def _group(self, calls: Sequence[Callable[[], None]]) -> None:
        self._nccl.groupStart()
        try:
            for call in calls:
                call()
        finally:
            self._nccl.groupEnd()

    def Bcast(self, buf: Any, root: int = 0) -> None:
        self.start()
        count, kind = _bytes(buf, self._nccl)
        self._ranks.bcast(arrays.address_of(buf), count, kind, root, self._streams.pointer())

    def Reduce(self, sendbuf: Any, recvbuf: Any, op: Op = SUM, root: int = 0) -> None:
        self.start()
        into = arrays.address_of(sendbuf if recvbuf is None else recvbuf)  # only the root writes to it
        count, kind, parts = _elements(sendbuf, self._nccl)
        operation = self._operation(op, sendbuf)
        source, stream = arrays.address_of(sendbuf), self._streams.pointer()
        self._ranks.reduce(source, into, count * parts, kind, operation, root, stream)

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> None:
        self.start()
        count, kind, parts = _elements(sendbuf, self._nccl)
        source, into = arrays.address_of(sendbuf), arrays.address_of(recvbuf)
        operation, stream = self._operation(op, sendbuf), self._streams.pointer()
        self._ranks.allReduce(source, into, count * parts, kind, operation, stream)

    def Allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        self.start()
        count, kind = _bytes(sendbuf, self._nccl)
        source, into = arrays.address_of(sendbuf), arrays.address_of(recvbuf)
        self._ranks.allGather(source, into, count, kind, self._streams.pointer())

    def Allgatherv(self, sendbuf: Any, recvbuf: Any) -> None:
        self.start()
        buf, (counts, displacements) = recvbuf
        size, stream, kind = arrays.itemsize_of(buf), self._streams.pointer(), self._nccl.NCCL_UINT8
        source, into = arrays.address_of(sendbuf), arrays.address_of(buf)

        def received(root: int) -> Callable[[], None]:
            at, nbytes = into + displacements[root] * size, counts[root] * size
            return lambda: self._ranks.broadcast(source, at, nbytes, kind, root, stream)

        self._group([received(root) for root in range(len(counts)) if counts[root]])

    def Reduce_scatter(self, sendbuf: Any, recvbuf: Any, recvcounts: Sequence[int], op: Op = SUM) -> None:
        self.start()
        _, kind, parts = _elements(sendbuf, self._nccl)
        size, stream, operation = (
            arrays.itemsize_of(sendbuf),
            self._streams.pointer(),
            self._operation(op, sendbuf),
        )
        source, into = arrays.address_of(sendbuf), arrays.address_of(recvbuf)
        starts = list(accumulate(recvcounts, initial=0))

        def summed(root: int) -> Callable[[], None]:
            at, count = source + starts[root] * size, recvcounts[root] * parts
            return lambda: self._ranks.reduce(at, into, count, kind, operation, root, stream)

        self._group([summed(root) for root in range(len(recvcounts)) if recvcounts[root]])

    def _operation(self, op: Op, buf: Any) -> int:
        if op not in _OPERATIONS:
            raise ValueError(f"op: NCCL has no {op!r}, but {', '.join(each.value for each in _OPERATIONS)}")
        if op is not SUM and (name := arrays.dtype_name(buf)) in _COMPLEX:
            # Real and imaginary parts would be combined separately.
            raise ValueError(f"op: {op!r} of {name}: NCCL has only sums of complex numbers")
        return int(getattr(self._nccl, f"NCCL_{_OPERATIONS[op]}"))


class _CollectedRequests(MPI.RequestBatch):
    requests: Sequence[_Collected]

    def wait_all(self, name: str) -> None:
        for request in self.requests:
            request.transport.start()

    def complete_all(self, statuses: Sequence[Any] | None) -> list[Any]:
        for request in self.requests:
            request.is_active, request.buf = False, None
        return [None] * len(self.requests)


class _Collected(DeviceRequest):
    """A send or a receive. For the current stream it is complete once its group has been started."""

    batch_type = _CollectedRequests

    def __init__(self, transport: NcclCommunicator, buf: Any) -> None:
        super().__init__()
        self.transport = transport
        self.buf = buf  # kept alive until the group has been started

    def Get_status(self, status: Status | None = None) -> bool:
        self.transport.start()
        return True


def _nccl() -> Any:
    from cupy.cuda import nccl

    return nccl


def _bytes(buf: Any, nccl: Any) -> tuple[int, int]:
    return arrays.nbytes_of(buf), nccl.NCCL_UINT8


def _elements(buf: Any, nccl: Any) -> tuple[int, int, int]:
    """Return the number of elements, NCCL's type of their parts, and the number of parts: complex numbers are summed part by part."""
    name = arrays.dtype_name(buf)
    real = _COMPLEX.get(name, name)
    count = arrays.nbytes_of(buf) // arrays.itemsize_of(buf)
    return count, getattr(nccl, f"NCCL_{_TYPES[real]}"), 2 if name in _COMPLEX else 1
