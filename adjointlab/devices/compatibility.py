"""Detects combinations of CuPy, NVIDIA's driver and torch that cannot work; reports what was found and what would be legal.

CUDA versions are integers as in CUDA's API: 1000 * major + 10 * minor, so 12040 is CUDA 12.4. A driver runs
programs of its own major version and of all earlier ones. Two libraries in one process share dependencies that both load by the same
name, such as NCCL's ``libnccl.so.2`` for all versions of CUDA, so they must be built for one major version [cupy-6842] [cugraph-4465].
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

__all__ = ["CudaStack", "DeviceMismatch", "Mismatch", "Problem", "check", "mismatches", "version_text"]

_LEAST_DRIVERS: Final = {11: "450.80", 12: "525.60", 13: "580.65"}
"""The first driver for Linux that runs programs of each major version of CUDA."""

_WHEELS: Final = {11: "cupy-cuda11x", 12: "cupy-cuda12x", 13: "cupy-cuda13x"}


class Problem(StrEnum):
    """The kinds of mismatch."""

    SEVERAL_WHEELS = "several wheels of CuPy"
    NO_DRIVER = "no driver"
    CUPY_AND_DRIVER = "CuPy and the driver"
    TORCH_AND_DRIVER = "torch and the driver"
    CUPY_AND_TORCH = "CuPy and torch"


class DeviceMismatch(RuntimeError):
    """CuPy, the driver and torch are incompatible; the message says which, what was found, and what would be legal."""


@dataclass(frozen=True)
class CudaStack:
    """The versions that were found; empty or None for missing ones.

    `wheels` are the installed distributions of CuPy as (name, version). `driver` is the newest CUDA that the driver runs, None
    without a driver. `cupy_runtime` is the CUDA that CuPy was built for, `torch_cuda` that of torch ("12.8").
    """

    wheels: Sequence[tuple[str, str]] = ()
    driver: int | None = None
    cupy_runtime: int | None = None
    torch: str = ""
    torch_cuda: str | None = None

    @property
    def cupy_major(self) -> int | None:
        """The major version of CUDA that CuPy is built for: from the name of its wheel, else from the runtime that it reports."""
        for name, _ in self.wheels:
            if found := re.fullmatch(r"cupy-cuda(\d\d)\w", name):
                return int(found[1])
        return None if self.cupy_runtime is None else self.cupy_runtime // 1000

    @property
    def torch_major(self) -> int | None:
        """The major version of CUDA that torch is built for; None if it is built without CUDA."""
        return int(self.torch_cuda.partition(".")[0]) if self.torch_cuda else None

    @property
    def driver_major(self) -> int | None:
        """The major version of CUDA that the driver runs."""
        return None if self.driver is None else self.driver // 1000


@dataclass(frozen=True)
class Mismatch:
    """One combination that cannot work."""

    problem: Problem
    found: str
    legal: str

    def __str__(self) -> str:
        return f"{self.found}; {self.legal}"


def check(stack: CudaStack) -> None:
    """Raise :class:`DeviceMismatch` with every mismatch of `stack`, if there is any."""
    if found := mismatches(stack):
        raise DeviceMismatch("; ".join(map(str, found)))


def mismatches(stack: CudaStack) -> tuple[Mismatch, ...]:
    """Return every mismatch of `stack`; none if no library that needs a device is installed."""
    return tuple(_mismatches(stack))


def version_text(version: int | None) -> str:
    """Return "12.4" for 12040, and "none" for None."""
    return "none" if version is None else f"{version // 1000}.{version % 1000 // 10}"


def _mismatches(stack: CudaStack) -> Iterator[Mismatch]:
    cupy, torch, driver = stack.cupy_major, stack.torch_major, stack.driver_major
    named = " and ".join(f"{name} {version}" for name, version in stack.wheels) or "CuPy"
    torch_named = f"torch {stack.torch} for CUDA {stack.torch_cuda}"
    if len(stack.wheels) > 1:
        yield Mismatch(
            Problem.SEVERAL_WHEELS,
            f"{named} are installed at once, and each has overwritten files of the other",
            f"uninstall all of them (pip uninstall {' '.join(name for name, _ in stack.wheels)}), then install "
            f"{_wheel_for(driver, torch)} alone",
        )
        return  # the loaded library is a mixture, so further checks are meaningless
    if driver is None and cupy is not None:
        yield Mismatch(
            Problem.NO_DRIVER,
            f"{named} is installed, but there is no driver of NVIDIA (libcuda.so.1)",
            f"install {_driver_for(cupy)}; in a container, start it with access to the device",
        )
    if driver is not None and cupy is not None and cupy > driver:
        yield Mismatch(
            Problem.CUPY_AND_DRIVER,
            f"{named} is built for CUDA {cupy}, but the driver runs CUDA {version_text(stack.driver)} at most",
            f"install {_wheel_for(driver, None)} instead, or {_driver_for(cupy)}",
        )
    if driver is not None and torch is not None and torch > driver:
        yield Mismatch(
            Problem.TORCH_AND_DRIVER,
            f"{torch_named} needs a newer driver: this one runs CUDA {version_text(stack.driver)} at most",
            f"install a torch that is built for CUDA {driver}, or {_driver_for(torch)}",
        )
    if cupy is not None and torch is not None and cupy != torch:
        yield Mismatch(
            Problem.CUPY_AND_TORCH,
            f"{named} is built for CUDA {cupy} and {torch_named}: one process cannot load the libraries of both",
            f"install {_wheel_for(driver, torch)} instead, or a torch that is built for CUDA {cupy}",
        )


def _driver_for(major: int) -> str:
    """Text for the driver to install for programs of a major version of CUDA."""
    return (
        f"driver {_LEAST_DRIVERS[major]} or newer"
        if major in _LEAST_DRIVERS
        else f"a driver for CUDA {major}"
    )


def _wheel_for(driver: int | None, torch: int | None) -> str:
    """Return the name of the wheel for torch's version of CUDA, or for the driver's if that is older or torch is missing."""
    wanted = min(each for each in (torch, driver, max(_WHEELS)) if each is not None)
    return _WHEELS.get(wanted, _WHEELS[min(_WHEELS)])
