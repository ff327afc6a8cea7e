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
        ("cases = true", "cases: true is not a whole number of at least 1"),
        ('xfails = ["a"]', "xfails: ['a'] is not a path"),
        ('xfails = ""', "xfails: '' is not a path"),
        ('folder = ""', "folder: '' is not a path"),
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
    github = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md")}
    told = run("pytest", cwd=tmp_path, **github).stderr
    assert problem in told.split("::error title=adjointlab::")[1]
    assert problem in (tmp_path / "summary.md").read_text()


def test_a_file_may_begin_with_a_byte_order_mark(here: Callable[..., Ended], tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_bytes(b"\xef\xbb\xbf" + TABLE.encode())
    assert "7 cases" in here("check", f"{SAMPLES}:right", "--check", "adjoint").stdout


@pytest.mark.parametrize("content", [b"[tool.adjointlab\ncases = 7\n", b"[tool.adjointlab]\n# \xff\n"])
def test_a_file_that_cannot_be_read_is_refused_and_not_passed_over(
    here: Callable[..., Ended], tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "pyproject.toml").write_bytes(content)
    refused = here("check", f"{SAMPLES}:right")
    assert refused.returncode == 2
    assert f"{tmp_path / 'pyproject.toml'} is not TOML in UTF-8" in refused.stderr


def test_a_list_of_known_failures_that_is_not_there_is_told_with_the_file_that_names_it(
    here: Callable[..., Ended], tmp_path: Path
) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.adjointlab]\nxfails = "known.txt"\n')
    refused = here("check", f"{SAMPLES}:right")
    assert refused.returncode == 2
    assert "pyproject.toml: [tool.adjointlab] xfails: " in refused.stderr
    given = here("check", f"{SAMPLES}:right", "--xfails", "given.txt")
    assert given.stderr == "adjointlab: --xfails: given.txt: No such file or directory\n"


def test_ranks_of_the_file_do_not_keep_a_stored_case_from_being_replayed(
    here: Callable[..., Ended], tmp_path: Path
) -> None:
    here("check", f"{SAMPLES}:wrong", "--check", "adjoint", "--cases", "20", "--seed", "1")
    (stored,) = (tmp_path / ".adjointlab").glob("*.json")
    (tmp_path / "pyproject.toml").write_text("[tool.adjointlab]\nranks = 1\n")
    replay = ("replay", str(stored), "--subject", f"{SAMPLES}:wrong")
    assert here(*replay).returncode == 1
    assert here(*replay, "--ranks", "1").returncode == 2


@pytest.mark.starts_mpiexec
def test_ranks_of_the_file_may_be_more_than_the_launcher_has_started(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.adjointlab]\nranks = 6\n")
    check = ("check", f"{SAMPLES}:right", "--check", "adjoint", "--cases", "2")
    result = run("adjointlab", *check, ranks=2, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "2 ranks under MPI" in result.stdout


@pytest.mark.starts_mpiexec
@pytest.mark.parametrize("table", ["[tool.adjointlab]\n", "[tool.pytest.ini_options]\nadjointlab_"])
def test_ranks_of_pytest_wait_for_one_another_as_long_as_the_file_says(tmp_path: Path, table: str) -> None:
    (tmp_path / "pyproject.toml").write_text(f"{table}patience = 1\n")
    late = "if launched_rank():\n        time.sleep(60)\n"
    (tmp_path / "test_it.py").write_text(
        f"import time\nfrom adjointlab.worlds.launch import launched_rank\ndef test_it():\n    {late}"
    )
    result = run("pytest", "-q", "-p", "no:cacheprovider", ranks=2, cwd=tmp_path)
    assert result.returncode != 0
    assert "not all ranks have ended" in result.stdout + result.stderr


def test_pytest_takes_its_defaults_from_it_too(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(TABLE + "[tool.pytest.ini_options]\n")
    (tmp_path / "test_it.py").write_text(SAMPLES.read_text() + "\nTestIt = al.coherence_tests(wrong)\n")
    result = run("pytest", "-k", "adjoint", "-p", "no:cacheprovider", cwd=tmp_path)
    assert "WrongShift: adjoint is not the transpose of forward" in result.stdout
    assert list((tmp_path / "kept").glob("*.json"))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('folder = "file"', "folder: {0}/file is not a folder; failures are stored as files in one"),
        ('html = "none/a.html"', "html: the folder of {0}/none/a.html does not exist"),
    ],
)
def test_a_path_of_the_file_where_nothing_can_be_written_is_refused_by_its_key(
    here: Callable[..., Ended], tmp_path: Path, line: str, problem: str
) -> None:
    (tmp_path / "pyproject.toml").write_text(f"[tool.adjointlab]\n{line}\n")
    (tmp_path / "file").touch()
    message = f"adjointlab: pyproject.toml: [tool.adjointlab] {problem.format(tmp_path)}\n"
    name = line.partition(" ")[0]
    commands = [("check", f"{SAMPLES}:right"), *[("exhaust", "Broadcast")] * (name == "folder")]
    for command in commands:
        refused = here(*command)
        assert (refused.returncode, refused.stderr) == (2, message)
    given = here(*commands[0], f"--{name}", str(tmp_path / "file" / "a"))
    assert given.stderr.startswith(f"adjointlab: --{name}: ")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('folder = "file"', "folder: {0}/file is a file; name a folder"),
        ('html = "none/a.html"', "html: the folder of {0}/none/a.html does not exist"),
    ],
)
def test_pytest_refuses_such_a_path_by_its_key_too(tmp_path: Path, line: str, problem: str) -> None:
    (tmp_path / "pyproject.toml").write_text(f"[tool.adjointlab]\n{line}\n[tool.pytest.ini_options]\n")
    (tmp_path / "file").touch()
    refused = run("pytest", "-p", "no:cacheprovider", cwd=tmp_path)
    assert refused.returncode == 4
    assert f"pyproject.toml: [tool.adjointlab] {problem.format(tmp_path)}" in refused.stderr
    name = line.partition(" ")[0]
    given = run("pytest", f"--adjointlab-{name}", "file/a", cwd=tmp_path)
    assert f"--adjointlab-{name}: " in given.stderr
