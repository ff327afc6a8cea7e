"""Signals to the supervisor or the launcher leave no process behind, and no file half written."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from adjointlab.supervisor.processes import descendants
from tests.running import needs_mpi
from tests.supervisor.jobs import ADJOINT, begun, left_in

WAITING = """
import os
import time
import adjointlab as al
from tests.faults.operators import Shift, _subject


class Waits(Shift):
    def forward(self, x):
        open("waiting", "w").close()
        time.sleep(1000)


waits = _subject(Waits)
"""


def waiting_job(folder: Path, *options: str) -> subprocess.Popen[str]:
    """A job in the middle of a case."""
    (folder / "waiting.py").write_text(WAITING)
    process = begun(*options, "--", "adjointlab", "check", "waiting.py:waits", *ADJOINT, cwd=folder)
    _until(lambda: (folder / "waiting").exists() or process.poll() is not None)
    assert process.poll() is None, process.communicate()
    return process


def _until(done: Callable[[], bool]) -> None:
    limit = time.monotonic() + 60
    while not done():
        assert time.monotonic() < limit
        time.sleep(0.02)


def is_tidy(folder: Path) -> bool:
    """No process, and no file but whole ones: here, none."""
    return (
        not left_in(folder)
        and not (folder / ".adjointlab").exists()
        and not (folder / "verdicts.json").exists()
    )


@pytest.mark.parametrize(
    "ranks", [pytest.param("", id="simulated"), pytest.param("3", id="mpi", marks=needs_mpi)]
)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_to_the_supervisor_leaves_nothing_behind(
    tmp_path: Path, ranks: str, number: signal.Signals, code: int
) -> None:
    process = waiting_job(tmp_path, *(["-n", ranks] if ranks else []))
    os.killpg(process.pid, number)
    process.communicate(timeout=60)

    assert process.returncode == code
    assert is_tidy(tmp_path)


@needs_mpi
def test_the_end_of_the_launcher_is_no_failure_of_a_subject(tmp_path: Path) -> None:
    process = waiting_job(tmp_path, "-n", "2")
    launcher = descendants(process.pid)[0]
    os.kill(launcher, signal.SIGTERM)
    _, errors = process.communicate(timeout=60)

    assert process.returncode == 143, errors
    assert "ended from outside" in errors
    assert is_tidy(tmp_path)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs Linux's signal for the death of a parent")
def test_even_the_supervisors_own_death_leaves_no_process(tmp_path: Path) -> None:
    process = waiting_job(tmp_path)
    process.kill()
    process.communicate(timeout=60)

    _until(lambda: not left_in(tmp_path))
