"""``[tool.adjointlab]`` sets the defaults of both front ends, and a key or value that is not legal is refused by both."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Ended
from tests.running import SAMPLES, run

pytestmark = pytest.mark.mpi_skip

TABLE = '[tool.adjointlab]\ncases = 7\nranks = 3\nseed = 5\nfolder = "kept"\n'


def test_the_command_line_takes_its_defaults_from_the_nearest_file(
    here: Callable[..., Ended], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyproject.toml").write_text(TABLE)
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    (tmp_path / "a" / "pyproject.toml").write_text("[project]\nname = 'without the table'\n")
    result = here("check", f"{SAMPLES}:right", "--check", "adjoint")
    assert "7 cases" in result.stdout
    assert "3 simulated ranks" in result.stdout
    assert (
        here("check", f"{SAMPLES}:right", "--check", "adjoint", "--cases", "4").stdout.count("4 cases") == 1
    )
    here("check", f"{SAMPLES}:raising", "--check", "adjoint")
    assert list((tmp_path / "kept").glob("*.json"))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("casses = 7", "has no key 'casses'; did you mean cases?"),
        ('cases = "many"', "cases: 'many' is not a whole number of at least 1"),
        ("cases = 0", "cases: 0 is not a whole number of at least 1"),
        ('world = "moon"', "world: 'moon' is not one of auto, simulated, mpi, torch"),
    ],
)
def test_what_is_not_legal_is_refused_by_both_front_ends(
    here: Callable[..., Ended], tmp_path: Path, line: str, problem: str
) -> None:
    (tmp_path / "pyproject.toml").write_text(f"[tool.adjointlab]\n{line}\n")
    refused = here("check", f"{SAMPLES}:right")
    assert refused.returncode == 2
    assert problem in refused.stderr
    assert str(tmp_path / "pyproject.toml") in refused.stderr
    assert problem in run("pytest", cwd=tmp_path).stderr


def test_pytest_takes_its_defaults_from_it_too(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(TABLE + "[tool.pytest.ini_options]\n")
    (tmp_path / "test_it.py").write_text(SAMPLES.read_text() + "\nTestIt = al.coherence_tests(wrong)\n")
    result = run("pytest", "-k", "adjoint", "-p", "no:cacheprovider", cwd=tmp_path)
    assert "WrongShift: adjoint is not the transpose of forward" in result.stdout
    assert list((tmp_path / "kept").glob("*.json"))
