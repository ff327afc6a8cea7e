"""Files in the current folder that are named like modules of Python are not what the lab's own processes import."""

from __future__ import annotations

from pathlib import Path

import pytest

from adjointlab.checks.verdict import Status
from adjointlab.devices.probes import ask
from adjointlab.supervisor.launcher import library_of_mpi4py
from tests.cli.test_jobs import SUBJECTS, results
from tests.engine.test_exhaust import proved
from tests.running import run_python

pytestmark = pytest.mark.mpi_skip


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with such files."""
    for name in ("inspect", "json", "pickle", "queue", "random", "select", "signal", "socket", "struct"):
        (tmp_path / f"{name}.py").write_text(f"raise RuntimeError('{name}.py is no part of Python')\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_processes_that_prove() -> None:
    assert proved("right").status is Status.COHERENT


def test_processes_that_check(folder: Path) -> None:
    names = [f"{SUBJECTS}:{name}" for name in ("segfaulting", "right")]  # the first would end this command
    options = ("--check", "adjoint", "--cases", "5", "--jobs", "2", "--json", "verdicts.json")
    run_python("-P", "-m", "adjointlab", "check", *names, *options, cwd=folder)
    found = [report["verdict"] for report in results(folder)["reports"]]
    assert found == ["could not be judged", "coherent"]


def test_processes_that_look_for_devices() -> None:
    assert "no part of Python" not in str(ask("driver"))


def test_a_process_that_looks_for_mpi() -> None:
    pytest.importorskip("mpi4py")
    assert library_of_mpi4py()
