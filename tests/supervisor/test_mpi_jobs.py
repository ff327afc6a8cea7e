"""Jobs under mpiexec."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.supervisor.jobs import ADJOINT, FAULTS, kinds, left_in, stored, supervised


@pytest.mark.starts_mpiexec
def test_a_rank_that_dies_ends_its_job_and_no_other(tmp_path: Path) -> None:
    subjects = [f"{FAULTS}:{name}" for name in ("leaves", "right")]
    command = ("adjointlab", "check", *subjects, *ADJOINT)
    ended = supervised("-n", "3", "--shrinking", "0", "--", *command, cwd=tmp_path)

    assert ended.returncode == 3, ended.stderr
    assert kinds(tmp_path) == {"Leaves": "a rank left by os._exit(0)", "Shift": ""}
    assert stored(tmp_path) == ["Leaves.json", "Leaves.py"]
    assert left_in(tmp_path) == []


@pytest.mark.starts_mpiexec
def test_a_launcher_that_is_none_is_named(tmp_path: Path) -> None:
    nowhere = supervised("-n", "2", "--launcher", "nowhere -x", "--", "python", "-V", cwd=tmp_path)
    assert nowhere.returncode == 2
    assert "there is no program nowhere" in nowhere.stderr
    without = supervised("--launcher", "mpiexec", "--", "python", "-V", cwd=tmp_path)
    assert without.returncode == 2
    assert "say how many ranks" in without.stderr


GOES_ON = """
import time
from adjointlab.worlds.launch import launched_rank

if launched_rank() == 0:
    time.sleep(1.5)
    open("went-on", "w").close()
"""


@pytest.mark.starts_mpiexec
def test_a_rank_that_goes_on_when_another_has_ended_is_not_ended(tmp_path: Path) -> None:
    (tmp_path / "goes_on.py").write_text(GOES_ON)
    ended = supervised("--patience", "0.5", "-n", "2", "--", "python", "goes_on.py", cwd=tmp_path)

    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "went-on").exists()


HANGS_AT_ITS_END = """
import ctypes
from adjointlab.worlds.launch import launched_rank
from tests.faults.operators import right

if launched_rank():
    c = ctypes.CDLL(None)
    c.__cxa_atexit(c.pause, None, None)
"""


@pytest.mark.starts_mpiexec
def test_a_rank_that_hangs_below_python_when_the_others_have_ended_does_not_hold_the_job(
    tmp_path: Path,
) -> None:
    (tmp_path / "hanging.py").write_text(HANGS_AT_ITS_END)
    command = ("--patience", "2", "-n", "2", "--", "adjointlab", "check", "hanging.py:right", *ADJOINT)
    ended = supervised(*command, cwd=tmp_path)

    assert kinds(tmp_path) == {"Shift": ""}
    assert ended.returncode == 0, ended.stderr
    assert left_in(tmp_path) == []
