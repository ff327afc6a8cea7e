"""Signals to the supervisor or the launcher leave no process behind, and no file half written."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from adjointlab.store import running_case
from adjointlab.supervisor import processes
from adjointlab.supervisor.processes import descendants, kill_descendants
from tests import running
from tests.running import SAMPLES
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


def stored_in(folder: Path) -> list[str]:
    """The headlines of what is stored; every file is whole, and no process is left."""
    assert not left_in(folder)
    return [json.loads(path.read_text())["headline"] for path in (folder / ".adjointlab").glob("*")]


@pytest.mark.parametrize(
    "ranks", [pytest.param("", id="simulated"), pytest.param("3", id="mpi", marks=pytest.mark.starts_mpiexec)]
)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_to_the_supervisor_leaves_nothing_behind(
    tmp_path: Path, ranks: str, number: signal.Signals, code: int
) -> None:
    process = waiting_job(tmp_path, *(["-n", ranks] if ranks else []))
    os.killpg(process.pid, number)
    process.communicate(timeout=60)

    assert process.returncode == code
    # Ctrl-C says that nothing more is wanted.
    kept = [] if number == signal.SIGINT else [f"{number.name} ended the process while this case ran"]
    assert stored_in(tmp_path) == kept
    verdicts = json.loads((tmp_path / "verdicts.json").read_text())
    assert (verdicts["complete"], verdicts["exit_code"]) == (False, code)


LOADING = """
import time
from pathlib import Path

Path("waiting").touch()
time.sleep(1000)
"""


def test_a_job_that_is_ended_while_it_is_loaded_names_the_signal_that_its_supervisor_was_sent(
    tmp_path: Path,
) -> None:
    (tmp_path / "loading.py").write_text(LOADING)
    process = begun("--", "adjointlab", "check", "loading.py", *ADJOINT, cwd=tmp_path)
    _until(lambda: (tmp_path / "waiting").exists() or process.poll() is not None)
    process.terminate()
    _, errors = process.communicate(timeout=60)

    assert process.returncode == 143
    assert "while the subjects were loaded, the run was ended by SIGTERM, and is not complete" in errors
    verdicts = json.loads((tmp_path / "verdicts.json").read_text())
    assert (verdicts["complete"], verdicts["exit_code"]) == (False, 143)


SWALLOWING = """
import time
from pathlib import Path
from tests.faults.operators import Shift, _subject


class Swallows(Shift):
    def forward(self, x):
        while self.rank == 1:
            try:
                Path("waiting").touch()
                time.sleep(1000)
            except BaseException:
                pass
        return super().forward(x)


swallows = _subject(Swallows)
"""


@pytest.mark.starts_mpiexec
@pytest.mark.skipif(running.IS_OPEN_MPI, reason="Open MPI's launcher gives the ranks no time")
def test_what_is_known_is_not_lost_to_code_that_heeds_no_signal(tmp_path: Path) -> None:
    (tmp_path / "swallowing.py").write_text(SWALLOWING)
    subjects = (f"{SAMPLES}:wrong", "swallowing.py:swallows")
    process = running.begun("-m", "adjointlab", "check", *subjects, *ADJOINT, ranks=2, cwd=tmp_path)
    _until(lambda: (tmp_path / "waiting").exists() or process.poll() is not None)
    process.terminate()
    out, errors = process.communicate(timeout=60)

    assert process.returncode == 143, errors
    assert "WrongShift: adjoint is not" in out
    assert "1 of 2 are done" in out
    verdicts = json.loads((tmp_path / "verdicts.json").read_text())
    assert (verdicts["complete"], verdicts["exit_code"], len(verdicts["reports"])) == (False, 143, 1)
    kept = running_case.read(tmp_path / ".adjointlab")
    assert kept is not None
    assert kept.case is not None
    assert kept.case.subject == "Swallows"
    assert not left_in(tmp_path)


@pytest.mark.starts_mpiexec
def test_the_end_of_the_launcher_is_no_failure_of_a_subject(tmp_path: Path) -> None:
    process = waiting_job(tmp_path, "-n", "2")
    launcher = descendants(process.pid)[0]
    os.kill(launcher, signal.SIGTERM)
    _, errors = process.communicate(timeout=60)

    assert process.returncode == 143, errors
    assert "ended from outside" in errors
    assert stored_in(tmp_path) == ["SIGTERM ended the process while this case ran"]


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs Linux's signal for the death of a parent")
def test_even_the_supervisors_own_death_leaves_no_process(tmp_path: Path) -> None:
    process = waiting_job(tmp_path)
    process.kill()
    process.communicate(timeout=60)

    _until(lambda: not left_in(tmp_path))


@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_descendants_are_killed_however_the_processes_are_listed(
    platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not (shutil.which("ps") if platform == "darwin" else Path("/proc/self/stat").exists()):
        pytest.skip(f"processes are not listed here as they are on {platform}")
    monkeypatch.setattr(processes, "sys", SimpleNamespace(platform=platform))
    spared = frozenset(descendants())
    with subprocess.Popen(["sleep", "10"]) as child:
        assert child.pid in descendants()
        assert kill_descendants(spared, within=5.0) == 0
    assert child.pid not in descendants()


def test_descendants_that_may_not_be_killed_are_counted_and_the_others_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def kill(process: int, number: int) -> None:
        if process == refused.pid:
            raise PermissionError
        os.kill(process, number)

    monkeypatch.setattr(processes, "os", SimpleNamespace(**vars(os) | {"kill": kill}))
    spared = frozenset(descendants())
    with subprocess.Popen(["sleep", "10"]) as refused, subprocess.Popen(["sleep", "10"]) as other:
        assert kill_descendants(spared, within=0.1) == 1
        assert refused.pid in descendants()
        assert other.pid not in descendants()
        refused.kill()
