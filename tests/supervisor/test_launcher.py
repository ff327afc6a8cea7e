"""Launchers are found, known by what they say of themselves, and given what they need."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from adjointlab.supervisor.launcher import Launcher, NoLauncher, find_launcher, fits, prepared

SAYS = {
    "MPICH": "HYDRA build details:\n    Version:                                 5.0.2\n",
    "Open MPI": "mpiexec (Open MPI) 5.0.11\n",
    "Intel MPI": "Intel(R) MPI Library for Linux* OS, Version 2021.11 Build 20231005\nHYDRA\n",
    "Slurm": "slurm 23.02.7\n",
    "an unknown launcher": "I start things\n",
}


def launcher(folder: Path, says: str) -> str:
    path = folder / "start"
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{says}END\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("vendor", SAYS)
def test_a_launcher_is_known_by_what_it_says_of_itself(tmp_path: Path, vendor: str) -> None:
    found = find_launcher(f"{launcher(tmp_path, SAYS[vendor])} --bind-to none")

    assert found.vendor == vendor
    assert found.command(3)[1:] == ["--bind-to", "none", "-n", "3"]
    assert all(part in str(found) for part in (vendor, found.version))


def test_the_launcher_beside_this_python_comes_before_those_on_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside, elsewhere = tmp_path / "beside", tmp_path / "elsewhere"
    for folder in (beside, elsewhere):
        folder.mkdir()
        (folder / "mpiexec").write_text("#!/bin/sh\n")
        (folder / "mpiexec").chmod(0o755)
    monkeypatch.setenv("PATH", str(elsewhere))
    assert find_launcher().path == str(
        Path(sys.executable).parent / "mpiexec"
    ) or find_launcher().path == str(elsewhere / "mpiexec")
    monkeypatch.setattr(sys, "executable", str(beside / "python"))
    assert find_launcher().path == str(beside / "mpiexec")


def test_no_launcher_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    for given in (None, "nothing --of the-kind", ""):
        with pytest.raises(NoLauncher, match=r"pip install mpich|no program nothing|it is empty"):
            find_launcher(given)


def test_open_mpi_is_told_what_it_would_refuse_or_suffer_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMPI_ALLOW_RUN_AS_ROOT", raising=False)
    plain = Launcher("mpiexec", "Open MPI")

    crowded = prepared(plain, ranks=4, cores=2, root=True)
    assert "--oversubscribe" in crowded.flags
    assert crowded.environment["OMPI_MCA_mpi_yield_when_idle"] == "1"
    assert crowded.environment["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] == "1"
    assert "4 ranks share 2 cores" in str(crowded)

    assert prepared(plain, ranks=2, cores=2, root=False) == plain
    given = Launcher("mpiexec", "Open MPI", flags=("--map-by", ":OVERSUBSCRIBE"))
    assert prepared(given, ranks=4, cores=2, root=False).flags == given.flags
    assert prepared(Launcher("mpiexec", "MPICH"), ranks=4, cores=2, root=True) == Launcher("mpiexec", "MPICH")


def test_a_launcher_of_another_library_does_not_fit() -> None:
    assert not fits(Launcher("mpiexec", "MPICH"), "Open MPI")
    assert not fits(Launcher("mpiexec", "Open MPI"), "MPICH")
    assert fits(Launcher("mpiexec", "Intel MPI"), "MPICH")
    assert fits(Launcher("srun", "Slurm"), "Open MPI")


def test_torchrun_is_known_by_its_name_and_starts_ranks_that_meet_by_themselves(tmp_path: Path) -> None:
    path = tmp_path / "torchrun"
    path.write_text("#!/bin/sh\nexit 1\n")
    path.chmod(0o755)
    found = prepared(find_launcher(str(path)), 3)
    assert found.command(3) == [str(path), "--standalone", "--nproc-per-node", "3", "--no-python"]
    given = prepared(find_launcher(f"{path} --nnodes 2 --rdzv-endpoint=host:1"), 3)
    assert "--standalone" not in given.flags
