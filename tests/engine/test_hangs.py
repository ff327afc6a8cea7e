"""Ranks that wait for each other under MPI: made smaller in simulation, explained, and left without a trace."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest

from adjointlab.store import running_case as running
from tests.running import HANGING, begun, check_hanging

# One process starts the others.
pytestmark = pytest.mark.mpi_skip

FOLDER = ".adjointlab"


@pytest.mark.starts_mpiexec
def test_a_deadlock_of_uneven_cuts_is_made_smaller_in_simulation_and_confirmed(tmp_path: Path):
    ended = check_hanging("circular", tmp_path, "--watchdog", "4", ranks=4)

    assert ended.returncode == 3, ended.stderr
    assert "Circular: deadlock        (found after" in ended.stdout
    assert "shrunk to 3 ranks" in ended.stdout or "on 3 ranks" in ended.stdout
    for rank, peer in ((0, 1), (1, 2), (2, 0)):
        told = rf"rank {rank} in recv\(source={peer}, tag=5\) at .*hanging\.py:\d+, waits for rank {peer}"
        assert re.search(told, ended.stdout)
    assert "cycle: rank 0 → rank 1 → rank 2 → rank 0" in ended.stdout
    assert "with simulated ranks, and seen again under MPI" in ended.stdout


MPI_RANKS = pytest.param(2, marks=pytest.mark.starts_mpiexec)


@pytest.mark.parametrize(
    ("ranks", "options"),
    [
        (0, ()),
        pytest.param(2, (), marks=pytest.mark.starts_mpiexec),
        pytest.param(2, ("--strict",), marks=pytest.mark.starts_mpiexec),
    ],
    ids=["simulated", "at the end", "strict"],
)
def test_the_labs_own_calls_are_not_told(tmp_path: Path, ranks: int, options: tuple[str, ...]):
    ended = check_hanging("apart", tmp_path, "--watchdog", "4", *options, ranks=ranks)

    assert ended.returncode == 3, ended.stderr
    assert "mismatched collective" in ended.stdout
    assert re.search(r"rank 0 calls allreduce\((op=)?SUM\) at .*hanging\.py:\d+", ended.stdout)
    assert re.search(r"rank 1 has returned from Copy\.forward at .*hanging\.py:\d+", ended.stdout)
    assert "allgather" not in ended.stdout


@pytest.mark.parametrize("ranks", [0, MPI_RANKS])
@pytest.mark.parametrize(
    ("subject", "function"), [("expecting_message", r"Copy\.forward"), ("expecting_function", "expecting")]
)
def test_of_a_rank_that_has_returned_the_function_is_named(
    tmp_path: Path, subject: str, function: str, ranks: int
):
    ended = check_hanging(subject, tmp_path, "--watchdog", "4", ranks=ranks)

    assert ended.returncode == 3, ended.stderr
    assert ": deadlock" in ended.stdout
    assert re.search(
        r"rank 0 in recv\(source=1, tag=5\) at .*hanging\.py:\d+, waits for rank 1", ended.stdout
    )
    assert re.search(
        rf"rank 1 has returned from {function} at .*hanging\.py:\d+, waits for rank 0", ended.stdout
    )
    assert "allgather" not in ended.stdout


@pytest.mark.starts_mpiexec
def test_ctrl_c_leaves_no_process_and_no_half_written_file(tmp_path: Path):
    words = ("-m", "adjointlab", "check", f"{HANGING}:sleeping", "--check", "adjoint")
    job = begun(*words, ranks=2, cwd=tmp_path)
    try:
        _wait_until(lambda: getattr(running.read(tmp_path / FOLDER), "case", None) is not None)
        os.killpg(job.pid, signal.SIGINT)
        job.communicate(timeout=60)
        assert job.returncode != 0
        assert not _processes_in(job.pid)
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
    record = tmp_path / FOLDER / running.NAME
    assert not record.exists() or running.read(tmp_path / FOLDER) is not None
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith(".") and path.name != FOLDER]


def _wait_until(ready, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.05)


def _processes_in(group: int) -> list[str]:
    """The names of the running processes of a group; zombies do not count."""
    found = []
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = place.read_text().rpartition(")")
        except OSError:
            continue
        state, _, its_group = rest.split()[:3]
        if int(its_group) == group and state not in "ZX":
            found.append(name)
    return found
