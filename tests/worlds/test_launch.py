"""The environment tells whether this process was started by a launcher, and as which rank."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from adjointlab.supervisor import rank as wrapper
from adjointlab.worlds.launch import LAUNCHERS, LaunchVariables, is_launched, launched_rank, open_world
from adjointlab.worlds.world import WorldName


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """No launcher, also where these tests run under one."""
    for launcher in LAUNCHERS:
        for name in filter(None, (launcher.rank, launcher.size, launcher.required)):
            monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("launcher", LAUNCHERS, ids=lambda launcher: launcher.launcher)
def test_each_launcher_tells_the_rank(launcher: LaunchVariables, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(launcher.rank, "3")
    if launcher.size:
        monkeypatch.setenv(launcher.size, "4")
    if launcher.required:
        assert launched_rank() == 0
        monkeypatch.setenv(launcher.required, "1")
    assert launched_rank() == 3
    assert is_launched() == launcher.starts_mpi


def test_without_a_launcher_the_world_is_simulated() -> None:
    assert not is_launched()
    assert launched_rank() == 0
    world = open_world(ranks=3)
    assert (world.name, world.ranks) == (WorldName.SIMULATED, 3)
    world.close()


@pytest.mark.parametrize(
    ("environment", "rank"),
    [
        (
            {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "PMI_RANK": "5", "PMI_SIZE": "8"},
            5,
        ),  # mpiexec in a batch script
        ({"PMI_RANK": "", "SLURM_PROCID": "2"}, 2),
        ({"RANK": "6", "WORLD_SIZE": "8"}, 0),  # of some other program
    ],
)
def test_the_innermost_launcher_counts(environment: Mapping[str, str], rank: int) -> None:
    assert launched_rank(environment) == rank


@pytest.mark.parametrize("kind", ["simulated", WorldName.SIMULATED])
def test_a_world_is_opened_by_its_name(kind: str) -> None:
    world = open_world(kind, 2)
    assert world.name == "simulated"
    world.close()


def test_an_unknown_world_is_refused() -> None:
    with pytest.raises(ValueError, match="moon"):
        open_world("moon")


def test_the_wrapper_of_a_rank_knows_the_same_launchers(tmp_path: Path) -> None:
    """It cannot import the lab, and must name its files as the command that it runs does."""
    program = [sys.executable, "-I", "-S", str(wrapper.__file__), str(tmp_path), sys.executable, "-c", ""]
    subprocess.run(program, check=True, env={**os.environ, "FLUX_TASK_RANK": "2"}, timeout=60)
    assert (tmp_path / "rank-2.ended").exists()
