"""Detection of CUDA-aware MPI: an MPI library that takes the addresses of device memory as buffers.

A library that is not CUDA-aware uses a device address as a host address and crashes the process, so it cannot be tried:
the library must be queried. The answers are :class:`MPIEvidence`; :func:`decide` decides from these alone.

Sources, in order of precedence: the user's override, variables that switch the support off, the memory kinds of
MPI 4.1 ("mpi_memory_alloc_kinds") [MPI41], the extension ``MPIX_Query_cuda_support`` of Open MPI and MPICH, and the
program ``ompi_info`` of an Open MPI that lacks the extension.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

__all__ = [
    "OVERRIDE",
    "CudaAware",
    "MPIEvidence",
    "built_with_cuda",
    "decide",
    "loaded_library",
    "mpi_evidence",
    "overridden",
]

OVERRIDE: Final = "ADJOINTLAB_CUDA_AWARE_MPI"
"""Environment variable for the user's override: "yes" or "no"."""

_SWITCHES: Final = (OVERRIDE, "MPIR_CVAR_ENABLE_GPU", "MPICH_GPU_SUPPORT_ENABLED")
_OFF: Final = frozenset({"0", "no", "off", "false", "disable"})
_ON: Final = frozenset({"1", "yes", "on", "true", "enable"})
_SECONDS: Final = 30.0


@dataclass(frozen=True)
class MPIEvidence:
    """Answers of the MPI library that mpi4py has loaded; the fields after `library` default to no answer.

    `query` is the result of ``MPIX_Query_cuda_support``, None if the library has no such function or is not initialised.
    `memory_kinds` is the value of "mpi_memory_alloc_kinds", `ompi_info` that of "mpi_built_with_cuda_support". `environment`
    has the relevant variables. `error` is the reason if no library could be queried; `standard` is its version of the MPI standard.
    """

    library: str
    standard: str = ""
    query: bool | None = None
    memory_kinds: str = ""
    ompi_info: bool | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True)
class CudaAware:
    """The decision, and the test that it is based on."""

    is_aware: bool
    test: str
    reason: str


def decide(evidence: MPIEvidence) -> CudaAware:
    """Decide if device buffers may be passed to the MPI library.

    Without any answer the decision is no. Raises `ValueError` if the override is neither yes nor no.
    """
    environment = evidence.environment
    if (wanted := overridden(environment)) is not None:
        return CudaAware(wanted, OVERRIDE, f"{OVERRIDE}={environment[OVERRIDE]}")
    if evidence.error:
        return CudaAware(False, "import of mpi4py", evidence.error)
    if (value := environment.get("MPIR_CVAR_ENABLE_GPU", "")).lower() in _OFF:
        return CudaAware(False, "MPIR_CVAR_ENABLE_GPU", f"MPIR_CVAR_ENABLE_GPU={value} switches it off")
    if "CRAY" in evidence.library and environment.get("MPICH_GPU_SUPPORT_ENABLED", "0").lower() not in _ON:
        return CudaAware(
            False,
            "MPICH_GPU_SUPPORT_ENABLED",
            "Cray MPICH takes device buffers only where MPICH_GPU_SUPPORT_ENABLED=1 is set",
        )
    # A kind may be followed by restrictors: "cuda:device". A missing cuda proves nothing: it may not have been requested.
    kinds = {kind.strip().partition(":")[0] for kind in evidence.memory_kinds.split(",")}
    if "cuda" in kinds:
        return CudaAware(
            True, "mpi_memory_alloc_kinds", f"the memory kinds of the library are {evidence.memory_kinds}"
        )
    if evidence.query is not None:
        return CudaAware(
            evidence.query, "MPIX_Query_cuda_support", f"MPIX_Query_cuda_support() is {int(evidence.query)}"
        )
    if evidence.ompi_info is not None:
        text = str(evidence.ompi_info).lower()
        return CudaAware(evidence.ompi_info, "ompi_info", f"ompi_info: mpi_built_with_cuda_support is {text}")
    return CudaAware(
        False, "none", f"the library does not say; {OVERRIDE}=yes where you know that it takes device buffers"
    )


@cache
def loaded_library() -> CudaAware:
    """Return the decision for the MPI library that this process has loaded, which is queried only once."""
    return decide(mpi_evidence())


def overridden(environment: Mapping[str, str]) -> bool | None:
    """Return the user's override in the environment, None if there is none; raise `ValueError` for any other value."""
    text = environment.get(OVERRIDE, "").strip().lower()
    if not text:
        return None
    if text not in _ON | _OFF:
        raise ValueError(f"{OVERRIDE}: {environment[OVERRIDE]!r} is neither yes nor no")
    return text in _ON


def mpi_evidence() -> MPIEvidence:
    """Query the MPI library that mpi4py loads. Initialises MPI if mpi4py does so on import; raises nothing."""
    kept = {name: os.environ[name] for name in _SWITCHES if name in os.environ}
    try:
        from mpi4py import MPI
    except Exception as problem:  # ImportError, or RuntimeError if the library is missing
        text = f"mpi4py cannot be imported: {problem}".splitlines()[0]
        return MPIEvidence("", environment=kept, error=text)
    lines = MPI.Get_library_version().replace("\0", "").strip().splitlines() or ["?"]
    library = " ".join(lines[0].split())
    standard = ".".join(map(str, MPI.Get_version()))
    is_running = MPI.Is_initialized() and not MPI.Is_finalized()
    # Before MPI is initialised, Open MPI has not selected its CUDA component yet, and answers 0.
    query = _query(_loaded_library(MPI.__file__)) if is_running else None
    built = _ompi_info() if query is None and "Open MPI" in library else None
    kinds = _memory_kinds(MPI) if is_running else ""
    return MPIEvidence(library, standard, query, kinds, built, kept)


def _memory_kinds(mpi: Any) -> str:
    """Return the memory kinds that the library supports; empty if it does not report them."""
    try:
        # Of COMM_SELF, because COMM_WORLD is redirected during runs.
        info = mpi.COMM_SELF.Get_info()
        kinds = info.Get("mpi_memory_alloc_kinds")
        info.Free()
    except Exception:  # a library may reject an unknown key
        kinds = None
    return str(kinds or "")


def _loaded_library(extension: str) -> ctypes.CDLL | None:
    """Open the MPI library that the extension module of mpi4py has loaded; symbols are also looked up in its dependencies."""
    # An extension that loads its library at run time does not list it as a dependency, so the files that the process has mapped
    # are searched as well.
    mapped = re.findall(r"(/\S*/libmpi\S*\.so\S*)", _mapped())
    for path in dict.fromkeys((extension, *mapped)):
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        if hasattr(library, "MPI_Get_library_version"):
            return library
    return None


def _query(library: ctypes.CDLL | None) -> bool | None:
    function = getattr(library, "MPIX_Query_cuda_support", None)
    if function is None:
        return None
    function.restype, function.argtypes = ctypes.c_int, ()
    return bool(function())


def _ompi_info() -> bool | None:
    """Run Open MPI's ``ompi_info``; None if it is missing, or does not report CUDA support."""
    # Searched next to the library, next to Python, then on PATH: that of another installation would describe another library.
    library = next(iter(re.findall(r"(/\S*)/lib\S*/libmpi\S*", _mapped())), "")
    folders = [f"{library}/bin", str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    program = shutil.which("ompi_info", path=os.pathsep.join(folders))
    if program is None:
        return None
    try:
        result = subprocess.run(
            [program, "--parsable", "--all"], capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return built_with_cuda(result.stdout)


def built_with_cuda(text: str) -> bool | None:
    """Parse the output of ``ompi_info --parsable --all``; None if it does not report CUDA support."""
    found = re.search(r":(?:mpi|opal)_built_with_cuda_support:value:(true|false)", text)
    return None if found is None else found[1] == "true"


def _mapped() -> str:
    """Return the table of files that this process has mapped; empty if the system has none (macOS)."""
    maps = Path("/proc/self/maps")
    return maps.read_text(errors="replace") if maps.exists() else ""
