"""Jobs for the supervisor's tests, in processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.faults.matrix import left_in

__all__ = ["ADJOINT", "FAULTS", "begun", "kinds", "left_in", "stored", "supervised"]

ROOT = Path(__file__).resolve().parents[2]
FAULTS = ROOT / "tests" / "faults" / "operators.py"

ADJOINT = ("--check", "adjoint", "--seed", "3", "--json", "verdicts.json", "--cases", "20")
"""Options of adjointlab check that make a short run of it."""

_MARKS = (
    "PMI_",
    "PMIX_",
    "OMPI_COMM_",
    "HYDI_",
    "HYDRA_",
    "MPI_",
    "PALS_",
    "MPIR_",
    "PYTEST",
    "ADJOINTLAB_SUP",
)


def begun(*arguments: str | Path, cwd: Path) -> subprocess.Popen[str]:
    """``adjointlab run`` with `arguments`, which goes on while the test does."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(_MARKS)}
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH", "")])])
    return subprocess.Popen(
        [sys.executable, "-m", "adjointlab", "run", *map(str, arguments)],
        cwd=cwd,
        env=kept | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "200"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A shell may have told its children to ignore the signal.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def supervised(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """``adjointlab run`` with `arguments`, to its end."""
    process = begun(*arguments, cwd=cwd)
    try:
        out, err = process.communicate(timeout=100)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def kinds(folder: Path) -> dict[str, str]:
    """The kind of failure that was found, by subject."""
    reports = json.loads((folder / "verdicts.json").read_text())["reports"]
    return {report["subject"]: report["kind"] for report in reports}


def stored(folder: Path) -> list[str]:
    """The folder of failures: reproducers with their scripts, and nothing else."""
    return sorted(path.name.partition("-")[0] + path.suffix for path in (folder / ".adjointlab").iterdir())
