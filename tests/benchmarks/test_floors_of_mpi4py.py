"""Floors of the benchmarks under MPI are mpi4py's own calls, or the script says that they are none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.timing import SMOKE
from tests.running import ROOT, run_python

pytestmark = [pytest.mark.mpi_skip, pytest.mark.starts_mpiexec]

FOLDER = ROOT / "benchmarks"
GUARDED_FLOOR = "import plain_mpi; from mpi4py import MPI; plain_mpi.comm_world = lambda: MPI.COMM_WORLD"
REPLACED_METHODS = (
    "from adjointlab.worlds.interposition import follow_imports; import mpi4py.MPI; follow_imports()"
)


@pytest.mark.parametrize("script", ["guard", "primitives"])
def test_a_script_of_bare_calls_runs_on_two_ranks(script: str, tmp_path: Path) -> None:
    result = run_python(FOLDER / f"{script}.py", ranks=2, cwd=tmp_path, **{SMOKE: "1"})

    assert result.returncode == 0, result.stderr
    assert "floor µs" in result.stdout or "bare µs" in result.stdout


@pytest.mark.parametrize(
    ("script", "before", "error"),
    [
        ("guard", GUARDED_FLOOR, "the guard has counted a bare call"),
        ("primitives", GUARDED_FLOOR, "the guard has counted a bare call"),
        ("primitives", REPLACED_METHODS, "the methods of mpi4py's communicators are replaced"),
    ],
)
def test_no_table_is_printed_where_bare_calls_are_not_bare(
    script: str, before: str, error: str, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        f"import runpy, sys\nsys.path.insert(0, {str(FOLDER)!r})\n{before}\n"
        f"runpy.run_path({str(FOLDER / script) + '.py'!r}, run_name='__main__')\n"
    )

    result = run_python(program, ranks=2, cwd=tmp_path, **{SMOKE: "1"})

    assert result.returncode != 0
    assert error in result.stderr
    assert "┃" not in result.stdout


def test_the_floor_of_a_halo_exchange_computes_with_the_same_numbers_however_often_it_runs(
    tmp_path: Path,
) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        f"import sys\nsys.path.insert(0, {str(FOLDER)!r})\nfrom floors import HaloFloor\nfrom mpi4py import MPI\n"
        "floor = HaloFloor(MPI.COMM_WORLD, (1, 2, 1), (1, 4, 4), 1)\n"
        "for _ in range(3):\n    floor.copied_once()\n    for _ in range(100):\n        floor.in_place()\n"
        "assert not floor.u.any(), floor.u\n"
    )

    result = run_python("-W", "error", program, ranks=2, cwd=tmp_path)

    assert result.returncode == 0, result.stderr


def test_the_library_has_a_name_that_fits_into_a_title(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        f"import sys\nsys.path.insert(0, {str(FOLDER)!r})\nfrom plain_mpi import library\nprint(library())\n"
    )

    result = run_python(program, cwd=tmp_path)

    assert re.fullmatch(r"(MPICH Version:|Open MPI v)\s?[\w.]+\n", result.stdout), result.stderr


def test_a_rank_that_meets_the_others_asleep_leaves_them_its_processor(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        f"import sys, time\nsys.path.insert(0, {str(FOLDER)!r})\nfrom mpi4py import MPI\nfrom ranks import meet_asleep\n"
        "comm = MPI.COMM_WORLD\n"
        "comm.Barrier()\n"
        "if comm.Get_rank() == 0:\n    time.sleep(2.0)\n"
        "begin = time.perf_counter(), time.process_time()\n"
        "meet_asleep(comm)\n"
        "if comm.Get_rank() == 1:\n    print(time.perf_counter() - begin[0], time.process_time() - begin[1])\n"
    )

    result = run_python(program, ranks=2, cwd=tmp_path)

    assert result.returncode == 0, result.stderr
    waited, computed = map(float, result.stdout.split())
    assert waited > 1.5
    assert computed < waited / 4


def test_memory_of_a_pass_is_that_of_an_operator_that_has_not_been_applied_before(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        f"import sys\nsys.path.insert(0, {str(FOLDER)!r})\nimport movement\nrows = movement.memory_rows()\n"
        "if movement.COMM.Get_rank() == 0:\n    print([row[2] for row in rows if row[0] == 'in place, adjoint'])\n"
    )

    result = run_python(program, ranks=2, cwd=tmp_path)

    assert result.returncode == 0, result.stderr
    faces = float(result.stdout.strip("[']\n"))
    assert faces > 2, "a buffer to send and one to receive each part"
