"""Memories: a library and the place where its arrays lie, the host or a CUDA device.

"numpy" and "torch" are host memories, "cupy" and "torch-cuda" are device memories. A case draws a memory, and an operator returns
arrays in the memory of its argument.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import sys
from collections.abc import Hashable
from functools import cache
from typing import Any, Literal, TypeAlias

import numpy as np

from adjointlab.core.arrays.libraries import is_torch, known_library, library_of
from adjointlab.typing import Array

__all__ = [
    "MEMORIES", "MIXTURES", "DeviceType", "address_of", "current_device", "device_of", "device_type_of", "foreign_device", "installed", "is_on_device", "itemsize_of", "memory_and_place", "memory_kind", "memory_of", "memory_on",
    "nbytes_of", "place_name",
]  # fmt: skip

MEMORIES = ("numpy", "torch", "cupy", "torch-cuda")

MIXTURES = ("numpy+cupy", "torch+torch-cuda")
"""Mixtures, whose two memories the ranks use in turn: rank 0 the first, rank 1 the second, rank 2 the first."""

DeviceType: TypeAlias = Literal["cpu", "cuda"]
"""torch's name for a type of device."""


def is_on_device(array: object) -> bool:
    """Return True for an array in device memory; False for a host array, and for anything that is not an array."""
    if type(array) is np.ndarray:  # first, since every call of every operator comes here
        return False
    # Only torch's tensors have this attribute; it saves a look-up of the library.
    of_torch = getattr(array, "is_cuda", None)
    return known_library(array) == "cupy" if of_torch is None else bool(of_torch)


def device_of(array: object) -> int | None:
    """Return the number of the device that an array lies on; `None` for a host array, and for anything that is not an array."""
    if not is_on_device(array):
        return None
    native: Any = array
    return int(native.get_device() if is_torch(native) else native.device.id)


def device_type_of(memory: str) -> DeviceType:
    """Return torch's name for the type of device of `memory`; "cpu" for mixtures, whose ranks have none in common."""
    return "cuda" if memory == "torch-cuda" else "cpu"


def memory_of(array: Array) -> str:
    """Return the memory that `array` lies in; raise `TypeError` if it is not an array."""
    library = library_of(array)
    return "torch-cuda" if library == "torch" and is_on_device(array) else library


def foreign_device(array: object) -> str:
    """Describe where `array` lies if that is a device other than the current one of its library; "" for any other array."""
    if type(array) is np.ndarray or not is_on_device(array):
        return ""
    device = device_of(array)
    current = current_device("torch" if is_torch(array) else "cupy")
    return "" if device == current else f"on device {device}, but the current device is {current}"


def current_device(library: str) -> int:
    """Return the number of the device on which torch or CuPy makes arrays for this thread."""
    loaded: Any = sys.modules[library]
    return int(loaded.cuda.current_device() if library == "torch" else loaded.cuda.runtime.getDevice())


def memory_and_place(array: Array) -> str:
    """Return the memory of an array, and its device if that is not the current one: arrays with equal texts may be used together."""
    return f"{memory_of(array)} {foreign_device(array)}".rstrip()


def memory_on(name: str, rank: int) -> str:
    """Return the memory of a rank if that of its case is `name`, a memory or a mixture of two."""
    parts = name.split("+")
    return parts[rank % len(parts)]


def place_name(array: object) -> str:
    """Return the place of an array in words: "the host" or "device 0"."""
    device = device_of(array)
    return "the host" if device is None else f"device {device}"


def memory_kind(array: Array) -> Hashable:
    """Return a key that is equal for arrays whose operations are ordered: of one class and, on a device, in one stream.

    Buffers that later calls reuse are found by it. Two streams may run at once, so they must not share buffers.
    """
    kind = type(array)
    if kind is np.ndarray or not is_on_device(array):
        return kind
    device = device_of(array)
    assert device is not None
    return kind, device, _stream_pointer(array, device)


def address_of(array: Array) -> int:
    """Return the address of the first element of an array on a device."""
    native: Any = array
    return int(native.data_ptr() if is_torch(native) else native.data.ptr)


def itemsize_of(array: Array) -> int:
    """Return the size of an element in bytes."""
    native: Any = array
    return int(native.element_size() if is_torch(native) else native.itemsize)


def nbytes_of(array: Array) -> int:
    """Return the size of all elements in bytes."""
    return math.prod(array.shape) * itemsize_of(array)


def installed(memory: str) -> bool:
    """Return True if arrays can be made in `memory`, a mixture or the name of a library: it is installed, and there is a device."""
    if "+" in memory:
        return all(map(installed, memory.split("+")))
    library = memory.removesuffix("-cuda")
    if sys.modules.get(library) is None and not _is_found(library):
        return False
    return memory not in ("cupy", "torch-cuda") or _has_device(memory)


@cache  # called for each case, and searching for a module that is missing takes longest
def _is_found(library: str) -> bool:
    return importlib.util.find_spec(library) is not None


@cache
def _has_device(memory: str) -> bool:
    try:
        if memory == "torch-cuda":
            return bool(importlib.import_module("torch").cuda.is_available())
        return bool(importlib.import_module("cupy").cuda.runtime.getDeviceCount())
    except Exception:  # no driver, or one that is too old: `adjointlab info` reports it
        return False


def _stream_pointer(array: Array, device: int) -> int:
    if is_torch(array):
        return int(sys.modules["torch"].cuda.current_stream(device).cuda_stream)
    return int(sys.modules["cupy"].cuda.get_current_stream(device).ptr)
