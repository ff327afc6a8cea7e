"""Device buffers staged in pinned host memory; some messages are copied while others are in flight.

    Irecv     MPI receives into a pinned buffer of its own
    Isend     an event after the work so far; behind it a copy to a pinned buffer, in the stream to the host; an event after that
    Waitall   each message is sent when its own copy is complete, while the copies of the later ones go on;
              each that has arrived is copied to the device, while others are in flight; the current stream waits for these copies

The unit of this overlap is one message. A pinned buffer is used again only after the send that reads it, or the copy
to the device, is complete. This rank's next call begins the sends that have not begun, before it waits for other ranks.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from adjointlab import MPI
from adjointlab.core import arrays
from adjointlab.core.arrays.streams import Mark, Streams
from adjointlab.core.transport.calls import DeviceCommunicator, DeviceRequest, given
from adjointlab.core.transport.pinned import PinnedPool
from adjointlab.MPI import ANY_SOURCE, ANY_TAG, SUM, Op
from adjointlab.typing import Communicator, NumpyArray, Request, Status

__all__ = ["StagedCommunicator"]


class StagedCommunicator(DeviceCommunicator):
    """A communicator for device buffers, staged in pinned host memory; see the module."""

    def __init__(self, comm: Communicator, streams: Streams) -> None:
        super().__init__(comm)
        self.streams, self.pool = streams, PinnedPool(streams)
        self._unsent: deque[_StagedSend] = deque()

    def Isend(self, buf: Any, dest: int, tag: int = 0) -> Request:
        staged = self.pool.take(arrays.nbytes_of(buf))
        copied = self.streams.to_host(buf, staged, self.streams.mark())
        request = _StagedSend(self, buf, staged, copied, dest, tag)
        self._unsent.append(request)
        self.send_copied()
        return request

    def Irecv(self, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Request:
        self.send_copied()
        staged = self.pool.take(arrays.nbytes_of(buf))
        # The copy to the device must wait for the work of the current stream on the buffer.
        received = self.comm.Irecv(_like(buf, staged), source, tag)
        return _StagedReceive(self, buf, staged, received, self.streams.mark())

    def send_copied(self, *, wait: bool = False) -> None:
        """Begin the sends whose copies are complete, in order; with `wait` all sends, each as soon as its copy is complete."""
        while self._unsent:
            first = self._unsent[0]
            if wait:
                first.copied.synchronize()
            elif not self.streams.is_reached(first.copied):
                return
            self._unsent.popleft().begin()

    def Bcast(self, buf: Any, root: int = 0) -> None:
        if self.comm.Get_rank() == root:
            staged, sent = self._sent(buf)
            self.comm.Bcast(sent, root)
            self.pool.give_back(staged)
        else:
            staged, received = self._received(buf)
            self.comm.Bcast(received, root)
            self._unpack(staged, buf)

    def Reduce(self, sendbuf: Any, recvbuf: Any, op: Op = SUM, root: int = 0) -> None:
        staged, sent = self._sent(sendbuf)
        if self.comm.Get_rank() == root:
            result, received = self._received(recvbuf)
            self.comm.Reduce(sent, received, root=root, **given(op))
            self._unpack(result, recvbuf)
        else:
            self.comm.Reduce(sent, None, root=root, **given(op))
        self.pool.give_back(staged)

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> None:
        self._exchange(partial(self.comm.Allreduce, **given(op)), sendbuf, recvbuf)

    def Allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        self._exchange(self.comm.Allgather, sendbuf, recvbuf)

    def Allgatherv(self, sendbuf: Any, recvbuf: Any) -> None:
        buf, blocks = recvbuf
        staged, sent = self._sent(sendbuf)
        # Elements between the blocks keep their values.
        has_gaps = sum(blocks[0]) < math.prod(buf.shape)
        result, received = self._sent(buf) if has_gaps else self._received(buf)
        self.comm.Allgatherv(sent, [received, blocks])
        self._unpack(result, buf)
        self.pool.give_back(staged)

    def Reduce_scatter(self, sendbuf: Any, recvbuf: Any, recvcounts: Sequence[int], op: Op = SUM) -> None:
        call = partial(self.comm.Reduce_scatter, recvcounts=recvcounts, **given(op))
        self._exchange(call, sendbuf, recvbuf)

    def _exchange(self, call: Callable[[Any, Any], None], sendbuf: Any, recvbuf: Any) -> None:
        """Make a collective call of MPI in which every rank sends one buffer and receives another."""
        staged, sent = self._sent(sendbuf)
        result, received = self._received(recvbuf)
        call(sent, received)
        self._unpack(result, recvbuf)
        self.pool.give_back(staged)

    def _sent(self, buf: Any) -> tuple[NumpyArray, NumpyArray]:
        """Copy a buffer into pinned memory, and wait for the copy; return the memory as bytes and as the buffer's elements."""
        # Before this rank waits in a collective: other ranks may need these messages to reach it.
        self.send_copied(wait=True)
        staged = self.pool.take(arrays.nbytes_of(buf))
        self.streams.to_host(buf, staged, None).synchronize()
        return staged, _like(buf, staged)

    def _received(self, buf: Any) -> tuple[NumpyArray, NumpyArray]:
        """Return pinned memory to receive a buffer in, as bytes and as the buffer's elements."""
        self.send_copied(wait=True)
        staged = self.pool.take(arrays.nbytes_of(buf))
        return staged, _like(buf, staged)

    def _unpack(self, staged: NumpyArray, buf: Any) -> None:
        """Copy what was received to the device, in the order of the current stream, and give the memory back."""
        self.pool.give_back(staged, self.streams.to_device(staged, buf, None))


class _StagedRequests(MPI.RequestBatch):
    """Several requests of one or more transports, waited for together."""

    requests: Sequence[_StagedRequest]

    def wait_all(self, name: str) -> None:
        for request in self.requests:
            request.transport.send_copied(wait=True)
        receives = [
            request for request in self.requests if isinstance(request, _StagedReceive) and request.inner
        ]
        inner = [receive.inner for receive in receives]
        for _ in receives:  # each as it arrives
            receives[MPI.Request.Waitany(inner)].copy_to_device()
        sends = [request for request in self.requests if isinstance(request, _StagedSend) and request.inner]
        MPI.Request.Waitall([send.inner for send in sends])

    def complete_all(self, statuses: Sequence[Any] | None) -> list[Any]:
        for request in self.requests:
            request.finish()
        return [None] * len(self.requests)


class _StagedRequest(DeviceRequest):
    """A message through pinned memory."""

    batch_type = _StagedRequests
    inner: Any = None
    """MPI's request; `None` for a send that has not begun."""

    def __init__(self, transport: StagedCommunicator, buf: Any, staged: NumpyArray) -> None:
        super().__init__()
        self.transport, self.buf, self.staged = transport, buf, staged

    def Get_status(self, status: Status | None = None) -> bool:
        self.transport.send_copied()
        return not self or (self.inner is not None and bool(self.inner.Get_status()))

    def finish(self) -> None:
        """Give the pinned memory back, after MPI is done with it."""
        self.is_active = False


class _StagedSend(_StagedRequest):
    def __init__(
        self, transport: StagedCommunicator, buf: Any, staged: NumpyArray, copied: Mark, dest: int, tag: int
    ) -> None:
        super().__init__(transport, buf, staged)
        self.copied = copied
        self._to = dest, tag

    def begin(self) -> None:
        """Send what has been copied."""
        self.inner = self.transport.comm.Isend(_like(self.buf, self.staged), *self._to)

    def finish(self) -> None:
        if self:
            self.transport.pool.give_back(self.staged)
        super().finish()


class _StagedReceive(_StagedRequest):
    def __init__(
        self, transport: StagedCommunicator, buf: Any, staged: NumpyArray, inner: Request, before: Mark
    ) -> None:
        super().__init__(transport, buf, staged)
        self.inner = inner
        self._before = before
        self._copied: Mark | None = None

    def copy_to_device(self) -> None:
        """Start the copy of what has arrived."""
        self._copied = self.transport.streams.to_device(self.staged, self.buf, self._before)

    def finish(self) -> None:
        if self:
            if self._copied is None:
                self.copy_to_device()
            assert self._copied is not None
            self.transport.streams.wait(self._copied)
            self.transport.pool.give_back(self.staged, self._copied)
        super().finish()


def _like(buf: Any, staged: NumpyArray) -> NumpyArray:
    """Return the first bytes of pinned memory as elements of the type and number of a device buffer."""
    view: NumpyArray = staged[: arrays.nbytes_of(buf)].view(arrays.dtype_name(buf))
    return view
