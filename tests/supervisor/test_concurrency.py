"""Processes that share a folder: workers of a test runner, commands side by side, two supervisors."""

from __future__ import annotations

import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.running import SAMPLES, begun
from tests.supervisor.jobs import supervised

TESTS = """
import adjointlab as al
from tests import samples
from tests.faults import operators

TestRight = al.coherence_tests(samples.right, checks=["adjoint", "purity"])
TestShift = al.coherence_tests(operators.right, checks=["adjoint", "purity"])
TestWrong = al.coherence_tests(samples.wrong, checks=["adjoint"])
"""
QUIET = ("-q", "-p", "no:cacheprovider", "--adjointlab-cases", "5")


@pytest.mark.skipif(find_spec("xdist") is None, reason="needs pytest-xdist")
def test_workers_of_xdist_do_not_disturb_each_other_under_supervision(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"test_{number}.py").write_text(TESTS)
    ended = supervised("--", "pytest", "-n", "3", *QUIET, cwd=tmp_path)

    assert "3 failed, 12 passed" in ended.stdout, ended.stdout + ended.stderr
    assert ended.returncode == 1
    assert {path.suffix for path in (tmp_path / ".adjointlab").iterdir()} == {".json", ".py"}


def test_sessions_side_by_side_in_one_supervised_job_do_not_disturb_each_other(tmp_path: Path) -> None:
    (tmp_path / "test_all.py").write_text(TESTS)
    session = " ".join(("python -m pytest", *QUIET, "-k", "'not Wrong'"))
    (tmp_path / "both").write_text(f"#!/bin/sh\n{session} & {session}; code=$?; wait; exit $code\n")
    (tmp_path / "both").chmod(0o755)
    ended = supervised("--", tmp_path / "both", cwd=tmp_path)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("4 passed") == 2
    assert not (tmp_path / ".adjointlab").exists()


@pytest.mark.parametrize("supervisor", [(), ("run", "--", "adjointlab")], ids=["alone", "supervised"])
def test_commands_side_by_side_in_one_folder_find_the_same(
    tmp_path: Path, supervisor: tuple[str, ...]
) -> None:
    commands = [
        begun(
            *("-m", "adjointlab", *supervisor, "check", f"{SAMPLES}:right", f"{SAMPLES}:wrong"),
            *("--check", "adjoint", "--seed", "1", "--cases", "5", "--quiet"),
            cwd=tmp_path,
        )
        for _ in range(2)
    ]
    for command in commands:
        out, err = _ended(command)
        assert command.returncode == 1, out + err
        assert "script" in out
        assert "Error" not in out + err
        assert "note:" not in err
    names = sorted(path.suffix for path in (tmp_path / ".adjointlab").iterdir())
    assert names == [".json", ".py"]


def _ended(command: subprocess.Popen[str]) -> tuple[str, str]:
    try:
        return command.communicate(timeout=100)
    except subprocess.TimeoutExpired:
        command.kill()
        raise
