"""Query of one library in a separate process: ``python -m adjointlab.devices.probe NAME`` prints the answer as JSON.

A broken library may crash the process that imports it, or hang; and a process that has initialised CUDA cannot
fork. So the caller is another process (:mod:`adjointlab.devices.probes`), and an answer contains the error if there was one.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from importlib import import_module
from typing import Any, Final

__all__ = ["MARK", "QUESTIONS"]

MARK: Final = "adjointlab-probe:"
"""Prefix of the line with the answer, because libraries may print other lines."""


def _driver() -> dict[str, Any]:
    """The CUDA version and the release of NVIDIA's driver, or an error without a driver."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as problem:
        return {"error": str(problem)}
    version = ctypes.c_int(0)
    if code := cuda.cuDriverGetVersion(ctypes.byref(version)):
        return {"error": f"cuDriverGetVersion failed with CUresult {code}"}
    return {"cuda": version.value, "release": _release()}


def _release() -> str:
    """The release of the driver, such as 580.65.06; empty if its management library does not report it."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return ""
    text = ctypes.create_string_buffer(96)
    if nvml.nvmlInit_v2() or nvml.nvmlSystemGetDriverVersion(text, ctypes.c_uint(len(text))):
        return ""
    return text.value.decode(errors="replace")


def _cupy() -> dict[str, Any]:
    cupy: Any = import_module("cupy")
    runtime = cupy.cuda.runtime
    answer: dict[str, Any] = {"version": cupy.__version__, "nccl": _nccl(), "devices": []}
    try:
        answer["runtime"] = runtime.runtimeGetVersion()
        answer["driver"] = runtime.driverGetVersion()
        for index in range(runtime.getDeviceCount()):
            found = runtime.getDeviceProperties(index)
            answer["devices"].append(
                {
                    "name": _text(found["name"]),
                    "memory": int(found["totalGlobalMem"]),
                    "capability": f"{found['major']}.{found['minor']}",
                    # Parts of one device (MIG) share its bus address, and differ in the UUID.
                    "id": f"{cupy.cuda.Device(index).pci_bus_id} {bytes(found.get('uuid', b'')).hex()}",
                }
            )
    except Exception as problem:
        answer["error"] = _described(problem)
    return answer


def _nccl() -> str:
    try:
        nccl: Any = import_module("cupy.cuda.nccl")
        code = int(nccl.get_version()) if nccl.available else 0
    except Exception:
        return ""
    # 2.9 and later: 10000 * major + 100 * minor + patch
    return f"{code // 10000}.{code // 100 % 100}.{code % 100}" if code else ""


def _torch() -> dict[str, Any]:
    torch: Any = import_module("torch")
    answer: dict[str, Any] = {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "backends": _backends(torch),
        "devices": [],
    }
    if not torch.version.cuda:
        answer["error"] = "torch is built without CUDA"
        return answer
    try:
        torch.cuda.init()  # its error contains the reason, while is_available() would only return False
        for index in range(torch.cuda.device_count()):
            found = torch.cuda.get_device_properties(index)
            answer["devices"].append(
                {
                    "name": found.name,
                    "memory": int(found.total_memory),
                    "capability": f"{found.major}.{found.minor}",
                    "id": str(getattr(found, "uuid", index)).replace("-", ""),
                }
            )
    except Exception as problem:
        answer["error"] = _described(problem)
    return answer


def _backends(torch: Any) -> list[str]:
    """The backends of torch.distributed that this torch is built with."""
    group = torch.distributed
    if not group.is_available():
        return []
    return [name for name in ("gloo", "nccl", "mpi") if getattr(group, f"is_{name}_available")()]


def _mpi() -> dict[str, Any]:
    from adjointlab.devices.cuda_aware_mpi import mpi_evidence

    return asdict(mpi_evidence())


def _text(name: object) -> str:
    return name.decode(errors="replace") if isinstance(name, bytes) else str(name)


def _described(problem: BaseException) -> str:
    lines = str(problem).strip().splitlines() or ["no message"]
    return f"{type(problem).__name__}: {lines[0]}"


QUESTIONS: Final[dict[str, Callable[[], dict[str, Any]]]] = {
    "driver": _driver,
    "cupy": _cupy,
    "torch": _torch,
    "mpi": _mpi,
}


def main(name: str) -> None:
    """Answer one question on standard output."""
    try:
        answer = QUESTIONS[name]()
    except Exception as problem:
        answer = {"error": _described(problem)}
    print(f"\n{MARK}{json.dumps(answer)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
