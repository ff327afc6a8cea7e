"""A module that stands in for CuPy in one test: :func:`cupy_stand_in`.

It has what the lab uses of CuPy, under CuPy's names (tests/gpu/test_stand_in.py holds them against CuPy's own where that is
installed), on a device that works as late as it may.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np

from adjointlab.core.arrays import device_buffer, devices, kernels, libraries, rank_streams, streams
from tests.gpu.stand_in import arrays, host_kernels
from tests.gpu.stand_in.arrays import OutOfMemoryError, counts, kept, ndarray
from tests.gpu.stand_in.streams import Event, Stream, current_device, enqueue, get_current_stream, on_device

__all__ = ["PINNED_GARBAGE", "cupy_stand_in"]

PINNED_GARBAGE = 0x5A
_DEVICES = 2
_TO_DEVICE, _TO_HOST = 1, 2
_FUNCTIONS = ("add", "multiply", "maximum", "minimum", "logical_and", "logical_or", "logical_xor")


class _Pinned:
    """Ranges of page-locked memory: copies from and to them are asynchronous, from and to other memory they are not."""

    ranges: list[tuple[int, int]] = []  # noqa: RUF012

    @classmethod
    def allocate(cls, nbytes: int) -> np.ndarray[Any, Any]:
        memory = np.full(nbytes, PINNED_GARBAGE, np.uint8)
        kept.append(memory)
        cls.ranges.append((memory.ctypes.data, memory.ctypes.data + nbytes))
        return memory

    @classmethod
    def has(cls, address: int) -> bool:
        return any(start <= address < stop for start, stop in cls.ranges)


def _memcpy_async(target: int, source: int, nbytes: int, kind: int, stream: int) -> None:
    chosen = Stream.by_pointer[stream]
    counts["to_device" if kind == _TO_DEVICE else "to_host"] += 1
    counts["bytes"] += nbytes
    if not _Pinned.has(source if kind == _TO_DEVICE else target):
        # The driver reads pageable memory before the call returns, and has written it by then.
        if kind == _TO_DEVICE:
            contents = ctypes.string_at(source, nbytes)
            enqueue(lambda: ctypes.memmove(target, contents, nbytes), chosen)
        else:
            enqueue(lambda: ctypes.memmove(target, source, nbytes), chosen)
            chosen.synchronize()
        return
    enqueue(lambda: ctypes.memmove(target, source, nbytes), chosen)


def _refuse_device_wide() -> None:
    raise AssertionError("the whole device is waited for, and not an event")


class _RawModule:
    source: str | None = None
    """Another source than the lab's, for bugs that are planted in it."""

    def __init__(self, code: str, options: tuple[str, ...] = (), backend: str = "nvrtc") -> None:
        self._module = host_kernels.RawModule(self.source or code)

    def get_function(self, name: str) -> Callable[..., None]:
        function = self._module.get_function(name)

        def launch(grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...], **_: object) -> None:
            counts["launches"] += 1
            by_value = tuple(each.copy() for each in args)
            enqueue(lambda: function(grid, block, by_value))

        return launch


def _module() -> ModuleType:
    module: Any = ModuleType("cupy")
    module.__spec__ = ModuleSpec("cupy", None)
    module.__version__ = "0"
    module.ndarray, module.generic, module.RawModule = ndarray, np.generic, _RawModule
    for name in ("empty", "array", "asnumpy", "may_share_memory", "concatenate"):
        setattr(module, name, getattr(arrays, name))
    module.asarray = arrays.array
    for name in (
        "float64",
        "float32",
        "float16",
        "complex128",
        "complex64",
        "int64",
        "int32",
        "int16",
        "uint8",
        "uint16",
        "bool_",
    ):
        setattr(module, name, getattr(np, name))
    for name in _FUNCTIONS:
        setattr(module, name, getattr(np, name))  # dispatches to the arrays
    module.get_default_memory_pool = lambda: SimpleNamespace(
        free_all_blocks=lambda: counts.update(pools_freed=1)
    )
    module.cuda = SimpleNamespace(
        Stream=Stream,
        Event=Event,
        Device=on_device,
        get_current_stream=get_current_stream,
        alloc_pinned_memory=_Pinned.allocate,
        memory=SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
        runtime=SimpleNamespace(
            memcpyAsync=_memcpy_async,
            memcpyHostToDevice=_TO_DEVICE,
            memcpyDeviceToHost=_TO_HOST,
            getDevice=current_device,
            getDeviceCount=lambda: _DEVICES,
            deviceSynchronize=_refuse_device_wide,
        ),
    )
    return module


_CACHES = (
    rank_streams._cupy_stream,
    *(libraries.module, libraries.native, devices._has_device, kernels._module),
    *(streams._cupy_streams, device_buffer._stream),
)


@contextmanager
def cupy_stand_in(kernel_source: str | None = None) -> Iterator[ModuleType]:
    """Let the stand-in be CuPy, with no memory in use and nothing queued; `kernel_source` in place of the lab's kernels."""
    before = sys.modules.get("cupy")
    assert before is None or before.__spec__ is None or before.__spec__.loader is not None, (
        "a stand-in is in use"
    )
    sys.modules["cupy"] = module = _module()
    _RawModule.source = kernel_source
    for cached in _CACHES:
        cached.cache_clear()
    counts.clear()
    try:
        # Nor is there a device of torch's: its memory would be given to kernels that are compiled for the host.
        with patch.object(devices, "_has_device", lambda memory: memory == "cupy"):
            yield module
    finally:
        arrays.Memory.limit = 2**40
        Stream.null.forget()
        _Pinned.ranges.clear()
        kept.clear()
        for cached in _CACHES:
            cached.cache_clear()
        del sys.modules["cupy"]
        if before is not None:
            sys.modules["cupy"] = before
