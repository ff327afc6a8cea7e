"""The CUDA device that `gpu.py` uses through CuPy, and a stand-in on the host for runs that only test the script."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

__all__ = ["CudaDevice", "Device", "Host", "lacking", "on_device"]

Array = Any
Call = Callable[[], object]


class Device(Protocol):
    """Arrays, pinned memory, copies that are enqueued, and the device's own clock."""

    title: str
    xp: Any

    def pinned(self, array: Array) -> np.ndarray[Any, Any]:
        """Page-locked memory of the host for what `array` holds."""

    def to_host(self, source: Array, target: np.ndarray[Any, Any]) -> Call:
        """Enqueue a copy; return the function that waits for it."""

    def to_device(self, source: np.ndarray[Any, Any], target: Array) -> None:
        """Enqueue a copy."""

    def synchronize(self) -> None:
        """Wait for the current stream."""

    def seconds(self, contestants: Mapping[str, Call], repeats: int, rounds: int) -> dict[str, float]:
        """Seconds of the device for one call of each: medians over rounds in which all run side by side."""


class CudaDevice:
    """CuPy's current device, one for each process of the host in turn."""

    def __init__(self, number: int = 0) -> None:
        import cupy

        self.xp = cupy
        runtime = cupy.cuda.runtime
        index = number % runtime.getDeviceCount()
        cupy.cuda.Device(index).use()
        name = runtime.getDeviceProperties(index)["name"]
        self.title = f"{name.decode() if isinstance(name, bytes) else name}, CuPy {cupy.__version__}"
        # Work that keeps the device busy while calls are enqueued behind it.
        self._block = cupy.zeros(1 << 28, cupy.uint8), cupy.zeros(1 << 28, cupy.uint8)

    def pinned(self, array: Array) -> np.ndarray[Any, Any]:
        import cupyx

        return np.asarray(cupyx.empty_pinned(array.shape, array.dtype))

    def to_host(self, source: Array, target: np.ndarray[Any, Any]) -> Call:
        source.data.copy_to_host_async(target.ctypes.data, source.nbytes, self.xp.cuda.get_current_stream())
        done = self.xp.cuda.Event(disable_timing=True)
        done.record()
        return done.synchronize  # type: ignore[no-any-return]

    def to_device(self, source: np.ndarray[Any, Any], target: Array) -> None:
        target.data.copy_from_host_async(source.ctypes.data, target.nbytes, self.xp.cuda.get_current_stream())

    def synchronize(self) -> None:
        self.xp.cuda.get_current_stream().synchronize()

    def seconds(self, contestants: Mapping[str, Call], repeats: int, rounds: int) -> dict[str, float]:
        # Python takes longer to enqueue a small copy than the device to carry it out. Behind a block of other work the calls
        # queue up, and the events between them are as far apart as the device needs.
        samples: dict[str, list[float]] = {name: [] for name in contestants}
        copies = {name: self._copies_behind(call, repeats) for name, call in contestants.items()}
        for _ in range(rounds):
            for name, call in contestants.items():
                begin, end = self.xp.cuda.Event(), self.xp.cuda.Event()
                self._keep_busy(copies[name])
                begin.record()
                for _ in range(repeats):
                    call()
                end.record()
                end.synchronize()
                samples[name].append(self.xp.cuda.get_elapsed_time(begin, end) / 1e3 / repeats)
        return {name: statistics.median(taken) for name, taken in samples.items()}

    def _keep_busy(self, copies: int) -> None:
        for _ in range(copies):
            self.xp.copyto(*self._block)

    def _copies_behind(self, call: Call, repeats: int) -> int:
        """Return the number of copies of the block that take twice as long as Python to enqueue the calls."""
        call()  # compiles the kernels
        self._keep_busy(1)
        self.synchronize()
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        enqueued = time.perf_counter()
        self.synchronize()
        begin = time.perf_counter()
        self._keep_busy(16)
        self.synchronize()
        one = (time.perf_counter() - begin) / 16
        return 16 + round(2 * (enqueued - start) / one)


class Host:
    """Host memory in place of a device: its figures mean nothing."""

    title = "the host in place of a device"
    xp = np

    def pinned(self, array: Array) -> np.ndarray[Any, Any]:
        return np.empty_like(array)

    def to_host(self, source: Array, target: np.ndarray[Any, Any]) -> Call:
        np.copyto(target, source)
        return lambda: None

    def to_device(self, source: np.ndarray[Any, Any], target: Array) -> None:
        np.copyto(target, source)

    def synchronize(self) -> None:
        pass

    def seconds(self, contestants: Mapping[str, Call], repeats: int, rounds: int) -> dict[str, float]:
        samples: dict[str, list[float]] = {name: [] for name in contestants}
        for _ in range(rounds):
            for name, call in contestants.items():
                start = time.perf_counter()
                for _ in range(repeats):
                    call()
                samples[name].append((time.perf_counter() - start) / repeats)
        return {name: statistics.median(taken) for name, taken in samples.items()}


def lacking() -> str:
    """Return what is missing for a run on a device; empty if nothing is."""
    from adjointlab.devices.probes import NoDevice, found, require_device

    here = found()
    try:
        require_device(here)
    except NoDevice as problem:
        return str(problem)
    return (
        ""
        if here.cupy.get("devices")
        else f"CuPy sees no device: {here.cupy.get('error', 'no reason given')}"
    )


def on_device(array: np.ndarray[Any, Any], memory: str) -> Array:
    """Return a copy of the values in the named memory: numpy, torch, cupy or torch-cuda."""
    if memory == "numpy":
        return array.copy()
    if memory == "cupy":
        import cupy

        return cupy.asarray(array)
    import torch

    return torch.tensor(array, device="cuda" if memory == "torch-cuda" else "cpu")
