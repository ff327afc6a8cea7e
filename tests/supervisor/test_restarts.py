"""A job is started again where that can help, and only there."""

from __future__ import annotations

from pathlib import Path

from tests.supervisor.jobs import ADJOINT, supervised


def test_a_job_that_does_not_die_ends_as_it_would_alone(tmp_path: Path) -> None:
    samples = Path(__file__).parents[1] / "samples.py"
    for subject, code in (("right", 0), ("wrong", 1), ("nothing", 2)):
        ended = supervised("--", "adjointlab", "check", f"{samples}:{subject}", *ADJOINT, cwd=tmp_path)
        assert ended.returncode == code, ended.stderr


def test_a_job_that_dies_at_nothing_in_particular_is_not_started_again(tmp_path: Path) -> None:
    (tmp_path / "dies.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    ended = supervised("--", "python", "dies.py", cwd=tmp_path)

    assert ended.returncode == 3
    assert "was killed (SIGKILL" in ended.stderr
    assert "1 job; exit code 3" in ended.stderr


def test_a_job_that_asks_to_be_started_again_is_but_not_for_ever(tmp_path: Path) -> None:
    (tmp_path / "asks.py").write_text("import sys\nopen('asked', 'a').write('x')\nsys.exit(75)\n")
    ended = supervised("--", "python", "asks.py", cwd=tmp_path)

    assert ended.returncode == 3
    assert len((tmp_path / "asked").read_text()) == 4
    assert "without making progress: giving up" in ended.stderr
