"""The front ends as users start them: in a process of their own, alone or under mpiexec."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SAMPLES = Path(__file__).with_name("samples.py")
HANGING = Path(__file__).with_name("hanging.py")

# Marks of mpiexec, pytest and the supervisor must not reach the processes that a test starts: they are not of its job.
_MARKS = (
    "TORCHELASTIC_",
    "PMI_",
    "PMIX_",
    "OMPI_",
    "HYDI_",
    "HYDRA_",
    "MPI_",
    "PALS_",
    "MPIR_",
    "PYTEST",
    "ADJOINTLAB_SUP",
)

LAUNCHER = shutil.which(
    "mpiexec", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
)

IS_OPEN_MPI = os.environ.get("ADJOINTLAB_CI_MPI") == "openmpi"
"""Open MPI's launcher, once it is interrupted or terminated, ends the ranks itself, and drops what they print then."""


def run(
    *arguments: str | Path, ranks: int = 0, cwd: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    """``python -m`` with `arguments`, under ``mpiexec -n ranks`` where there are any."""
    return run_python("-m", *arguments, ranks=ranks, cwd=cwd, **environment)


def run_python(
    *arguments: str | Path, ranks: int = 0, cwd: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    """``python`` with `arguments`, under ``mpiexec -n ranks`` where there are any."""
    return subprocess.run(
        _command(arguments, ranks),
        cwd=cwd,
        env=_environment() | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def check_hanging(subject: str, cwd: Path, *options: str, ranks: int = 0) -> subprocess.CompletedProcess[str]:
    """``adjointlab check`` of a subject that does not return."""
    words = ["check", f"{HANGING}:{subject}", "--check", "adjoint", "--seed", "1", *options]
    return run("adjointlab", *words, cwd=cwd, ranks=ranks)


def begun(*arguments: str | Path, ranks: int = 0, cwd: Path) -> subprocess.Popen[str]:
    """``python`` with `arguments`, in a process group of its own, which goes on while the test does."""
    return subprocess.Popen(
        _command(arguments, ranks),
        cwd=cwd,
        env=_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=_heed_signals,
    )


def _heed_signals() -> None:
    """Undo what a shell does to its background jobs, and nohup."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def _command(arguments: Sequence[str | Path], ranks: int) -> list[str]:
    command = [sys.executable, *map(str, arguments)]
    if ranks:
        assert LAUNCHER is not None
        command = [LAUNCHER, *_flags(), "-n", str(ranks), *command]
    return command


def _environment() -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(_MARKS)}
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH", "")])])
    # Open MPI gives the ranks a terminal, on which pytest would print in colours, and refuses to start as root.
    return kept | {
        "PYTHONPATH": path,
        "PYTHONDONTWRITEBYTECODE": "1",
        "COLUMNS": "200",
        "PY_COLORS": "0",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }


def _flags() -> list[str]:
    """Open MPI must be told that there are more ranks than cores."""
    if IS_OPEN_MPI:
        return ["--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]
    return []
