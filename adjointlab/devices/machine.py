"""The machine and the installed packages, for bug reports. Imports no heavy packages."""

from __future__ import annotations

import os
import platform
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from adjointlab.cores import cores

__all__ = ["Machine", "environment", "machine", "packages"]

_PACKAGES: Final = (
    "adjointlab", "numpy", "array-api-compat", "hypothesis", "msgspec", "mpi4py", "torch", "jax", "pytest", "pytest-xdist",
)  # fmt: skip

_VARIABLES: Final = frozenset(
    {"CUDA_VISIBLE_DEVICES", "MPIR_CVAR_ENABLE_GPU", "MPICH_GPU_SUPPORT_ENABLED", "OMP_NUM_THREADS", "OMPI_MCA_opal_cuda_support"}
)  # fmt: skip

_MEMORY_LIMITS: Final = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


@dataclass(frozen=True)
class Machine:
    """One host: `cores` is the number that this process may use, of `all_cores`; `memory` is in bytes, None if unknown."""

    host: str
    platform: str
    cores: int
    all_cores: int
    memory: int | None


def machine() -> Machine:
    """The machine that this process runs on."""
    return Machine(socket.gethostname(), platform.platform(), cores(), os.cpu_count() or 1, _memory())


def packages() -> dict[str, str]:
    """The versions of Python and of the relevant packages, by name; "not installed" for missing ones."""
    versions = {"python": f"{platform.python_version()} ({platform.python_implementation()})"}
    for name in _PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "not installed"
        except Exception as problem:  # damaged metadata
            versions[name] = f"{type(problem).__name__}: {problem}"
    return versions


def environment(given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment variables that influence detection or choices."""
    return {
        name: value
        for name, value in sorted(given.items())
        if name in _VARIABLES or name.startswith("ADJOINTLAB_")
    }


def _memory() -> int | None:
    """Bytes of memory: of the machine, or the limit of the container if that is less."""
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None
    limits = [total]
    for file in _MEMORY_LIMITS if sys.platform == "linux" else ():
        try:
            text = file.read_text().strip()
        except OSError:
            continue
        limits += [int(text)] if text.isdigit() else []
    return min(limits)
