"""Jobs for the supervisor's tests, in processes of their own."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests import running
from tests.faults.left_behind import left_in

__all__ = ["ADJOINT", "FAULTS", "begun", "kinds", "left_in", "stored", "supervised"]

FAULTS = running.ROOT / "tests" / "faults" / "operators.py"

ADJOINT = ("--check", "adjoint", "--seed", "3", "--json", "verdicts.json", "--cases", "20")
"""Options of adjointlab check that make a short run of it."""


def begun(*arguments: str | Path, cwd: Path) -> subprocess.Popen[str]:
    """``adjointlab run`` with `arguments`, which goes on while the test does."""
    return running.begun("-m", "adjointlab", "run", *arguments, cwd=cwd)


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
