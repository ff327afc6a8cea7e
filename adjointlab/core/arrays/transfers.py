"""Copies of arrays between memories: of the host, pageable or pinned, and of devices."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from adjointlab.core.arrays.conversions import message, resolved
from adjointlab.core.arrays.devices import is_on_device, itemsize_of, nbytes_of
from adjointlab.core.arrays.libraries import dtype_of, is_torch, module, native
from adjointlab.core.arrays.memory import copy, copy_into, empty, is_row_major
from adjointlab.core.arrays.streams import Mark, streams_of
from adjointlab.typing import Array, NumpyArray

__all__ = ["start_transfer"]


def start_transfer(array: Array, memory: str, *, pinned: bool) -> tuple[Array, Mark | None]:
    """Start a copy of `array` into fresh, row-major `memory`; return the copy, and a mark after it where the host must wait.

    An array on a device may be used in its current stream at once, and there is no mark. One on the host is complete when the mark
    is reached. With `pinned` copies go through page-locked memory, asynchronously; without it the driver makes them from and
    to the pageable memory itself. The argument may be written to as soon as the call returns, on a device in its current stream.
    """
    if is_on_device(array):
        if memory in ("cupy", "torch-cuda"):
            return _across_libraries(array, memory), None
        return _to_host(array, memory, pinned)
    if memory in ("cupy", "torch-cuda"):
        return _to_device(array, memory, pinned), None
    result = empty(array.shape, dtype_of(array).name, memory)
    _octets_of(result)[...] = _octets_of(array)
    return result, None


def _octets_of(array: Array) -> NumpyArray:
    """The bytes of an array of the host, of its own memory if that is row-major, else of a copy."""
    moved: Any = message(array)
    octets: NumpyArray = moved.reshape(-1).view(np.uint8)
    return octets


def _to_host(array: Array, memory: str, pinned: bool) -> tuple[Array, Mark]:
    inside = resolved(array)
    contiguous = inside if is_row_major(inside) else copy(inside)
    streams = streams_of(contiguous)
    nbytes = nbytes_of(contiguous)
    octets = streams.pinned(nbytes) if pinned else np.empty(nbytes, np.uint8)
    mark = streams.to_host(contiguous, octets[:nbytes], streams.mark() if pinned else None)
    streams.keep_until(mark, contiguous)
    return _of_octets(octets[:nbytes], tuple(array.shape), dtype_of(array).name, memory), mark


def _to_device(array: Array, memory: str, pinned: bool) -> Array:
    result = empty(tuple(array.shape), dtype_of(array).name, memory)
    streams, octets = streams_of(result), _octets_of(array)
    if pinned:
        staged = streams.pinned(octets.size)[: octets.size]
        staged[...] = octets
        mark = streams.to_device(staged, result, streams.mark())
        streams.wait(mark)
        streams.keep_until(mark, staged)
    else:
        streams.to_device(octets, result, None).synchronize()
    return result


def _across_libraries(array: Array, memory: str) -> Array:
    """A copy on the device, of memory that both libraries see by DLPack."""
    if memory == "torch-cuda":
        torch: Any = module("torch")
        seen = array if is_torch(array) else torch.from_dlpack(array)
    else:
        cupy: Any = module("cupy")
        seen = cupy.from_dlpack(resolved(array)) if is_torch(array) else array
    result = empty(tuple(array.shape), dtype_of(array).name, memory)
    copy_into(result, seen)
    return result


def _of_octets(octets: NumpyArray, shape: tuple[int, ...], name: str, memory: str) -> Array:
    """An array of the host in the memory of `octets`."""
    if octets.size == 0:  # torch would not view it as another type
        return empty(shape, name, memory)
    if memory == "torch":
        import torch

        tensor: Array = torch.from_numpy(octets).view(native("torch", name)).reshape(shape)
        return tensor
    array: Array = octets.view(native("numpy", name)).reshape(shape)
    assert math.prod(shape) * itemsize_of(array) == octets.size
    return array
