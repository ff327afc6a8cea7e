"""Order between the work of a device and the host: marks in a stream, and copies to and from pinned memory in other streams.

The work of an operator goes to the current stream of its library, as the caller's does. Copies between a device and the host go to two
other streams, one for each direction, so that both copy engines work at once. Only marks order the work; no operator waits for a
whole device::

    current stream      pack ──mark─┐                               ┌─wait── unpack
    stream to the host              └─wait── copy ──mark─┐          │
    host                                                 └─finish── send   receive
    stream to the device                                                      copy ──mark
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from functools import cache
from typing import Any, Protocol

import numpy as np

from adjointlab.core.arrays.conversions import octets
from adjointlab.core.arrays.devices import device_of
from adjointlab.core.arrays.libraries import is_torch
from adjointlab.typing import Array, NumpyArray

__all__ = ["Mark", "Streams", "streams_of"]


class Mark(Protocol):
    """A point in a stream: a CUDA event."""

    def synchronize(self) -> None: ...


class Streams(ABC):
    """The streams of one library on one device, for the calling thread."""

    def __init__(self, device: int) -> None:
        self._device = device
        self._kept: list[tuple[Mark, object]] = []

    @abstractmethod
    def mark(self) -> Mark:
        """Return a mark after all work that has been queued in the current stream."""

    @abstractmethod
    def pointer(self) -> int:
        """Return the address of the current stream."""

    @abstractmethod
    def wait(self, mark: Mark) -> None:
        """Make later work of the current stream wait for a mark; the host does not wait."""

    @abstractmethod
    def is_reached(self, mark: Mark) -> bool:
        """Return True if the work before a mark is done; does not wait."""

    def keep_until(self, mark: Mark, memory: object) -> None:
        """Keep memory alive until a mark is reached: host memory, which nothing else orders, or memory that another stream uses."""
        self._kept = [each for each in self._kept if not self.is_reached(each[0])]
        self._kept.append((mark, memory))

    @abstractmethod
    def pinned(self, nbytes: int) -> NumpyArray:
        """Return page-locked host memory, as bytes."""

    @abstractmethod
    def to_host(self, source: Array, target: NumpyArray, after: Mark | None) -> Mark:
        """Start a copy of a row-major array into the first bytes of `target`, which must stay alive until the returned mark.

        The copy begins after the mark `after`; without one it is queued in the current stream.
        """

    @abstractmethod
    def to_device(self, source: NumpyArray, target: Array, after: Mark | None) -> Mark:
        """Start a copy of the first bytes of `source` into a row-major array; see :meth:`to_host`."""


def streams_of(array: Array) -> Streams:
    """Return the streams of the library and the device of an array; raise `TypeError` for a host array."""
    device = device_of(array)
    if device is None:
        raise TypeError("array: lies on the host, where there are no streams; pass an array on a device")
    return _torch_streams(device) if is_torch(array) else _cupy_streams(device)


class _CupyStreams(Streams):
    def __init__(self, device: int) -> None:
        super().__init__(device)
        self._cuda: Any = sys.modules["cupy"].cuda
        with self._on_device():
            self._to_host, self._to_device = (self._cuda.Stream(non_blocking=True) for _ in range(2))

    def _on_device(self) -> AbstractContextManager[object]:
        on_device: AbstractContextManager[object] = self._cuda.Device(self._device)
        return on_device

    def mark(self) -> Mark:
        with self._on_device():
            return self._marked(self._cuda.get_current_stream())

    def pointer(self) -> int:
        with self._on_device():
            return int(self._cuda.get_current_stream().ptr)

    def _marked(self, stream: Any) -> Mark:
        event: Mark = self._cuda.Event(disable_timing=True)
        stream.record(event)
        return event

    def wait(self, mark: Mark) -> None:
        with self._on_device():
            self._cuda.get_current_stream().wait_event(mark)

    def is_reached(self, mark: Any) -> bool:
        return bool(mark.done)

    def pinned(self, nbytes: int) -> NumpyArray:
        return np.frombuffer(self._cuda.alloc_pinned_memory(max(nbytes, 1)), np.uint8, nbytes)

    def to_host(self, source: Any, target: NumpyArray, after: Mark | None) -> Mark:
        kind = self._cuda.runtime.memcpyDeviceToHost
        return self._copy(target.ctypes.data, source.data.ptr, source.nbytes, kind, after, self._to_host)

    def to_device(self, source: NumpyArray, target: Any, after: Mark | None) -> Mark:
        kind = self._cuda.runtime.memcpyHostToDevice
        return self._copy(target.data.ptr, source.ctypes.data, target.nbytes, kind, after, self._to_device)

    def _copy(
        self, target: int, source: int, nbytes: int, kind: int, after: Mark | None, copy_stream: Any
    ) -> Mark:
        with self._on_device():
            stream = self._cuda.get_current_stream() if after is None else copy_stream
            if after is not None:
                stream.wait_event(after)
            if nbytes:
                self._cuda.runtime.memcpyAsync(target, source, nbytes, kind, stream.ptr)
            return self._marked(stream)


class _TorchStreams(Streams):
    def __init__(self, device: int) -> None:
        super().__init__(device)
        self._torch: Any = sys.modules["torch"]
        self._to_host, self._to_device = (self._torch.cuda.Stream(device) for _ in range(2))

    def mark(self) -> Mark:
        return self._marked(self._torch.cuda.current_stream(self._device))

    def pointer(self) -> int:
        return int(self._torch.cuda.current_stream(self._device).cuda_stream)

    def _marked(self, stream: Any) -> Mark:
        event: Mark = stream.record_event()
        return event

    def wait(self, mark: Mark) -> None:
        self._torch.cuda.current_stream(self._device).wait_event(mark)

    def is_reached(self, mark: Any) -> bool:
        return bool(mark.query())

    def pinned(self, nbytes: int) -> NumpyArray:
        pinned: NumpyArray = self._torch.empty(nbytes, dtype=self._torch.uint8, pin_memory=True).numpy()
        return pinned

    def to_host(self, source: Array, target: NumpyArray, after: Mark | None) -> Mark:
        octets_of_source = octets(source)
        host = self._torch.from_numpy(target[: len(octets_of_source)])
        return self._copy(host, octets_of_source, after, self._to_host)

    def to_device(self, source: NumpyArray, target: Array, after: Mark | None) -> Mark:
        octets_of_target = octets(target)
        host = self._torch.from_numpy(source[: len(octets_of_target)])
        return self._copy(octets_of_target, host, after, self._to_device)

    def _copy(self, target: Any, source: Any, after: Mark | None, copy_stream: Any) -> Mark:
        stream = self._torch.cuda.current_stream(self._device) if after is None else copy_stream
        if after is not None:
            stream.wait_event(after)
            # torch reuses memory in the order of the stream that it was allocated in; this registers the use in another stream.
            (target if target.is_cuda else source).record_stream(stream)
        with self._torch.cuda.stream(stream):
            target.copy_(source, non_blocking=True)
        return self._marked(stream)


# Made once per process: threads of simulated ranks share the streams of a device.
_cupy_streams, _torch_streams = cache(_CupyStreams), cache(_TorchStreams)
