"""Threads that user code leaves behind do not hold up the end of a process, nor change its exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import hanging
from tests.running import run

# One process starts the others.
pytestmark = pytest.mark.mpi_skip

HANGING = Path(hanging.__file__)
LEFT = "was left behind and does not end"
OPTIONS = ("--check", "adjoint", "--cases", "3", "--seed", "1")


@pytest.mark.parametrize(
    ("subject", "named", "ranks"),
    [
        pytest.param(
            "leaves_thread",
            "the thread left (its target, sleep_for_ever, is at ",
            2,
            marks=pytest.mark.starts_mpiexec,
        ),
        ("leaves_executor", "the thread ThreadPoolExecutor", 0),
    ],
)
def test_a_thread_that_does_not_end_is_named_and_costs_no_exit_code(
    tmp_path: Path, subject: str, named: str, ranks: int
):
    ended = run("adjointlab", "check", f"{HANGING}:{subject}", *OPTIONS, cwd=tmp_path, ranks=ranks)

    assert ended.returncode == 0, ended.stderr
    assert "1 coherent" in ended.stdout
    assert named in ended.stderr
    assert LEFT in ended.stderr
    assert f"it is at {HANGING}:" in ended.stderr


def test_a_thread_that_is_only_idle_is_not_told(tmp_path: Path):
    ended = run("adjointlab", "check", f"{HANGING}:leaves_idle_executor", *OPTIONS, cwd=tmp_path)

    assert (ended.returncode, LEFT in ended.stderr) == (0, False), ended.stderr


def test_a_session_of_pytest_ends_and_names_the_thread(tmp_path: Path):
    (tmp_path / "test_it.py").write_text(
        "from adjointlab.pytest.coherence_tests import coherence_tests\n"
        "from tests.hanging import leaves_thread\n"
        "TestAll = coherence_tests(leaves_thread)\n"
    )
    ended = run("pytest", "-q", "-k", "adjoint", "--adjointlab-cases=3", cwd=tmp_path)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "the thread left (its target, sleep_for_ever, is at " in ended.stderr


@pytest.mark.starts_mpiexec
def test_to_a_supervisor_that_is_an_end_in_order(tmp_path: Path):
    words = ("adjointlab", "check", f"{HANGING}:leaves_thread", *OPTIONS)
    ended = run("adjointlab", "run", "-n", "2", "--", *words, cwd=tmp_path)

    assert ended.returncode == 0, ended.stderr
    assert LEFT in ended.stderr
