"""The environment tells whether this process was started by a launcher, and as which rank."""

import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from adjointlab.exit_codes import ExitCode
from adjointlab.supervisor import rank as wrapper
from adjointlab.supervisor.launcher import Vendor, library_of_mpi4py
from adjointlab.worlds.launch import (
    LAUNCHERS,
    LaunchVariables,
    NoPartners,
    check_partners,
    is_launched,
    launched_rank,
    launched_world,
    open_world,
)
from adjointlab.worlds.world import WorldName
from tests.running import run


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
    assert is_launched() == bool(launcher.starts)
    assert launched_world() == launcher.starts


def test_without_a_launcher_the_world_is_simulated() -> None:
    assert not is_launched()
    assert launched_rank() == 0
    world = open_world(ranks=3)
    assert (world.name, world.ranks) == (WorldName.SIMULATED, 3)
    world.close()


def test_each_world_has_words_for_what_its_ranks_run_under() -> None:
    words = [name.ranks_run_under for name in WorldName]
    assert len(set(words)) == len(words)


@pytest.mark.parametrize(
    ("environment", "rank"),
    [
        (
            {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "PMI_RANK": "5", "PMI_SIZE": "8"},
            5,
        ),  # mpiexec in a batch script
        ({"PMI_RANK": "", "SLURM_PROCID": "2"}, 2),
        ({"PMI_RANK": "0", "RANK": "3", "TORCHELASTIC_RUN_ID": "1"}, 3),  # one torchrun for each machine
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


def test_the_time_of_a_run_is_limited_by_the_patience_which_may_be_infinite() -> None:
    def busy(context: Any, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pass

    # The first outlasts whatever else the processors do before the watchdog looks, the second one such look.
    for patience, seconds, ends in ((0.02, 60.0, False), (math.inf, 0.7, True)):
        world = open_world(ranks=1, patience=patience)
        assert world.run(busy, seconds).completed is ends
        world.close()
    assert world.watchdog.seconds_in_simulation == world.watchdog.seconds(math.inf) == math.inf
    assert open_world(ranks=1).watchdog.limit is None, "by default it adapts to hangs"


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"ranks": 0}, ValueError, "ranks must be at least 1, not 0"),
        ({"ranks": -1}, ValueError, "ranks must be at least 1, not -1"),
        ({"ranks": None}, TypeError, "ranks: None is not an integer"),
        ({"ranks": "4"}, TypeError, "ranks: '4' is not an integer"),
        ({"patience": 0}, ValueError, "patience: 0 s is not positive"),
        ({"patience": math.nan}, ValueError, "patience: nan s is not positive"),
        ({"patience": None}, TypeError, "patience: None is not a number"),
    ],
    ids=str,
)
def test_a_wrong_argument_of_a_world_is_named(
    given: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        open_world(**given)


def test_a_number_of_ranks_that_is_no_integer_is_refused_by_a_run() -> None:
    world = open_world(ranks=1)
    with pytest.raises(TypeError, match=r"ranks: 1.5 is not an integer"):
        world.run(lambda context, _: None, None, 1.5)  # type: ignore[arg-type]
    world.close()


def test_the_wrapper_of_a_rank_knows_the_same_launchers(tmp_path: Path) -> None:
    """It cannot import the lab, and must name its files as the command that it runs does."""
    program = [sys.executable, "-I", "-S", str(wrapper.__file__), str(tmp_path), sys.executable, "-c", ""]
    subprocess.run(program, check=True, env={**os.environ, "FLUX_TASK_RANK": "2"}, timeout=60)
    assert (tmp_path / "rank-2.ended").exists()


STARTS_MPI = [each for each in LAUNCHERS if each.starts == "mpi"]


def started_by(launcher: LaunchVariables, rank: int, size: int) -> dict[str, str]:
    """Environment of a process that this launcher has started."""
    given = {launcher.rank: str(rank), launcher.size: str(size), launcher.required: "1"}
    if launcher.starts == "torch":
        given |= {"LOCAL_RANK": str(rank), "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    return {name: value for name, value in given.items() if name}


class World:
    """Stands for a COMM_WORLD."""

    def __init__(self, size: int) -> None:
        self.size = size

    def Get_size(self) -> int:
        return self.size


@pytest.fixture
def mpi_has(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let MPI have so many processes."""
    module = pytest.importorskip("mpi4py.MPI")
    monkeypatch.setattr("adjointlab.worlds.comm_world.own_handle", lambda comm: comm)
    return lambda size: monkeypatch.setattr(module, "COMM_WORLD", World(size))


@pytest.mark.parametrize("launcher", STARTS_MPI, ids=lambda launcher: launcher.launcher)
@pytest.mark.parametrize(("processes", "found"), [(4, 1), (2, 1), (4, 2), (1, 4)])
def test_a_launcher_of_another_library_is_refused_on_every_process(
    launcher: LaunchVariables, processes: int, found: int, mpi_has: Callable[[int], None]
) -> None:
    mpi_has(found)
    for rank in range(processes if launcher.size else 0):
        with pytest.raises(
            NoPartners, match=rf"{launcher.size}={processes}, but MPI.COMM_WORLD has {found} "
        ):
            check_partners(started_by(launcher, rank, processes))


@pytest.mark.parametrize("launcher", STARTS_MPI, ids=lambda launcher: launcher.launcher)
def test_variables_that_somebody_has_left_are_no_launcher(
    launcher: LaunchVariables, mpi_has: Callable[[int], None]
) -> None:
    mpi_has(1)
    with pytest.raises(NoPartners, match=f"{launcher.rank} is set, but MPI.COMM_WORLD has 1 process"):
        check_partners({launcher.rank: "0"})


@pytest.mark.parametrize("launcher", LAUNCHERS, ids=lambda launcher: launcher.launcher)
@pytest.mark.parametrize("processes", [1, 4])
def test_a_launcher_that_mpi_agrees_with_is_accepted(
    launcher: LaunchVariables, processes: int, mpi_has: Callable[[int], None]
) -> None:
    mpi_has(processes)
    if launcher.size or processes > 1:
        check_partners(started_by(launcher, 0, processes))


def test_a_launcher_within_another_is_accepted_where_one_of_them_is_right(
    mpi_has: Callable[[int], None],
) -> None:
    both = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "8", "PMI_RANK": "0", "PMI_SIZE": "4"}
    mpi_has(4)
    check_partners(both)
    mpi_has(1)
    with pytest.raises(NoPartners, match="OMPI_COMM_WORLD_SIZE=8, PMI_SIZE=4"):
        check_partners(both)
    with pytest.raises(NoPartners):
        check_partners(both | {"PMI_SIZE": "1"})


def test_without_mpi4py_the_variables_of_a_launcher_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(NoPartners, match="mpi4py cannot be imported"):
        check_partners({"PMI_RANK": "0", "PMI_SIZE": "1"})


def test_where_mpi4py_finds_no_mpi_library_the_variables_of_a_launcher_are_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As after ``pip install mpi4py`` alone, beside the mpiexec of a distribution."""
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py" / "__init__.py").write_text(
        "raise RuntimeError('cannot load MPI library\\nlibmpi.so: no such file')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for module in [name for name in sys.modules if name.partition(".")[0] == "mpi4py"]:
        monkeypatch.delitem(sys.modules, module)
    with pytest.raises(
        NoPartners, match=r"cannot load MPI library\. Install it \(pip install mpi4py mpich\)"
    ):
        check_partners({"PMI_RANK": "0", "PMI_SIZE": "2"})


@pytest.mark.parametrize("name", ["srun", "flux"])
def test_a_launcher_that_is_none_of_mpi_does_not_lead_to_the_mpi_world(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (launcher,) = (each for each in LAUNCHERS if each.launcher == name)
    for variable, value in started_by(launcher, 1, 4).items():
        monkeypatch.setenv(variable, value)
    world = open_world(ranks=2)
    assert world.name == WorldName.SIMULATED
    world.close()


TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "1",
    "RANK": "0",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "0",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29500",
}


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("RANK", None, "RANK is missing"),
        ("RANK", "first", "RANK is 'first'"),
        ("RANK", "2", "RANK is 2, and WORLD_SIZE 2"),
        ("WORLD_SIZE", None, "WORLD_SIZE is missing"),
        ("WORLD_SIZE", "0", "WORLD_SIZE is '0'"),
        ("LOCAL_RANK", "-1", "LOCAL_RANK is '-1'"),
        ("MASTER_ADDR", "", "MASTER_ADDR is missing"),
        ("MASTER_PORT", None, "MASTER_PORT is missing"),
    ],
)
def test_broken_variables_of_torchrun_are_named(variable: str, value: str | None, said: str) -> None:
    check_partners(TORCHRUN)
    broken = {name: each for name, each in (TORCHRUN | {variable: value}).items() if each is not None}
    assert launched_world(broken) == "torch"
    with pytest.raises(NoPartners, match=f"as by torchrun, but {said}: start the command with torchrun"):
        check_partners(broken)


def test_torchrun_without_torch_or_without_gloo_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    distributed = pytest.importorskip("torch.distributed")
    monkeypatch.setattr(distributed, "is_gloo_available", lambda: False)
    with pytest.raises(NoPartners, match=r"torchrun has started this process, but .* built without it"):
        check_partners(TORCHRUN)
    monkeypatch.setattr(distributed, "is_available", lambda: False)
    with pytest.raises(NoPartners, match=r"this torch .* is built without it"):
        check_partners(TORCHRUN)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(NoPartners, match="torch is not installed"):
        check_partners(TORCHRUN)


def test_the_torch_world_without_torchrun_is_one_line() -> None:
    pytest.importorskip("torch.distributed")
    with pytest.raises(RuntimeError, match="needs the processes of torchrun"):
        open_world("torch")


def test_mpi_is_not_imported_under_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch.distributed")
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    check_partners(TORCHRUN)


CHECK = ("adjointlab", "check", "SendReceive", "--cases", "2")


@pytest.mark.mpi_skip  # one process starts the others
def test_a_rank_without_partners_gives_no_verdict(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    # As its own library's launcher sets them, MPI may take them at their word, and end the process itself.
    other = "Open MPI" if library_of_mpi4py() == Vendor.MPICH else "PMI (MPICH, Intel MPI, Slurm's pmi2)"
    (launcher,) = (each for each in LAUNCHERS if each.launcher == other)
    checked = run(*CHECK, cwd=tmp_path, **started_by(launcher, 0, 2))
    assert checked.returncode == ExitCode.USAGE, checked.stdout + checked.stderr
    assert "coherent" not in checked.stdout
    assert "belongs to another MPI library" in checked.stderr
    tested = run("pytest", cwd=tmp_path, **started_by(launcher, 0, 2))
    assert tested.returncode == pytest.ExitCode.USAGE_ERROR
    assert "belongs to another MPI library" in tested.stderr
