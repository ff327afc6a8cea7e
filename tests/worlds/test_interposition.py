"""``COMM_WORLD`` of mpi4py means the communicator of the run, however user code refers to it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.running import needs_mpi, run_python

pytest.importorskip("mpi4py")

PROGRAM = """
import json
import threading

from mpi4py import MPI
from mpi4py.MPI import COMM_WORLD as everyone

from adjointlab.worlds.launch import open_world


def by_argument(comm=MPI.COMM_WORLD):
    return comm


def by_keyword(*, comm=MPI.COMM_WORLD):
    return comm


def closed_over():
    comm = MPI.COMM_WORLD
    return lambda: comm


class Holder:
    of_class = MPI.COMM_WORLD

    def __init__(self):
        self.comm = MPI.COMM_WORLD


holder, listed, by_closure = Holder(), [MPI.COMM_WORLD], closed_over()
copied, made_before = MPI.Intracomm(MPI.COMM_WORLD), MPI.COMM_WORLD.Split()
WAYS = {
    "the module": lambda: MPI.COMM_WORLD,
    "a name of its own": lambda: everyone,
    "a default of an argument": by_argument,
    "a default of a keyword": by_keyword,
    "a closure": by_closure,
    "a class": lambda: Holder.of_class,
    "an object": lambda: holder.comm,
    "a list": lambda: listed[0],
    "a copy of the handle": lambda: copied,
    "what it is called with": lambda: MPI.COMM_WORLD.Dup(),
}


def message(call):
    try:
        return call()
    except Exception as error:
        return str(error)


def in_a_thread(call):
    found = []
    thread = threading.Thread(target=lambda: found.append(message(call)))
    thread.start()
    thread.join()
    return found[0]


def body(context, payload):
    seen = {way: [comm().rank, comm().Get_size(), comm().allreduce(10 + context.rank)] for way, comm in WAYS.items()}
    seen["a communicator made before"] = message(made_before.Barrier)
    seen["equal"] = [MPI.COMM_WORLD == context.comm, context.comm == MPI.COMM_WORLD, MPI.COMM_WORLD == MPI.COMM_SELF]
    seen["an intracommunicator"] = isinstance(MPI.COMM_WORLD, MPI.Intracomm)
    if payload:
        seen["a thread"] = in_a_thread(MPI.COMM_WORLD.Get_rank)
    return seen


before = MPI.COMM_WORLD.size
world = open_world(WORLD, 2)
run = world.run(body, world.name == "simulated", 2)
if world.is_leader:
    print(json.dumps([run.completed, [outcome.value for outcome in run.outcomes], [before, MPI.COMM_WORLD.size]]))
    made_before.Get_size()  # outside runs it is as good as it was
world.close()
"""


def seen_by_ranks(folder: Path, world: str, processes: int) -> list[Mapping[str, object]]:
    """Return what each of the two ranks of a run sees, in a job of so many processes (0: started without mpiexec)."""
    file = folder / "program.py"
    file.write_text(PROGRAM.replace("WORLD, 2", f"{world!r}, 2"))
    result = run_python(file, ranks=processes, cwd=folder)
    assert result.returncode == 0, result.stdout + result.stderr
    completed, values, sizes = json.loads(result.stdout)
    assert completed
    assert sizes == [max(1, processes)] * 2, "outside runs COMM_WORLD is itself"
    seen: list[Mapping[str, object]] = values
    return seen


@pytest.mark.parametrize(("world", "processes"), [("simulated", 0), pytest.param("mpi", 3, marks=needs_mpi)])
def test_every_reference_to_comm_world_means_the_communicator_of_the_run(
    world: str, processes: int, tmp_path: Path
) -> None:
    for rank, seen in enumerate(seen_by_ranks(tmp_path, world, processes)):
        ways = {way: value for way, value in seen.items() if isinstance(value, list) and way != "equal"}
        assert len(ways) == 10
        assert ways == {way: [rank, 2, 21] for way in ways}
        assert seen["equal"] == [True, True, False]
        assert seen["an intracommunicator"] is True
        assert "made before the case began" in str(seen["a communicator made before"])
        if world == "simulated":
            assert "in a thread that user code has started" in str(seen["a thread"])


LATE = """
import sys
from adjointlab.worlds.launch import open_world

def body(context, payload):
    from mpi4py import MPI
    return MPI.COMM_WORLD.allreduce(1)

world = open_world("simulated", 3)
assert "mpi4py.MPI" not in sys.modules
finders = {type(each).__module__ for each in sys.meta_path}
print([outcome.value for outcome in world.run(body).outcomes], {type(each).__module__ for each in sys.meta_path} - finders)
world.close()
"""


def test_mpi4py_may_be_imported_in_the_middle_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text(LATE)
    result = run_python(tmp_path / "late.py", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (0, "[3, 3, 3] set()\n"), result.stderr
