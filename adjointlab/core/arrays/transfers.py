"""Copies of arrays between memories: pageable or pinned host memory, and device memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from adjointlab.core.arrays.conversions import message, resolved
from adjointlab.core.arrays.devices import is_on_device, memory_of, nbytes_of
from adjointlab.core.arrays.libraries import dtype_of, module, native
from adjointlab.core.arrays.memory import copy, copy_into, empty, is_row_major
from adjointlab.core.arrays.streams import Mark, streams_of
from adjointlab.typing import Array, NumpyArray

__all__ = ["start_transfer", "view_in"]

_OF_DEVICE = ("cupy", "torch-cuda")


def start_transfer(array: Array, memory: str, *, pinned: bool) -> tuple[Array, Mark | None]:
    """Start a copy of `array` into fresh, row-major `memory`; return the copy, and a mark after it if the host must wait.

    A copy on a device may be used in the current stream at once, and has no mark. A copy on the host is complete when the mark
    is reached. With `pinned`, copies go through page-locked memory, asynchronously; without it, the driver copies from and to
    pageable memory directly. The argument may be written to as soon as the call returns: on a device, in its current stream.
    """
    if is_on_device(array):
        if memory in _OF_DEVICE:
            return _across_libraries(array, memory), None
        return _to_host(array, memory, pinned)
    if memory in _OF_DEVICE:
        return _to_device(array, memory, pinned), None
    result = empty(array.shape, dtype_of(array).name, memory)
    _octets_of(result)[...] = _octets_of(array)
    return result, None


def view_in(array: Array, memory: str) -> Array:
    """Return the memory of an array on a device as an array of `memory`, "cupy" or "torch-cuda": no copy, by DLPack.

    The current stream of that library waits for the work in the current stream of the array's library. A torch tensor is outside the
    graph. Raises `ValueError` for another memory, for a host array, and for bfloat16 in CuPy, which has no such type.
    """
    name, held = dtype_of(array).name, memory_of(array)
    if memory not in _OF_DEVICE or held not in _OF_DEVICE:
        raise ValueError(
            f"memory: a view goes from one of {', '.join(_OF_DEVICE)} to another, not from {held} to {memory}; "
            "copy the array with adjointlab.primitives.transfer.Transfer"
        )
    if held == memory:
        return array
    native(library := memory.removesuffix("-cuda"), name)
    exchange: Any = module(library)
    view: Array = exchange.from_dlpack(resolved(array))
    return view


def _octets_of(array: Array) -> NumpyArray:
    """Return the bytes of a host array: of its own memory if that is row-major, else of a copy."""
    moved: Any = message(array)
    octets: NumpyArray = moved.ravel().view(np.uint8)
    return octets


def _to_host(array: Array, memory: str, pinned: bool) -> tuple[Array, Mark]:
    inside = resolved(array)
    contiguous = inside if is_row_major(inside) else copy(inside)
    streams = streams_of(contiguous)
    nbytes = nbytes_of(contiguous)
    octets = streams.pinned(nbytes) if pinned else np.empty(nbytes, np.uint8)
    mark = streams.to_host(contiguous, octets[:nbytes], streams.mark() if pinned else None)
    # `octets` too: the caller may drop the copy before it is complete, and freed pinned memory is allocated again.
    streams.keep_until(mark, (contiguous, octets))
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
        # torch warns about read-only memory, even if it only reads it.
        source = octets if octets.flags.writeable else octets.copy()
        streams.to_device(source, result, None).synchronize()
    return result


def _across_libraries(array: Array, memory: str) -> Array:
    """Copy on the device in the current stream of the argument's library, so that later work there may change the argument."""
    result = empty(tuple(array.shape), dtype_of(array).name, memory)
    there = view_in(result, memory_of(array))
    copy_into(there, array)
    view_in(there, memory)  # the current stream of the result's library waits for the copy
    return result


def _of_octets(octets: NumpyArray, shape: tuple[int, ...], name: str, memory: str) -> Array:
    """Return a host array in the memory of `octets`."""
    if not octets.size:  # torch would not view it as another type
        return empty(shape, name, memory)
    if memory == "torch":
        import torch

        tensor: Array = torch.from_numpy(octets).view(native("torch", name)).reshape(shape)
        return tensor
    array: Array = octets.view(native("numpy", name)).reshape(shape)
    return array
