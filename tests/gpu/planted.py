"""Bugs of code for a device: planted in the transports, the kernels and an operator, on the stand-ins and on a real device."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest

from adjointlab.core import arrays
from adjointlab.core.arrays.streams import _CupyStreams
from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.core.transport import staging
from adjointlab.core.transport.direct import DirectCommunicator
from adjointlab.core.transport.pinned import PinnedPool
from adjointlab.devices.transport import OVERRIDE, Transport
from adjointlab.primitives.broadcast import Broadcast

__all__ = ["BROADCAST", "KERNEL_BUGS", "OPERATORS", "PLANTED", "Planted"]


# The transports


def _send_without_waiting(self: DirectCommunicator) -> Any:
    return self.comm


def _send_before_the_copy_is_complete(self: staging.StagedCommunicator, *, wait: bool = False) -> None:
    while self._unsent:
        self._unsent.popleft().begin()


def _take_what_is_still_copied(self: PinnedPool, nbytes: int) -> Any:
    size = max(512, 1 << max(nbytes - 1, 0).bit_length())
    free = self._free.setdefault(size, [])
    return free.pop().memory if free else self._streams.pinned(size)


def _give_back_before_it_is_sent(self: Any) -> None:
    self.inner = self.transport.comm.Isend(staging._like(self.buf, self.staged), *self._to)
    self.transport.pool.give_back(self.staged)
    self.transport.pool.give_back = lambda memory, after=None: None


def _copy_what_is_not_yet_written(self: _CupyStreams, source: Any, target: Any, after: Any) -> Any:
    kind = self._cuda.runtime.memcpyDeviceToHost
    self._cuda.runtime.memcpyAsync(
        target.ctypes.data, source.data.ptr, source.nbytes, kind, self._to_host.ptr
    )
    return self._marked(self._to_host)


def _use_before_it_has_arrived(self: _CupyStreams, mark: Any) -> None:
    """The current stream does not wait for the copy to the device."""


_COPY_TO_THE_HOST = _CupyStreams.to_host


def _copied_at_once(self: _CupyStreams, source: Any, target: Any, after: Any) -> Any:
    mark = _COPY_TO_THE_HOST(self, source, target, after)
    mark.synchronize()
    return mark


class Planted(NamedTuple):
    owner: Any
    name: str
    replacement: Callable[..., Any]
    transport: Transport
    case: str = "halo exchange"
    is_seen_late: bool = True
    """Seen where the device is late; else where its copies are complete at once."""

    def plant(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Plant the bug and choose the transport that it is in."""
        monkeypatch.setenv(OVERRIDE, self.transport)
        if not self.is_seen_late:
            monkeypatch.setattr(_CupyStreams, "to_host", _copied_at_once)
        monkeypatch.setattr(self.owner, self.name, self.replacement)


PLANTED = {
    "no synchronisation before a send": Planted(
        DirectCommunicator, "_when_written", _send_without_waiting, Transport.CUDA_AWARE_MPI
    ),
    "sent before the copy is complete": Planted(
        staging.StagedCommunicator, "send_copied", _send_before_the_copy_is_complete, Transport.STAGING
    ),
    "pinned buffer reused while it is copied": Planted(
        PinnedPool, "take", _take_what_is_still_copied, Transport.STAGING, "sent among others"
    ),
    "pinned buffer reused while it is sent": Planted(
        staging._StagedSend,
        "begin",
        _give_back_before_it_is_sent,
        Transport.STAGING,
        "repartition",
        is_seen_late=False,
    ),
    "host copy of a stale buffer": Planted(
        _CupyStreams, "to_host", _copy_what_is_not_yet_written, Transport.STAGING
    ),
    "used before it has arrived": Planted(
        _CupyStreams, "wait", _use_before_it_has_arrived, Transport.STAGING, "repartition"
    ),
}


# The kernels

KERNEL_BUGS = {
    "off by one in the last block": ("element < box.size; ++turn", "element < box.size - 1; ++turn"),
    "face packed as if contiguous": ("index * box.source_strides[dim]", "index * sizeof(Element)"),
}


# An operator


class BroadcastToAnotherDevice(Broadcast):
    """Its results lie on a device of its choice."""

    def forward(self, x: Any, out: Any = None) -> Any:
        with ExitStack() as device:
            result = super().forward(x, out)
            if out is None and arrays.is_on_device(x):
                import cupy

                device.enter_context(cupy.cuda.Device(1))
                moved = cupy.empty(result.shape, result.dtype)
                moved.set(result.get())
                return moved
        return result


class BroadcastThroughTheHost(Broadcast):
    """Its results lie on the host."""

    def forward(self, x: Any, out: Any = None) -> Any:
        result = super().forward(x, out)
        return result if out is not None else arrays.to_numpy(result)


OPERATORS: dict[str, type[Broadcast]] = {
    "on another device": BroadcastToAnotherDevice,
    "on the host": BroadcastThroughTheHost,
}

BROADCAST: dict[str, Any] = {"layout": Layout((3, 4), Partition((1, 1))), "partition": Partition((2, 2))}
"""Parameters of a case of these."""
