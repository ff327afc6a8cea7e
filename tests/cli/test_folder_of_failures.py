"""The folder of failures is refused before any check runs where something else has its name, or no file can be made there."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from adjointlab.cli.result_files import folder_of_failures
from adjointlab.cli.startup import UsageError
from adjointlab.options import FOLDER
from adjointlab.replaying import say_not_replayed
from adjointlab.worlds.simulated.world import SimulatedWorld
from tests.running import run, run_python

UNWRITABLE = Path("/proc")
"""No file can be made there, not even by the superuser."""


def test_a_file_in_the_place_of_the_folder_is_a_usage_error(tmp_path: Path) -> None:
    file = tmp_path / "failures"
    file.write_text("")
    with pytest.raises(UsageError, match=r"--folder: .*failures is not a folder"):
        folder_of_failures(file)


def test_a_link_that_leads_nowhere_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(UsageError, match=r"--folder: .*link is not a folder"):
        folder_of_failures(tmp_path / "link")


def test_a_folder_need_not_be_there(tmp_path: Path) -> None:
    assert folder_of_failures(tmp_path / "new") == tmp_path / "new"
    assert not list(tmp_path.iterdir())


@pytest.mark.mpi_skip
@pytest.mark.skipif(not UNWRITABLE.is_dir(), reason="there is no /proc")
def test_a_folder_that_no_file_can_be_made_in_is_a_usage_error_if_it_was_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in (UNWRITABLE, UNWRITABLE / "new" / "folder"):
        with pytest.raises(UsageError, match=r"--folder: no file can be made in /proc"):
            folder_of_failures(folder)
    monkeypatch.chdir(UNWRITABLE)
    assert folder_of_failures(FOLDER.default) == UNWRITABLE / FOLDER.default


@pytest.mark.mpi_skip
@pytest.mark.skipif(not UNWRITABLE.is_dir(), reason="there is no /proc")
def test_a_supervisor_refuses_a_folder_that_it_cannot_keep_its_files_in(tmp_path: Path) -> None:
    ended = run("adjointlab", "run", "--folder", UNWRITABLE / "new", "--", sys.executable, cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("adjointlab: --folder: no file can be made in /proc")


@pytest.mark.mpi_skip
def test_a_supervisor_refuses_a_folder_in_which_files_can_be_made_and_not_written(tmp_path: Path) -> None:
    # As on a full disk.
    limited = "import resource, runpy; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); runpy.run_module('adjointlab', None, '__main__')"
    ended = run_python("-c", limited, "run", "--", sys.executable, cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == f"adjointlab: --folder: no file can be made in {tmp_path}: File too large\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.mpi_skip
def test_a_folder_that_may_not_be_read_is_not_passed_over_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    say_not_replayed(SimulatedWorld(1), tmp_path, [])
    say_not_replayed(SimulatedWorld(1), tmp_path / "new", [])
    assert capfd.readouterr().err == ""
    # The superuser may read everything.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    say_not_replayed(SimulatedWorld(1), tmp_path, [])
    assert f"warning: no stored failure is replayed: {tmp_path} may not be read" in capfd.readouterr().err


SUBJECT = """
import adjointlab as al
def twice(comm, x): return 2 * x
def thrice(comm, y): return 3 * y
@al.subject.pair(twice, thrice)
def cases(draw, ranks):
    space = al.Space(al.Layout((ranks,), (ranks,)))
    return dict(domain=space, codomain=space)
TestCases = al.coherence_tests(cases)
"""


@pytest.mark.mpi_skip
@pytest.mark.parametrize(
    "command", [["adjointlab", "check", "--check", "adjoint"], ["pytest", "-k", "adjoint"]], ids=str
)
def test_failures_of_a_file_that_was_renamed_are_not_passed_over_in_silence(
    tmp_path: Path, command: list[str]
) -> None:
    (tmp_path / "test_old.py").write_text(SUBJECT)
    before = run(*command, "test_old.py", cwd=tmp_path)
    assert before.returncode == 1
    (stored,) = (tmp_path / ".adjointlab").glob("*.json")
    (tmp_path / "test_other.py").write_text(
        SUBJECT.replace("def cases", "def others").replace("(cases)", "(others)")
    )
    other = run(*command, "test_other.py", cwd=tmp_path)
    (tmp_path / "test_old.py").rename(tmp_path / "test_new.py")
    after = run(*command, "test_new.py", cwd=tmp_path)
    told = f"not replayed: {stored}: it is of twice at test_old:cases, and this run finds no such module"
    assert told in after.stderr + after.stdout
    for each in (before, other):
        assert "not replayed" not in each.stderr + each.stdout


@pytest.mark.mpi_skip
def test_a_failure_in_a_package_without_an_init_file_is_looked_for_without_importing_it(
    tmp_path: Path,
) -> None:
    package = tmp_path / "outer" / "inner"
    package.mkdir(parents=True)
    for file in (package / "subjects.py", tmp_path / "others.py"):
        file.write_text(SUBJECT)
    command = ("adjointlab", "check", "--check", "adjoint")
    assert run(*command, "outer.inner.subjects", cwd=tmp_path).returncode == 1
    there = run(*command, "others.py", cwd=tmp_path)
    assert (there.returncode, there.stderr) == (1, "")
    (package / "subjects.py").unlink()
    gone = run(*command, "others.py", cwd=tmp_path)
    assert "it is of twice at outer.inner.subjects:cases, and this run finds no such module" in gone.stderr


@pytest.mark.mpi_skip
@pytest.mark.parametrize(
    ("old", "new", "gone"),
    [
        ("cases", "renamed", "and that module has no such variable"),
        ("twice", "doubled", "where doubled stands now"),
    ],
)
def test_failures_of_a_subject_that_was_renamed_are_not_passed_over_in_silence(
    tmp_path: Path, old: str, new: str, gone: str
) -> None:
    """By its variable, or by the operator that it is called after."""
    file = tmp_path / "subjects.py"
    file.write_text(SUBJECT)
    command = ("adjointlab", "check", "subjects.py", "--check", "adjoint")
    run(*command, cwd=tmp_path)
    (stored,) = (tmp_path / ".adjointlab").glob("*.json")
    again = run(*command, cwd=tmp_path)
    assert "not replayed" not in again.stderr
    file.write_text(SUBJECT.replace(old, new))
    renamed = run(*command, cwd=tmp_path)
    assert f"not replayed: {stored}: it is of twice at subjects:cases, {gone}" in renamed.stderr
    replayed = run("adjointlab", "replay", stored, "--subject", "subjects.py", cwd=tmp_path)
    assert replayed.returncode == 1, replayed.stderr


@pytest.mark.mpi_skip
def test_a_failure_of_a_subject_that_a_loop_has_made_is_not_taken_for_that_of_one_renamed(
    tmp_path: Path,
) -> None:
    loop = SUBJECT.replace("@al", "def once(comm, x): return 1 * x\nfor first in (once, twice):\n    @al")
    loop = loop.replace("(twice, ", "(first, ").replace("\ndef cases", "\n    def cases")
    loop = loop.replace("    space =", "        space =").replace("    return dict", "        return dict")
    (tmp_path / "loop.py").write_text(loop.replace("TestCases =", "    globals()['Test' + first.__name__] ="))
    command = ("adjointlab", "check", "--check", "adjoint")
    assert run(*command, "loop.py:Testonce", cwd=tmp_path).returncode == 1
    last = run(*command, "loop.py:cases", cwd=tmp_path)
    assert (last.returncode, last.stderr) == (1, "")
