"""A disk that fills while a supervised job is at work: what cannot be recorded changes no verdict and no exit code."""

from __future__ import annotations

import errno
import shutil
import subprocess
from pathlib import Path

import pytest

from adjointlab.supervisor.pytest_results import SessionResults, finished_tests
from tests.running import run_python

FILLING = """
import os
import signal

import adjointlab as al
from tests.samples import RingShift, WrongShift, equal_blocks


def fill():
    try:
        with open("filler", "ab", 0) as file:
            while True:
                file.write(bytes(512))
    except OSError:
        pass


class Right(RingShift):
    def forward(self, x):
        fill()
        return super().forward(x)


class Wrong(WrongShift):
    def forward(self, x):
        fill()
        return super().forward(x)


class Dies(RingShift):
    def forward(self, x):
        fill()
        os.kill(os.getpid(), signal.SIGKILL)


@al.subject(Right)
def right(draw, ranks):
    return equal_blocks(draw, ranks)


@al.subject(Wrong)
def wrong(draw, ranks):
    return equal_blocks(draw, ranks)


@al.subject(Dies)
def dies(draw, ranks):
    return equal_blocks(draw, ranks)
"""

TESTS = """
import adjointlab as al
import filling

TestWrong = al.coherence_tests(filling.wrong)
"""

MOUNTED = """
import os, sys

mount = 'mount -t tmpfs -o size=256k tmpfs small && cd small && cp ../*.py . && exec "$@"'
os.execvp("unshare", ["unshare", "-rm", "sh", "-c", mount, "sh", sys.executable, "-m", *sys.argv[1:]])
"""
"""It runs a module of Python in a folder that is a file system of 256 KiB of its own, with the Python files of the one above."""


def on_small_disk(cwd: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """The end of ``python -m`` with `command` in such a folder, which is skipped where no file system can be made."""
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare")
    (cwd / "small").mkdir()
    (cwd / "filling.py").write_text(FILLING)
    (cwd / "test_filling.py").write_text(TESTS)
    if run_python("-c", MOUNTED, "this", cwd=cwd).returncode:
        pytest.skip("no file system may be mounted")
    ended = run_python("-c", MOUNTED, "adjointlab", "run", "--", *command, cwd=cwd)
    assert "Traceback" not in ended.stderr
    assert "INTERNALERROR" not in ended.stdout
    return ended


@pytest.mark.parametrize(
    ("subject", "code", "verdict"), [("right", 0, "coherent"), ("wrong", 1, "incoherent")]
)
def test_a_check_ends_with_its_own_exit_code(tmp_path: Path, subject: str, code: int, verdict: str) -> None:
    ended = on_small_disk(
        tmp_path, "adjointlab", "check", f"filling.py:{subject}", "--check", "adjoint", "--cases", "5"
    )
    assert (ended.returncode, ended.stderr) == (code, "")
    assert f"adjoint  {verdict} " in ended.stdout


def test_a_session_of_pytest_goes_on_to_its_end(tmp_path: Path) -> None:
    ended = on_small_disk(tmp_path, "pytest", "-p", "no:cacheprovider", "--adjointlab-cases=5")
    assert (ended.returncode, ended.stderr) == (1, "")
    assert "could not be stored: OSError" in ended.stdout
    assert "passed" in ended.stdout.splitlines()[-1]


def test_a_death_that_cannot_be_recorded_is_reported_and_the_job_not_started_again(tmp_path: Path) -> None:
    ended = on_small_disk(tmp_path, "adjointlab", "check", "filling.py:dies", "--check", "adjoint")
    assert ended.returncode == 3
    assert "filling:dies adjoint: the process of the ranks was killed (SIGKILL" in ended.stderr
    assert "cannot be written to: No space left on device; so the next job" in ended.stderr
    assert ended.stderr.endswith("adjointlab run: 1 job; exit code 3\n")


def test_tests_whose_list_cannot_be_written_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("adjointlab.supervisor.pytest_results.write_atomically", no_space)
    SessionResults(tmp_path, 1).record_finished()
    assert finished_tests(tmp_path) == set()
