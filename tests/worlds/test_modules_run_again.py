"""Modules that use COMM_WORLD when they are imported, as subjects that name them in `rank_local`."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from adjointlab.exit_codes import ExitCode
from adjointlab.worlds import modules_run_again
from adjointlab.worlds.modules_run_again import run_again, uses_comm_world
from tests.running import run

RING = """
import numpy as np
from mpi4py import MPI

{start}

def exchange(x):
    out = np.empty(len(x) + 2)
    out[1:-1] = x
    comm.Sendrecv(x[-1:].copy(), right, 0, out[:1], left, 0)
    comm.Sendrecv(x[:1].copy(), left, 1, out[-1:], right, 1)
    return out

def adjoint(y):
    x, ghost = y[1:-1].copy(), np.empty(1)
    comm.Sendrecv(y[:1].copy(), left, 0, ghost, right, 0)
    x[-1] += ghost[0]
    comm.Sendrecv(y[-1:].copy(), right, 1, ghost, left, 1)
    x[{first}] += ghost[0]
    return x
"""
NUMBERS = """
comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
left, right = (rank - 1) % size, (rank + 1) % size
"""
GRID = """
comm = MPI.COMM_WORLD.Create_cart([MPI.COMM_WORLD.size], periods=[True])
left, right = comm.Shift(0, 1)
"""
DUPLICATE = NUMBERS.replace("WORLD", "WORLD.Dup()")

SUBJECT = """
from hypothesis import strategies as st

import adjointlab as al
{imported}

@al.subject.pair({functions}, rank_local={rank_local})
def rings(draw, ranks):
    cells, workers = draw(st.integers(2, 4)), al.Partition((ranks,))
    padded = al.Space(al.Layout(((cells + 2) * ranks,), workers), name="y")
    return dict(domain=al.Space(al.Layout((cells * ranks,), workers)), codomain=padded)
"""
OF_THE_RING = SUBJECT.format(
    imported="from ring import adjoint, exchange",
    functions="lambda comm, x: exchange(x), lambda comm, y: adjoint(y)",
    rank_local=["ring"],
)


def checked(folder: Path, ring: str, subject: str, ranks: int | None = None) -> tuple[int, str]:
    (folder / "ring.py").write_text(ring)
    (folder / "rings.py").write_text(subject)
    command = ("adjointlab", "check", "rings.py", "--check", "adjoint", "--cases", "12", "--seed", "1")
    ended = run(*command, ranks=ranks, cwd=folder)
    return ended.returncode, " ".join(ended.stdout.split())


@pytest.mark.mpi_skip
@pytest.mark.parametrize("start", [NUMBERS, GRID, DUPLICATE])
def test_what_a_module_has_asked_of_comm_world_is_that_of_each_rank_of_a_case(
    tmp_path: Path, start: str
) -> None:
    assert checked(tmp_path, RING.format(start=start, first=0), OF_THE_RING)[0] == ExitCode.COHERENT
    code, told = checked(tmp_path, RING.format(start=start, first=1), OF_THE_RING)
    assert code == ExitCode.INCOHERENT
    assert "adjoint is not the transpose of forward" in told


@pytest.mark.mpi_skip
@pytest.mark.starts_mpiexec
def test_it_is_that_of_the_case_on_fewer_real_ranks_than_the_job_has(tmp_path: Path) -> None:
    code, told = checked(tmp_path, RING.format(start=GRID, first=0), OF_THE_RING, ranks=3)
    assert code == ExitCode.COHERENT, told


@pytest.mark.mpi_skip
def test_a_module_that_takes_the_numbers_of_another_runs_again_after_it_if_both_are_named(
    tmp_path: Path,
) -> None:
    ring = "from mpi4py import MPI\nrank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size\n"
    moved = """
from ring import rank, size

scale = rank + 1.0

def padded(x):
    return np.concatenate([x[:1] * scale, x, x[:1] * 0])

def cropped(y):
    x = y[1:-1].copy()
    x[0] += y[0] * scale
    return x
"""
    functions = "lambda comm, x: padded(x) * (comm.rank == rank), lambda comm, y: cropped(y)"
    for names, expected in ((["ring", "rings"], ExitCode.COHERENT), (["ring"], ExitCode.INCOHERENT)):
        subject = SUBJECT.format(imported=f"import numpy as np{moved}", functions=functions, rank_local=names)
        assert checked(tmp_path, ring, subject)[0] == expected


def test_definitions_stay_the_objects_that_others_have_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "numbers = [1]\nclass Kind: pass\nkind = Kind()\ntry:\n    def function(): return numbers\nfinally: pass\n"
    (tmp_path / "asking.py").write_text(source)
    module = ModuleType("asking")
    module.__file__ = str(tmp_path / "asking.py")
    exec(source, vars(module))  # noqa: S102 - the text above
    before = dict(vars(module))
    monkeypatch.setitem(sys.modules, "asking", module)
    monkeypatch.setattr(modules_run_again, "uses_comm_world", lambda name: name == "asking")
    run_again(["another"])
    assert vars(module) == before
    run_again(["another", "asking"])
    assert module.Kind is before["Kind"]
    assert type(module.kind) is before["Kind"]
    assert module.kind is not before["kind"]
    assert module.function is before["function"]
    assert module.function() is module.numbers is not before["numbers"]


def test_definitions_that_decorators_have_put_into_containers_stay_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = """
kinds, steps, names, calls = {}, [], set(), [lambda: 1]
def register(function):
    kinds["one"] = function
    steps.append(function)
    names.add(function)
    return function
@register
def one(): pass
kinds[2] = object()
"""
    (tmp_path / "asking.py").write_text(source)
    module = ModuleType("asking")
    module.__file__ = str(tmp_path / "asking.py")
    exec(source, vars(module))  # noqa: S102 - the text above
    monkeypatch.setitem(sys.modules, "asking", module)
    monkeypatch.setattr(modules_run_again, "uses_comm_world", lambda name: name == "asking")
    two = module.kinds[2]
    run_again(["asking"])
    assert module.kinds == {"one": module.one, 2: module.kinds[2]}
    assert module.kinds[2] is not two
    assert module.steps == [module.one]
    assert module.names == {module.one}
    assert len(module.calls) == 1


def test_a_module_prints_what_it_prints_when_it_is_imported_and_later_calls_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = f"""
import sys
print("on standard output")
print("on the other one", file=sys.stderr)
with open({str(tmp_path / "file")!r}, "a") as file:
    print("in a file", file=file)
tell = [lambda: print("later")]
"""
    (tmp_path / "asking.py").write_text(source)
    module = ModuleType("asking")
    module.__file__ = str(tmp_path / "asking.py")
    monkeypatch.setitem(sys.modules, "asking", module)
    monkeypatch.setattr(modules_run_again, "uses_comm_world", lambda name: name == "asking")
    run_again(["asking"])
    run_again(["asking"])
    assert capsys.readouterr() == ("", "")
    assert (tmp_path / "file").read_text() == "in a file\n" * 2
    module.tell[0]()
    assert capsys.readouterr().out == "later\n"
    assert "print" not in vars(module)


def test_a_module_whose_source_is_gone_and_a_script_are_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "asking.py"
    file.write_text("from mpi4py.MPI import COMM_WORLD as comm\n")
    for name in ("asking", "__main__"):
        module = ModuleType(name)
        module.__file__ = str(file)
        monkeypatch.setitem(sys.modules, name, module)
    assert uses_comm_world("asking")
    assert not uses_comm_world("__main__")
    file.unlink()
    assert not uses_comm_world("asking")
    run_again(["asking"])
    assert "comm" not in vars(sys.modules["asking"])
