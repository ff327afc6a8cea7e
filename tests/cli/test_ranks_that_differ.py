"""Ranks that would do different things end together, and say which of them differs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.running import run, run_python

pytestmark = [pytest.mark.mpi_skip, pytest.mark.starts_mpiexec]

SUBJECTS = """
import adjointlab as al
from adjointlab.worlds.launch import launched_rank


class Copy(al.LinearOperator):
    def __init__(self, comm, layout):
        self.comm, self.domain, self.codomain = comm, al.Space(layout), al.Space(layout)

    def forward(self, x):
        return x.copy()

    def adjoint(self, y):
        return y.copy()


def declared(name):
    @al.subject.operator(Copy, name=name)
    def copies(draw, ranks):
        return dict(layout=draw(al.strategies.layouts(ranks)))

    return copies


first = declared("first")
"""

ON_RANK_1 = {
    "more": ('second = declared("second")', "rank 1 has second adjoint (subjects.py:second), which rank 0 lacks"),
    "namesake": ('again = declared("first")', "rank 1 has first adjoint (subjects.py:again), which rank 0 lacks"),
    "none": ("del first\nother = declared('other')", "rank 1 has no first adjoint (subjects.py:first), which rank 0 has"),
    "renamed": ('first = declared("renamed")', "rank 1 has no first adjoint (subjects.py:first), which rank 0 has"),
}  # fmt: skip

START = """
import sys
from adjointlab.cli.main import main
from adjointlab.worlds.launch import launched_rank

main(["check", "subjects.py", "--check", "adjoint", "--cases", "2", *(sys.argv[2:] if launched_rank() == int(sys.argv[1]) else [])])
"""


@pytest.mark.parametrize("how", ON_RANK_1)
def test_a_subject_that_not_all_ranks_have_is_named(tmp_path: Path, how: str) -> None:
    change, told = ON_RANK_1[how]
    changed = "".join(f"    {line}\n" for line in change.splitlines())
    (tmp_path / "subjects.py").write_text(f"{SUBJECTS}if launched_rank() == 1:\n{changed}")
    ended = run("adjointlab", "check", "subjects.py", "--check", "adjoint", ranks=2, cwd=tmp_path)
    assert ended.returncode == 2, ended.stdout + ended.stderr
    assert ended.stderr.startswith(f"adjointlab: {told}; all ranks must declare the same subjects")
    assert ended.stderr.count(told) == 1
    assert not (tmp_path / ".adjointlab").exists()


@pytest.mark.parametrize(("rank", "told"), [(0, "adjointlab: "), (1, "adjointlab: on rank 1: ")])
def test_a_command_line_that_one_rank_cannot_read_ends_all(tmp_path: Path, rank: int, told: str) -> None:
    (tmp_path / "subjects.py").write_text(SUBJECTS)
    (tmp_path / "start.py").write_text(START)
    ended = run_python("start.py", str(rank), "--no-such-option", ranks=2, cwd=tmp_path)
    assert ended.returncode == 2, ended.stdout + ended.stderr
    assert ended.stderr.startswith(f"{told}No such option: --no-such-option")
    assert ended.stderr.count("No such option") == 1


def test_a_list_is_that_of_rank_0(tmp_path: Path) -> None:
    (tmp_path / "subjects.py").write_text(
        f"{SUBJECTS}if launched_rank() == 1:\n    raise OSError('no device')\n"
    )
    ended = run("adjointlab", "list", "subjects.py", ranks=2, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("subjects.py:first") == 1
