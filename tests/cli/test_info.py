"""``adjointlab info`` prints what a bug report needs, alone and under mpiexec, whatever is broken."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.running import ROOT, run

# One process starts the others.
pytestmark = pytest.mark.mpi_skip


def test_alone_it_has_versions_library_machine_worlds_and_transport(tmp_path: Path) -> None:
    ended = run("adjointlab", "info", "--json", "-", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    assert told["packages"]["python"].startswith(f"{sys.version_info.major}.{sys.version_info.minor}.")
    assert {"adjointlab", "numpy", "torch", "mpi4py", "hypothesis", "jax"} <= set(told["packages"])
    assert set(told["worlds"]) == {"simulated", "mpi", "torch"}
    assert len(told["ranks"]) == 1
    assert told["ranks"][0]["machine"]["cores"] >= 1
    assert told["problems"] == []


@pytest.mark.starts_mpiexec
def test_under_mpiexec_one_rank_prints_for_all(tmp_path: Path) -> None:
    ended = run("adjointlab", "info", ranks=3, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("CUDA-aware") == 1
    assert "rank 0, 1, 2 " in ended.stdout
    assert "problems" not in ended.stdout


def test_what_is_broken_has_a_line_and_the_exit_code_is_0(tmp_path: Path) -> None:
    (broken := tmp_path / "broken").mkdir()
    for name, text in {
        "cupy": "import os\nos.abort()",
        "torch": "raise ImportError('libcudart.so.13: cannot open')",
        "mpi4py": "raise RuntimeError('cannot load MPI library')",
    }.items():
        (broken / f"{name}.py").write_text(text)
    path = os.pathsep.join([str(broken), str(ROOT)])
    ended = run("adjointlab", "info", cwd=tmp_path, PMI_RANK="0", PMI_SIZE="2", PYTHONPATH=path)
    assert ended.returncode == 0, ended.stderr
    assert "its process was ended by SIGABRT" in ended.stdout
    assert "ImportError: libcudart.so.13: cannot open" in ended.stdout
    assert "cannot load MPI library" in ended.stdout
    assert "none: no rank has a device" in ended.stdout


def test_a_file_that_cannot_be_written_is_refused_as_check_refuses_it(tmp_path: Path) -> None:
    ended = run("adjointlab", "info", "--json", "missing/info.json", cwd=tmp_path)
    assert ended.returncode == 2
    assert "--json: the folder of missing/info.json does not exist" in ended.stderr
