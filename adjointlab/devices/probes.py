"""Queries of the CUDA libraries, each in a separate process, concurrently."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from adjointlab.devices.compatibility import CudaStack, DeviceMismatch, check
from adjointlab.devices.cuda_aware_mpi import MPIEvidence
from adjointlab.devices.probe import MARK

__all__ = ["Found", "NoDevice", "Run", "ask", "asked_mpi", "cupy_wheels", "found", "require_device"]

_SECONDS: Final = 120.0
_ROOT: Final = Path(__file__).resolve().parents[2]
_OF_LAUNCHERS: Final = (
    "OMPI_COMM_WORLD_",
    "PMIX_",
    "PMI_",
    "HYDRA_",
    "HYDI_",
    "PRTE_",
    "TORCHELASTIC_",
    "MPI_LOCAL",
)
"""Prefixes of the variables by which a launcher makes a process one of its ranks."""

Run = Any
"""``subprocess.run`` or a function like it."""


class NoDevice(ValueError):
    """No CUDA device can be used; the message lists what was found."""


@dataclass(frozen=True)
class Found:
    """The answers of the driver, CuPy and torch on this host, each a mapping that has "error" if something is wrong."""

    driver: Mapping[str, Any] = field(default_factory=dict)
    cupy: Mapping[str, Any] = field(default_factory=dict)
    torch: Mapping[str, Any] = field(default_factory=dict)
    wheels: tuple[tuple[str, str], ...] = ()

    @property
    def stack(self) -> CudaStack:
        """The versions, to be checked for compatibility."""
        return CudaStack(
            self.wheels,
            # CuPy may find the driver's library when the system does not. 0 means no driver.
            self.driver.get("cuda") or self.cupy.get("driver") or None,
            self.cupy.get("runtime"),
            self.torch.get("version", ""),
            self.torch.get("cuda"),
        )

    @property
    def devices(self) -> Sequence[Mapping[str, Any]]:
        """The devices that CuPy sees, else those that torch sees."""
        seen: Sequence[Mapping[str, Any]] = self.cupy.get("devices") or self.torch.get("devices") or ()
        return seen

    @property
    def device(self) -> str:
        """Identifier of this process's default device, the first one; empty without a device."""
        return str(self.devices[0]["id"]) if self.devices else ""

    @property
    def lacking(self) -> str:
        """The three answers in one line: the error of each, or "no device"."""
        answers = (("driver", self.driver), ("CuPy", self.cupy), ("torch", self.torch))
        return "; ".join(itertools.starmap(_said, answers))

    def lacking_of(self, memory: str) -> str:
        """The answer of the library of an unusable memory."""
        answers = {"cupy": ("CuPy", self.cupy), "torch-cuda": ("torch", self.torch)}
        return _said(*answers.get(memory, (memory, {"error": "not installed"})))


def _said(name: str, answer: Mapping[str, Any]) -> str:
    return f"{name}: {answer.get('error') or 'no device'}"


def found() -> Found:
    """Query the driver, CuPy and torch; raises nothing."""
    names = ("driver", "cupy", "torch")
    with ThreadPoolExecutor(len(names)) as pool:
        driver, cupy, torch = pool.map(ask, names)
    return Found(driver, cupy, torch, cupy_wheels())


def asked_mpi() -> MPIEvidence:
    """Query the MPI library in a separate process; raises nothing."""
    answer = ask("mpi")
    return MPIEvidence(**answer) if "library" in answer else MPIEvidence("", error=str(answer["error"]))


def require_device(here: Found | None = None) -> None:
    """Raise :class:`NoDevice` if CUDA devices cannot be used, with every mismatch, or with the answer of each library."""
    here = found() if here is None else here
    try:
        check(here.stack)
    except DeviceMismatch as problem:
        raise NoDevice(f"device: cuda cannot be used: {problem}") from problem
    if not here.devices:
        raise NoDevice(f"device: cuda is asked for, but no CUDA device was found: {here.lacking}")


def ask(name: str, run: Run = subprocess.run) -> dict[str, Any]:
    """Return the answer to one query, or {"error": ...} if the library is missing, crashes or hangs."""
    if name in ("cupy", "torch") and not _is_installed(name):
        return {"error": "not installed"}
    kept = {key: value for key, value in os.environ.items() if not key.startswith(_OF_LAUNCHERS)}
    path = os.pathsep.join([str(_ROOT), *filter(None, [kept.get("PYTHONPATH", "")])])
    # -P, because a file in the current folder may have the name of a standard module.
    command = [sys.executable, "-P", "-m", "adjointlab.devices.probe", name]
    try:
        ended = run(
            command,
            env=kept | {"PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"no answer within {_SECONDS:.0f} s"}
    except OSError as problem:
        return {"error": f"no process could be started: {problem.strerror or problem}"}
    for line in reversed(ended.stdout.splitlines()):
        if line.startswith(MARK):
            answer: dict[str, Any] = json.loads(line.removeprefix(MARK))
            return answer
    return {"error": f"its process {_end(ended.returncode)}{_last(ended.stderr)}"}


def cupy_wheels() -> tuple[tuple[str, str], ...]:
    """Return the installed distributions that contain the package cupy, as (name, version), sorted."""
    of_cupy = {}
    for each in distributions():
        name = str(each.metadata["Name"] or "").lower().replace("_", "-")
        if name == "cupy" or name.startswith(("cupy-cuda", "cupy-rocm")):
            of_cupy[name] = each.version
    return tuple(sorted(of_cupy.items()))


def _is_installed(name: str) -> bool:
    spec = find_spec(name)
    # A folder of that name in the current directory would be a namespace package, which has no origin.
    return spec is not None and spec.origin is not None


def _end(code: int) -> str:
    if code < 0:
        name = next((each.name for each in signal.Signals if each == -code), str(-code))
        return f"was ended by {name}"
    return f"ended with exit code {code}"


def _last(text: str) -> str:
    lines = text.strip().splitlines()
    return f": {lines[-1].strip()}" if lines else ""
