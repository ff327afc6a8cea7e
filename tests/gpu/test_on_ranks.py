"""Primitives on the memory of a device, on simulated ranks and under mpiexec on real ones: on the stand-in for CuPy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import adjointlab as al
from adjointlab.devices.transport import OVERRIDE, Transport
from adjointlab.primitives.subjects import installed
from adjointlab.worlds.launch import is_launched
from tests.running import run

pytestmark = pytest.mark.usefixtures("cupy")


@pytest.fixture(autouse=True)
def staging(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OVERRIDE, Transport.STAGING)


TestHaloExchange = al.coherence_tests(replace(installed.halo_exchanges, arrays=("cupy",)))
TestReduceScatter = al.coherence_tests(replace(installed.reduce_scatters, arrays=("cupy", "numpy+cupy")))


@pytest.mark.starts_mpiexec
@pytest.mark.slow
@pytest.mark.skipif(is_launched(), reason="starts processes of MPI itself")
def test_they_are_coherent_under_mpiexec(tmp_path: Path) -> None:
    options = [
        "-q",
        "-p",
        "no:cacheprovider",
        f"--rootdir={tmp_path}",
        "--adjointlab-cases=3",
        "--adjointlab-seed=1",
    ]
    done = run("pytest", str(Path(__file__)), *options, ranks=3, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout
