"""Device buffers passed to MPI directly: to a CUDA-aware library, or to simulated ranks, which copy on the device.

MPI has no notion of streams. So the work of the current stream on a buffer must be complete before MPI gets it, even if it is to be
received into: the host waits for an event of that stream, and for nothing else on the device. When MPI completes, the data is in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from adjointlab.core.arrays.streams import Streams
from adjointlab.core.transport.calls import DeviceCommunicator, op_keyword
from adjointlab.MPI import ANY_SOURCE, ANY_TAG, SUM, Op
from adjointlab.typing import Communicator, Request

__all__ = ["DirectCommunicator"]


class DirectCommunicator(DeviceCommunicator):
    """A communicator that passes device buffers to MPI directly; see the module."""

    def __init__(self, comm: Communicator, streams: Streams) -> None:
        super().__init__(comm)
        self._streams = streams

    def _when_written(self) -> Communicator:
        """Return the communicator, once the work of the current stream is complete."""
        self._streams.mark().synchronize()
        return self.comm

    def Isend(self, buf: Any, dest: int, tag: int = 0) -> Request:
        return self._when_written().Isend(buf, dest, tag)

    def Irecv(self, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Request:
        return self._when_written().Irecv(buf, source, tag)

    def Bcast(self, buf: Any, root: int = 0) -> None:
        self._when_written().Bcast(buf, root)

    def Reduce(self, sendbuf: Any, recvbuf: Any, op: Op = SUM, root: int = 0) -> None:
        self._when_written().Reduce(sendbuf, recvbuf, root=root, **op_keyword(op))

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> None:
        self._when_written().Allreduce(sendbuf, recvbuf, **op_keyword(op))

    def Allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        self._when_written().Allgather(sendbuf, recvbuf)

    def Allgatherv(self, sendbuf: Any, recvbuf: Any) -> None:
        self._when_written().Allgatherv(sendbuf, recvbuf)

    def Reduce_scatter(self, sendbuf: Any, recvbuf: Any, recvcounts: Sequence[int], op: Op = SUM) -> None:
        self._when_written().Reduce_scatter(sendbuf, recvbuf, recvcounts=recvcounts, **op_keyword(op))
