"""A signal to a pytest session: it ends with its summary, its JUnit file and what had failed."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.running import begun

TESTS = """
import time
import adjointlab as al
from tests.faults.operators import Shift, _subject
from tests.samples import wrong

TestWrong = al.coherence_tests(wrong, checks=["adjoint"])


class Failing(Shift):
    def adjoint(self, y):
        open("begun" if self.size == 2 else "drawn", "w").close()
        if self.size == 2:
            time.sleep(0.3)
        result = super().adjoint(y)
        if self.rank == 1:
            result[-1:] = 0
        return result


TestIsMadeSmaller = al.coherence_tests(_subject(Failing), checks=["adjoint"])
"""


@pytest.mark.parametrize(
    "supervisor", [(), ("adjointlab", "run", "--", "pytest")], ids=["alone", "supervised"]
)
def test_a_session_that_is_ended_reports_what_has_failed(tmp_path: Path, supervisor: tuple[str, ...]) -> None:
    (tmp_path / "test_all.py").write_text(TESTS)
    options = ("-p", "no:cacheprovider", "--adjointlab-cases", "30", "--junitxml", "junit.xml")
    process = begun("-m", *(supervisor or ("pytest",)), *options, cwd=tmp_path)
    while not (tmp_path / "begun").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    time.sleep(0.5)
    os.kill(process.pid, signal.SIGTERM)
    out, err = process.communicate(timeout=60)

    assert process.returncode == (143 if supervisor else 2), out + err
    assert "WrongShift: adjoint is not the transpose of forward" in out
    failures = 1 + ("Failing: adjoint is not" in out)
    assert (tmp_path / "junit.xml").read_text().count("<failure") == failures
    kept = sorted(path.name.partition("-")[0] for path in (tmp_path / ".adjointlab").glob("*.json"))
    assert "Failing" in kept
    assert "WrongShift" in kept


SLOW = """
import time
import adjointlab as al


class Slow(al.LinearOperator):
    def __init__(self, comm):
        self.comm = comm
        self.domain = self.codomain = al.Space(al.Layout((2,), (1,)))

    def forward(self, x):
        open("begun", "w").close()
        time.sleep(0.1)
        return x.copy()

    adjoint = forward


@al.subject.operator(Slow)
def slow(draw, ranks):
    return {}


TestSlow = al.coherence_tests(slow, checks=["adjoint"])
"""


def test_an_interrupted_session_names_the_test_that_was_at_work_in_a_line_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "test_slow.py").write_text(SLOW)
    process = begun("-m", "pytest", "-p", "no:cacheprovider", cwd=tmp_path)
    while not (tmp_path / "begun").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 2, out + err
    lines = out.splitlines()
    assert any(line.startswith("test_slow.py::TestSlow::test_adjoint was at work (seed ") for line in lines)
    assert any(
        line.startswith("!!!") and line.endswith("!!!") and "KeyboardInterrupt" in line for line in lines
    )
