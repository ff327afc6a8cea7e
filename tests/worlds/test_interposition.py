"""``COMM_WORLD`` of mpi4py means the communicator of the run, however user code refers to it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adjointlab.exit_codes import ExitCode
from adjointlab.worlds.current_run import NotedRefusals
from tests.running import run_python

pytest.importorskip("mpi4py")

PROGRAM = """
import json
import pickle
import threading
import weakref
from dataclasses import dataclass
from functools import partial

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


@dataclass(slots=True, frozen=True)
class Record:
    comm: MPI.Intracomm


holder, record, in_tuple, weak = Holder(), Record(MPI.COMM_WORLD), (MPI.COMM_WORLD,), weakref.ref(MPI.COMM_WORLD)
listed, by_closure = [MPI.COMM_WORLD], closed_over()
get_rank, get_size, allreduce = MPI.COMM_WORLD.Get_rank, MPI.COMM_WORLD.Get_size, MPI.COMM_WORLD.allreduce
adder = partial(allreduce, op=MPI.SUM)


class Taken:
    allreduce = MPI.COMM_WORLD.allreduce
    __slots__ = ("method",)


def taking(value, allreduce=MPI.COMM_WORLD.allreduce):
    return allreduce(value)


taken = Taken()
taken.method = MPI.COMM_WORLD.allreduce
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
    "a tuple": lambda: in_tuple[0],
    "an object with slots": lambda: record.comm,
    "a weak reference": lambda: weak(),
    "a copy of the handle": lambda: copied,
    "a copy made in the run": lambda: MPI.Intracomm(MPI.COMM_WORLD),
    "a pickle": lambda: pickle.loads(pickle.dumps(MPI.COMM_WORLD)),
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
    seen["the class"] = [MPI.COMM_WORLD.Get_rank(), MPI.Comm.Get_size(MPI.COMM_WORLD), MPI.Comm.allreduce(MPI.COMM_WORLD, 10 + context.rank)]
    part = MPI.Intracomm.Split(context.comm, 0, context.rank)
    seen["the class, of a communicator of the run"] = [MPI.Comm.rank.__get__(part), MPI.Comm.Get_size(part), MPI.Comm.allreduce(part, 10 + context.rank)]
    MPI.Comm.Free(part)
    for way, sum_of in {"a method": allreduce, "in a partial": adder, "in a class": taken.allreduce, "in an object": taken.method, "in a default": taking}.items():
        seen[way] = [get_rank(), get_size(), sum_of(10 + context.rank)]
    own = MPI.COMM_SELF.Dup()
    seen["local"] = own.allreduce(7) + MPI.COMM_SELF.allreduce(1)
    own.Free()
    seen["equal"] = [MPI.COMM_WORLD == context.comm, context.comm == MPI.COMM_WORLD, MPI.COMM_WORLD == MPI.COMM_SELF]
    seen["an intracommunicator"] = type(MPI.COMM_WORLD) is MPI.Intracomm
    return seen


def refused(context, payload):
    return message(made_before.Barrier)


def threaded(context, payload):
    return in_a_thread(MPI.COMM_WORLD.Get_rank)


before = MPI.COMM_WORLD.size
world = open_world(WORLD, 2)
run = world.run(body, None, 2)
others = [world.run(each, None, 2) for each in (refused, threaded)]
if world.is_leader:
    values = [[outcome.value for outcome in each.outcomes] for each in (run, *others)]
    found = [sorted({finding.kind for finding in each.findings}) for each in (run, *others)]
    print(json.dumps([run.completed, values, found, [before, MPI.COMM_WORLD.size]]))
    made_before.Get_size()  # outside runs it is as good as it was
world.close()
"""


@pytest.mark.mpi_skip  # one process starts the others
@pytest.mark.parametrize(
    ("world", "processes"), [("simulated", 0), pytest.param("mpi", 3, marks=pytest.mark.starts_mpiexec)]
)
def test_every_reference_to_comm_world_means_the_communicator_of_the_run(
    world: str, processes: int, tmp_path: Path
) -> None:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM.replace("WORLD, 2", f"{world!r}, 2"))
    result = run_python(file, ranks=processes, cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    completed, (values, refused, threaded), found, sizes = json.loads(result.stdout)

    assert completed
    assert sizes == [max(1, processes)] * 2, "outside runs COMM_WORLD is itself"
    for rank, seen in enumerate(values):
        ways = {way: value for way, value in seen.items() if isinstance(value, list) and way != "equal"}
        assert len(ways) == 22
        assert ways == {way: [rank, 2, 21] for way in ways}
        assert (seen["equal"], seen["an intracommunicator"], seen["local"]) == ([True, True, False], True, 8)
    assert all("made before the case began" in text for text in refused)
    if world == "simulated":
        assert all("in a thread that user code has started" in text for text in threaded)
        # Found although user code has caught the exception.
        assert found == [[], ["communication past the run"], ["communication past the run"]]


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


OF_ITSELF = """
from mpi4py import MPI

import adjointlab as al
from tests.unearned_greens.common import Copying, blocks

SIZE = MPI.COMM_WORLD.Get_size()
alone = MPI.COMM_SELF.Dup()
row = alone.Create_cart([1])
shared = MPI.COMM_WORLD.Dup()


class OnItself(Copying):
    def forward(self, x):
        assert alone.allreduce(7) + row.allreduce(1) == 8
        return super().forward(x)


class OnAll(Copying):
    def forward(self, x):
        shared.Barrier()
        return super().forward(x)


class Aborting(Copying):
    def forward(self, x):
        MPI.COMM_SELF.Abort(0)


on_itself = al.subject.operator(OnItself)(lambda draw, ranks: blocks(draw, ranks))
on_all = al.subject.operator(OnAll)(lambda draw, ranks: blocks(draw, ranks))
aborting = al.subject.operator(Aborting)(lambda draw, ranks: blocks(draw, ranks))
"""

JUDGED = """
from adjointlab.engine.discovery import find
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget
from adjointlab.worlds.launch import open_world

world = open_world("simulated", 2)
for found in find(["of_itself.py"]):
    verdict = investigate(world, found.subject, "adjoint", Budget(cases=5, seed=1)).verdict
    print(found.subject.name, verdict.kind or verdict.status.value, flush=True)
world.close()
from mpi4py import MPI
from adjointlab.worlds.comm_world import asked_outside_runs

print(*asked_outside_runs(), flush=True)
MPI.COMM_SELF.Abort(0)
"""


@pytest.mark.mpi_skip  # one process starts the others
def test_what_a_module_makes_of_comm_self_and_asks_comm_world_is_followed_and_abort_is_no_end_with_0(
    tmp_path: Path,
) -> None:
    (tmp_path / "of_itself.py").write_text(OF_ITSELF)
    (tmp_path / "judged.py").write_text(JUDGED)
    result = run_python(tmp_path / "judged.py", cwd=tmp_path)
    assert result.stdout.splitlines() == [
        "OnItself coherent",
        "OnAll communication past the run",
        "Aborting a rank called MPI_Abort(0)",
        f"{tmp_path / 'of_itself.py'}:7",
    ], result.stderr
    assert result.returncode == ExitCode.UNJUDGED


def test_an_operation_that_mpi4py_has_no_room_for_says_how_to_keep_one_alone() -> None:
    def create(*_: object) -> object:
        raise RuntimeError("cannot create too many")

    with pytest.raises(RuntimeError, match="too many") as caught:
        NotedRefusals([]).operation(None, create, None, commute=False)
    assert "make the operation once" in "".join(caught.value.__notes__)
