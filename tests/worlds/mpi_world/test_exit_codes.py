"""A job of several processes ends when its program ends, with the program's own exit code, whatever went wrong before."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import time

import pytest

from adjointlab.worlds.launch import is_launched
from tests.running import IS_OPEN_MPI, ROOT, begun, run_python

pytestmark = [
    pytest.mark.skipif(is_launched(), reason="starts mpiexec itself, so it cannot run under mpiexec"),
    pytest.mark.starts_mpiexec,
    pytest.mark.skipif(
        importlib.util.find_spec("mpi4py") is None, reason="mpi4py is needed: pip install mpi4py"
    ),
]

PROGRAM = """
import signal
import sys
import numpy as np
from adjointlab.worlds.mpi.world import MPIWorld

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
        signal.raise_signal(signal.SIGINT)
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
    return run_python("program.py", *arguments, ranks=3, cwd=tmp_path)


@pytest.mark.parametrize(
    ("bodies", "code", "close"),
    [
        ("failure,failure,failure", 0, "close"),
        ("deadlock,deadlock,deadlock", 0, "leave"),
        ("large message,small message,failure,deadlock", 7, "leave"),
    ],
)
def test_the_exit_code_is_the_programs_own(tmp_path, bodies, code, close):
    ended = launch(tmp_path, bodies, str(code), close)

    assert ended.returncode == code, ended.stderr


def test_an_interrupt_of_one_rank_ends_the_job(tmp_path):
    ended = launch(tmp_path, "interrupt", "0", "leave")

    assert ended.returncode != 0
    assert ended.stderr.count("KeyboardInterrupt\n") >= 1


@pytest.mark.parametrize("moment", [0.0, 0.5])
def test_ctrl_c_at_any_moment_ends_all_ranks_and_prints_the_verdicts_so_far(tmp_path, moment):
    """Checks are short, so that it comes now in one, now between two."""
    # Arrays of NumPy alone: else each rank would import torch first, which on a busy machine goes on for longer after an
    # interrupt than a process is waited for.
    subject = f"{ROOT / 'examples' / 'ring_shift.py'}:ring_shifts"
    command = ["-m", "adjointlab", "check", subject, "--cases", "5000", "--json", "verdicts.json"]
    job = begun(*command, ranks=3, cwd=tmp_path)
    try:
        _wait_until((tmp_path / ".adjointlab" / "running.json").exists)
        time.sleep(moment)
        os.killpg(job.pid, signal.SIGINT)
        printed = "".join(job.communicate(timeout=60))
        _wait_until(lambda: not _is_alive(job.pid))
    finally:
        if _is_alive(job.pid):
            os.killpg(job.pid, signal.SIGKILL)
    assert job.returncode != 0
    if not IS_OPEN_MPI:
        assert job.returncode == 130, printed
        assert "are done." in printed
        assert not (tmp_path / ".adjointlab").exists()
        if "\n0 of " not in printed:
            verdicts = json.loads((tmp_path / "verdicts.json").read_text())
            assert (verdicts["complete"], verdicts["exit_code"]) == (False, 130)


@pytest.mark.parametrize("ranks", [0, 3])
def test_ctrl_c_after_the_verdicts_does_not_change_the_exit_code(tmp_path, ranks):
    subject = f"{ROOT / 'examples' / 'ring_shift.py'}:ring_shifts"
    job = begun("-m", "adjointlab", "check", subject, "--cases", "3", ranks=ranks, cwd=tmp_path)
    try:
        assert any(" judged, " in line for line in job.stdout)
        time.sleep(0.15)
        os.killpg(job.pid, signal.SIGINT)
        printed = "".join(job.communicate(timeout=60))
    finally:
        if _is_alive(job.pid):
            os.killpg(job.pid, signal.SIGKILL)
    if not (ranks and IS_OPEN_MPI):  # whose launcher ends the ranks and the job in its own way
        # On a busy machine it may have come before the end after all, and is reported then.
        assert job.returncode == (130 if "interrupted" in printed else 0)


def _is_alive(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def _wait_until(happened):
    end = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.005)
