"""The calls that operators make of a communicator to move arrays: what each transport of device memory offers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NoReturn

from adjointlab import MPI
from adjointlab.MPI import ANY_SOURCE, ANY_TAG, SUM, Op
from adjointlab.typing import Communicator, Request, Status

__all__ = ["DeviceCommunicator", "DeviceRequest", "given"]


class DeviceCommunicator(ABC):
    """A communicator whose buffers lie on a device; everything else is that of the communicator `comm`.

    Buffers are row-major arrays of one device, as :func:`adjointlab.core.arrays.message` makes them. What a method has received may be
    used at once in the current stream of the calling thread, and a buffer that was sent may be written to again.
    """

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm

    def __getattr__(self, name: str) -> Any:
        return getattr(self.comm, name)

    @abstractmethod
    def Isend(self, buf: Any, dest: int, tag: int = 0) -> Request:
        """Start a send."""

    @abstractmethod
    def Irecv(self, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Request:
        """Start a receive."""

    def Send(self, buf: Any, dest: int, tag: int = 0) -> None:
        """Send, and wait until the buffer may be used again."""
        self.Isend(buf, dest, tag).Wait()

    def Recv(self, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> None:
        """Receive, and wait for it."""
        self.Irecv(buf, source, tag).Wait()

    @abstractmethod
    def Bcast(self, buf: Any, root: int = 0) -> None:
        """Copy the buffer of the root to all."""

    @abstractmethod
    def Reduce(self, sendbuf: Any, recvbuf: Any, op: Op = SUM, root: int = 0) -> None:
        """Combine the buffers of all on the root; `recvbuf` is `None` elsewhere."""

    @abstractmethod
    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> None:
        """Combine the buffers of all, for all."""

    @abstractmethod
    def Allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        """Gather buffers of one length, for all."""

    @abstractmethod
    def Allgatherv(self, sendbuf: Any, recvbuf: Any) -> None:
        """Gather buffers of any lengths, for all; `recvbuf` is ``[buffer, (counts, displacements)]``."""

    @abstractmethod
    def Reduce_scatter(self, sendbuf: Any, recvbuf: Any, recvcounts: Sequence[int], op: Op = SUM) -> None:
        """Combine the buffers of all, of which each rank gets its part."""


class DeviceRequest(MPI.Request, ABC):
    """A message of a transport that is waited for in a batch; true until it is completed."""

    def __init__(self) -> None:
        self.is_active = True

    def __bool__(self) -> bool:
        return self.is_active

    def Wait(self, status: Status | None = None) -> bool:
        """Wait until it is complete."""
        if self:
            MPI.Request.Waitall([self])
        return True

    def Test(self, status: Status | None = None) -> bool:
        """Return True if it is complete."""
        return self.Get_status(status) and self.Wait(status)

    @abstractmethod
    def Get_status(self, status: Status | None = None) -> bool:
        """Return True if a test would complete it."""

    def Cancel(self) -> NoReturn:
        """Messages of arrays are not withdrawn."""
        raise NotImplementedError("a message from or to device memory cannot be cancelled; wait for it")

    def Free(self) -> NoReturn:
        """Messages of arrays are waited for."""
        raise NotImplementedError("a message from or to device memory cannot be freed; wait for it")


def given(op: Op) -> dict[str, Op]:
    """Return the argument `op` of a reduction, none for a sum: that is the default of mpi4py too, whose constants are others."""
    return {} if op is SUM else {"op": op}
