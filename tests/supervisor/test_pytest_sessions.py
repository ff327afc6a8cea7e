"""A pytest session under supervision is one session, however often its process dies."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.supervisor.jobs import stored, supervised

TESTS = """
import os
import pytest
import adjointlab as al
from tests.faults import operators

TestDies = al.coherence_tests(operators.is_killed, checks=["adjoint"])


def test_before():
    open("before", "a").write("x")


@pytest.mark.parametrize("number", [1, 2])
def test_ends_the_process(number):
    if number == 2:
        os.abort()


@pytest.mark.xfail(strict=True)
def test_is_known():
    os.abort()


def test_fails():
    assert "FAILS" not in os.environ


TestIsRight = al.coherence_tests(operators.right, checks=["adjoint", "purity"])
"""


def test_a_pytest_session_goes_on_after_each_test_that_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "test_all.py").write_text(TESTS)
    command = (
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--adjointlab-cases",
        "20",
        "--junitxml",
        "junit.xml",
    )
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    ended = supervised("--shrinking", "0", "--", *command, cwd=tmp_path)

    # Deaths alone: what could not be judged is not what is wrong.
    assert ended.returncode == 3, ended.stdout + ended.stderr
    assert "2 failed, 5 passed, 1 xfailed" in ended.stdout
    assert "IsKilled: the process of the ranks was killed" in ended.stdout
    assert "died by abort() (SIGABRT)" in ended.stdout
    # A test that is done is reported again, and not run again.
    assert (tmp_path / "before").read_text() == "x"
    assert (tmp_path / "junit.xml").read_text().count("<testcase") == 8
    summary = (tmp_path / "summary.md").read_text()
    assert "2 of 3 checks judged, 2 coherent, 1 could not be judged: " in summary
    assert "| IsKilled | adjoint | the process of the ranks was killed" in summary
    assert stored(tmp_path) == ["IsKilled.json", "IsKilled.py"]
