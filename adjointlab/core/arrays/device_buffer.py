"""Flat buffers in device memory, with the interface of NumPy's flat arrays that the worlds use.

A world reads and writes the buffers of a call when MPI might, from any thread. MPI has no notion of streams: a caller that passes
device memory has waited for the work that writes it, and may use received memory at once. So each operation here runs in a
separate stream, which waits for no other, and is complete when it returns.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import cache
from typing import Any

import numpy as np

from adjointlab.core.arrays.conversions import message, to_numpy
from adjointlab.core.arrays.devices import address_of, device_of
from adjointlab.core.arrays.libraries import is_torch, name_of
from adjointlab.typing import Array, NumpyArray

__all__ = ["DeviceBuffer", "device_buffer"]


class DeviceBuffer:
    """A view of consecutive elements, with the attributes of a NumPy array of order 1.

    `native` is the library's own array. Elements of types that NumPy lacks are given as bytes.
    """

    def __init__(self, native: Array) -> None:
        self.native: Any = native
        self.dtype = np.dtype(name_of(native.dtype))
        (self.size,) = map(int, native.shape)
        self.nbytes = self.size * self.dtype.itemsize

    @property
    def address(self) -> int:
        """The address of the first element."""
        return address_of(self.native)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, key: slice) -> DeviceBuffer:
        return DeviceBuffer(self.native[key])

    def __setitem__(self, key: Any, value: object) -> None:
        def assign() -> None:
            self.native[key] = self._assignable(value)

        _complete(self.native, assign)

    def _assignable(self, value: object) -> object:
        """Return `value` for an assignment to this buffer: host memory, as another rank may send it, is copied to the device."""
        if isinstance(value, DeviceBuffer):
            return value.native
        if not isinstance(value, np.ndarray):
            return value
        if is_torch(self.native):
            return _library(self.native).from_numpy(np.array(value)).to(self.native.device)
        return _library(self.native).asarray(value)

    def __array__(self, dtype: object = None, copy: bool | None = None) -> NumpyArray:
        """Return a copy on the host, for a rank that receives there a message from device memory."""
        values: NumpyArray = _complete(self.native, lambda: to_numpy(self.native))
        return values

    def copy(self) -> DeviceBuffer:
        """Return a copy in fresh memory of the device."""

        def copied() -> Array:
            return self.native.clone() if is_torch(self.native) else self.native.copy()

        return DeviceBuffer(_complete(self.native, copied))

    def view(self, dtype: Any) -> DeviceBuffer:
        """Return the same memory as elements of another type."""
        name = np.dtype(dtype).name
        return DeviceBuffer(self.native.view(getattr(_library(self.native), name)))

    def tobytes(self) -> bytes:
        """Return the contents, copied to the host."""
        return self.__array__().tobytes()

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, out: Sequence[Any] = (), **_: object
    ) -> DeviceBuffer:
        """Apply a function of a reduction: the one of the same name in the device's library."""
        function = getattr(_library(self.native), ufunc.__name__, None)
        if method != "__call__" or function is None:
            raise NotImplementedError(f"{ufunc.__name__} of memory of a device")
        result = _complete(self.native, lambda: function(*map(self._assignable, inputs)))
        if not out:
            return DeviceBuffer(result)
        into: DeviceBuffer
        (into,) = out
        into[:] = DeviceBuffer(result)
        return into

    def __array_function__(
        self, function: Callable[..., Any], _: Iterable[type], arguments: Sequence[Any], keywords: Any
    ) -> Any:
        if function is np.concatenate:
            return _concatenated(arguments[0])
        if function is np.may_share_memory:
            return _overlap(arguments[0], arguments[1])
        return NotImplemented


def device_buffer(array: Array) -> DeviceBuffer:
    """Return all elements of a row-major array on a device; raise `BufferError` for another memory order."""
    moved = message(array)
    if array.shape and address_of(moved) != address_of(array):
        raise BufferError("buffer is not contiguous")
    return DeviceBuffer(moved.reshape((-1,)))


def _concatenated(parts: Sequence[Any]) -> DeviceBuffer:
    first: DeviceBuffer = next(each for each in parts if isinstance(each, DeviceBuffer))

    def joined() -> Any:
        return _library(first.native).concatenate([first._assignable(each) for each in parts])

    return DeviceBuffer(_complete(first.native, joined))


def _overlap(one: object, other: object) -> bool:
    if not (isinstance(one, DeviceBuffer) and isinstance(other, DeviceBuffer)):
        return False
    start = max(one.address, other.address)
    return start < min(one.address + one.nbytes, other.address + other.nbytes)


def _complete(array: Array, work: Callable[[], Any]) -> Any:
    """Do work in the stream of this device's buffers, and wait for it."""
    device = device_of(array)
    assert device is not None
    stream = _stream(is_torch(array), device)
    with ExitStack() as current:
        for each in _entered(array, device, stream):
            current.enter_context(each)
        result = work()
    stream.synchronize()
    return result


def _entered(array: Array, device: int, stream: Any) -> list[AbstractContextManager[object]]:
    if is_torch(array):
        return [sys.modules["torch"].cuda.stream(stream), sys.modules["torch"].no_grad()]
    return [sys.modules["cupy"].cuda.Device(device), stream]


@cache
def _stream(of_torch: bool, device: int) -> Any:
    if of_torch:
        return sys.modules["torch"].cuda.Stream(device)
    with sys.modules["cupy"].cuda.Device(device):
        return sys.modules["cupy"].cuda.Stream(non_blocking=True)


def _library(array: Array) -> Any:
    return sys.modules["torch" if is_torch(array) else "cupy"]
