"""A job of several processes ends when its program ends, with the program's own exit code, whatever went wrong before."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from adjointlab.worlds.launch import is_launched

MPIEXEC = shutil.which(
    "mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
)

pytestmark = [
    pytest.mark.skipif(is_launched(), reason="starts mpiexec itself, so it cannot run under mpiexec"),
    pytest.mark.skipif(MPIEXEC is None, reason="mpiexec is needed: pip install mpich"),
    pytest.mark.skipif(
        importlib.util.find_spec("mpi4py") is None, reason="mpi4py is needed: pip install mpi4py"
    ),
]

PROGRAM = """
import sys
import numpy as np
from adjointlab.worlds.mpi import MPIWorld

world = MPIWorld(patience=0.3)


def body(context, what):
    comm, rank, size = context.comm, context.rank, context.size
    if what == "failure" and rank == 1:
        raise ValueError
    if what == "deadlock":
        comm.Recv(np.empty(1 << 18), source=(rank + 1) % size)
    if what == "large message":
        comm.Isend(np.ones(1 << 18), (rank + 1) % size)
    if what == "small message":
        comm.send(what, (rank + 1) % size)
    if what == "interrupt" and rank == 1:
        raise KeyboardInterrupt
    comm.Barrier()
    return comm.allreduce(1)


def conduct(run):
    for what in sys.argv[1].split(","):
        assert not run(what, world.ranks).completed
        good = run("nothing", world.ranks)
        assert good.completed and good.values == (world.ranks,) * world.ranks
    run(sys.argv[1].split(",")[-1], world.ranks)


try:
    world.lead(body, conduct)
finally:
    if sys.argv[3] == "close":
        world.close()
sys.exit(int(sys.argv[2]))
"""


def launch(tmp_path, *arguments):
    (tmp_path / "program.py").write_text(PROGRAM)
    root = str(Path(__file__).parents[2])
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]),
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "OMPI_MCA_mpi_yield_when_idle": "1",
    }
    command = [MPIEXEC, "-n", "3", sys.executable, "program.py", *arguments]
    return subprocess.run(command, cwd=tmp_path, env=environment, timeout=60, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("happenings", "code", "close"),
    [
        ("failure,failure,failure", 0, "close"),
        ("deadlock,deadlock,deadlock", 0, "leave"),
        ("large message,small message,failure,deadlock", 7, "leave"),
    ],
)
def test_the_exit_code_is_the_programs_own(tmp_path, happenings, code, close):
    ended = launch(tmp_path, happenings, str(code), close)

    assert ended.returncode == code, ended.stderr


def test_an_interrupt_of_one_rank_ends_the_job(tmp_path):
    ended = launch(tmp_path, "interrupt", "0", "leave")

    assert ended.returncode != 0
    assert ended.stderr.count("KeyboardInterrupt\n") >= 1
