"""The interface of a transport of device memory: the calls that operators make on a communicator to move arrays."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NoReturn

from adjointlab import MPI
from adjointlab.MPI import ANY_SOURCE, ANY_TAG, SUM, Op
from adjointlab.typing import Communicator, Request, Status

__all__ = ["DeviceCommunicator", "DeviceRequest", "op_keyword"]


class DeviceCommunicator(ABC):
    """A communicator whose buffers lie on a device; all other attributes are those of the communicator `comm`.

    Buffers are row-major arrays of one device, as :func:`adjointlab.core.arrays.message` makes them. After a call or a wait, the current
    stream of the calling thread may use a received buffer at once, and may write to a sent one again.
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
        """Copy the buffer of the root to all ranks."""

    @abstractmethod
    def Reduce(self, sendbuf: Any, recvbuf: Any, op: Op = SUM, root: int = 0) -> None:
        """Combine the buffers of all ranks on the root; `recvbuf` is `None` elsewhere."""

    @abstractmethod
    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> None:
        """Combine the buffers of all ranks on all ranks."""

    @abstractmethod
    def Allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        """Gather buffers of equal length on all ranks."""

    @abstractmethod
    def Allgatherv(self, sendbuf: Any, recvbuf: Any) -> None:
        """Gather buffers of any lengths on all ranks; `recvbuf` is ``[buffer, (counts, displacements)]``."""

    @abstractmethod
    def Reduce_scatter(self, sendbuf: Any, recvbuf: Any, recvcounts: Sequence[int], op: Op = SUM) -> None:
        """Combine the buffers of all ranks; each rank gets its part of the result."""


class DeviceRequest(MPI.Request, ABC):
    """A message of a transport, waited for in a batch of requests; true until it is completed."""

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
        """Return True if `Test` would complete it."""

    def Cancel(self) -> NoReturn:
        """Raise: messages of arrays cannot be cancelled."""
        raise NotImplementedError("a message from or to device memory cannot be cancelled; wait for it")

    def Free(self) -> NoReturn:
        """Raise: messages of arrays must be waited for."""
        raise NotImplementedError("a message from or to device memory cannot be freed; wait for it")


def op_keyword(op: Op) -> dict[str, Op]:
    """Return the argument `op` of a reduction; none for a sum, mpi4py's default too, since mpi4py's constants are other objects."""
    return {} if op is SUM else {"op": op}
