"""Detection of CUDA-aware MPI: an MPI library that takes the addresses of device memory as buffers.

A library that is not CUDA-aware reads a device address as one of the host and ends the process, so nobody can simply try:
the library is asked. What it answers is :class:`MPIEvidence`; :func:`decide` makes the decision from that alone.

Sources, in the order in which they count: the user's word, variables that switch the support off, the memory kinds of
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
"""Environment variable by which the user decides: "yes" or "no"."""

_SWITCHES: Final = (OVERRIDE, "MPIR_CVAR_ENABLE_GPU", "MPICH_GPU_SUPPORT_ENABLED")
_OFF: Final = frozenset({"0", "no", "off", "false", "disable"})
_ON: Final = frozenset({"1", "yes", "on", "true", "enable"})
_SECONDS: Final = 30.0


@dataclass(frozen=True)
class MPIEvidence:
    """Answers of the MPI library that mpi4py has loaded; the fields after `library` have defaults for no answer.

    `query` is the answer of ``MPIX_Query_cuda_support``, None where the library has no such function or is not initialised.
    `memory_kinds` is the value of "mpi_memory_alloc_kinds", `ompi_info` that of "mpi_built_with_cuda_support". `environment`
    holds the variables that count. `error` says why there is no library to ask; `standard` is the version of MPI it has.
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
    """The decision, and the test that it rests on."""

    is_aware: bool
    test: str
    reason: str


def decide(evidence: MPIEvidence) -> CudaAware:
    """Decide if buffers of devices may be handed to the MPI library.

    Without any answer the decision is no. Raises `ValueError` for a value of the environment variable that is neither yes nor no.
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
    # A kind may have restrictors after it: "cuda:device". That cuda is not named says nothing: it may not have been asked for.
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
    """Return the decision for the MPI library that this process has loaded, which is asked once."""
    return decide(mpi_evidence())


def overridden(environment: Mapping[str, str]) -> bool | None:
    """Return the user's word in the environment, None where there is none; raise `ValueError` for another value."""
    text = environment.get(OVERRIDE, "").strip().lower()
    if not text:
        return None
    if text not in _ON | _OFF:
        raise ValueError(f"{OVERRIDE}: {environment[OVERRIDE]!r} is neither yes nor no")
    return text in _ON


def mpi_evidence() -> MPIEvidence:
    """Ask the MPI library that mpi4py loads. Initialises MPI if mpi4py does so on import; raises nothing."""
    kept = {name: os.environ[name] for name in _SWITCHES if name in os.environ}
    try:
        from mpi4py import MPI
    except Exception as problem:  # ImportError, or RuntimeError where the library is missing
        text = f"mpi4py cannot be imported: {problem}".splitlines()[0]
        return MPIEvidence("", environment=kept, error=text)
    lines = MPI.Get_library_version().replace("\0", "").strip().splitlines() or ["?"]
    library = " ".join(lines[0].split())
    standard = ".".join(map(str, MPI.Get_version()))
    is_running = MPI.Is_initialized() and not MPI.Is_finalized()
    # Before MPI is initialised, Open MPI has not chosen the component that would take device memory, and answers 0.
    query = _query(_loaded_library(MPI.__file__)) if is_running else None
    built = _ompi_info() if query is None and "Open MPI" in library else None
    kinds = _memory_kinds(MPI) if is_running else ""
    return MPIEvidence(library, standard, query, kinds, built, kept)


def _memory_kinds(mpi: Any) -> str:
    """Return the memory kinds that the library grants, empty where it does not say."""
    try:
        # Of COMM_SELF: COMM_WORLD means the communicator of the run while ranks run.
        info = mpi.COMM_SELF.Get_info()
        kinds = info.Get("mpi_memory_alloc_kinds")
        info.Free()
    except Exception:  # a library may refuse a key that it does not know
        kinds = None
    return str(kinds or "")


def _loaded_library(extension: str) -> ctypes.CDLL | None:
    """Open the MPI library that the extension module of mpi4py has loaded; a symbol is looked for in what that depends on."""
    # An extension that loads its library by itself does not depend on it, so the process is asked what it has mapped.
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
    """Ask the program of Open MPI; None where there is none, or where it does not say."""
    # Beside the library, beside Python, on PATH: another installation's would speak of another library.
    library = next(iter(re.findall(r"(/\S*)/lib\S*/libmpi\S*", _mapped())), "")
    folders = [f"{library}/bin", str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    program = shutil.which("ompi_info", path=os.pathsep.join(folders))
    if program is None:
        return None
    try:
        asked = subprocess.run(
            [program, "--parsable", "--all"], capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return built_with_cuda(asked.stdout)


def built_with_cuda(text: str) -> bool | None:
    """Read the output of ``ompi_info --parsable --all``; None where it does not say."""
    found = re.search(r":(?:mpi|opal)_built_with_cuda_support:value:(true|false)", text)
    return None if found is None else found[1] == "true"


def _mapped() -> str:
    """Return the table of files that this process has mapped; empty where the system has none (macOS)."""
    maps = Path("/proc/self/maps")
    return maps.read_text(errors="replace") if maps.exists() else ""
