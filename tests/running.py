"""The front ends as users start them: in a process of their own, alone or under mpiexec."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SAMPLES = Path(__file__).with_name("samples.py")

# mpiexec's marks must not reach the processes that a test starts: they are not the ranks of its job.
_LAUNCHER = ("PMI_", "PMIX_", "OMPI_", "HYDI_", "HYDRA_", "MPI_", "PALS_", "MPIR_")

LAUNCHER = shutil.which(
    "mpiexec", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
)

needs_mpi = pytest.mark.skipif(LAUNCHER is None, reason="needs mpiexec: install the extra `mpi`")


def run(
    *arguments: str | Path, ranks: int = 0, cwd: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    """``python -m`` with `arguments`, under ``mpiexec -n ranks`` where there are any."""
    return run_python("-m", *arguments, ranks=ranks, cwd=cwd, **environment)


def run_python(
    *arguments: str | Path, ranks: int = 0, cwd: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    """``python`` with `arguments`, under ``mpiexec -n ranks`` where there are any."""
    command = [sys.executable, *map(str, arguments)]
    if ranks:
        assert LAUNCHER is not None
        command = [LAUNCHER, *_flags(), "-n", str(ranks), *command]
    kept = {key: value for key, value in os.environ.items() if not key.startswith((*_LAUNCHER, "PYTEST"))}
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH", "")])])
    return subprocess.run(
        command,
        cwd=cwd,
        env=kept
        # Open MPI gives the ranks a terminal, on which pytest would print in colours.
        | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "200", "PY_COLORS": "0"}
        | _as_root()
        | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def _flags() -> list[str]:
    """Open MPI must be told that there are more ranks than cores."""
    if os.environ.get("ADJOINTLAB_CI_MPI") == "openmpi":
        return ["--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]
    return []


def _as_root() -> dict[str, str]:
    return {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
