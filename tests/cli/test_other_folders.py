"""User code that leaves or removes the folder in which a command was started costs no verdict and no reproducer."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from adjointlab.cli.main import exit_code_of, main
from adjointlab.exit_codes import ExitCode
from adjointlab.store import json_lines
from adjointlab.store.job_log import JobLog
from adjointlab.supervisor.job import Job
from adjointlab.supervisor.job_output import Output

pytestmark = pytest.mark.mpi_skip

SUBJECT = """
import os, shutil, tempfile
import adjointlab as al
from tests.samples import WrongShift, equal_blocks

class Leaving(WrongShift):
    def adjoint(self, y):
        {}
        return super().adjoint(y)

@al.subject(Leaving)
def subject(draw, ranks):
    return equal_blocks(draw, ranks)
"""
ACTIONS = {
    "another": "os.chdir('/')",
    "one that is gone": "gone = tempfile.mkdtemp(); os.chdir(gone); os.rmdir(gone)",
    "no results": "shutil.rmtree('.adjointlab', ignore_errors=True)",
}


@pytest.mark.parametrize("words", [["list"], ["check", "--json", "v.json"], ["replay", "x.json"]])
def test_a_command_that_is_started_in_a_folder_that_is_gone_is_a_wrong_call(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    # As in a process that has just begun: Hypothesis asks for the current folder when it is imported.
    monkeypatch.setitem(sys.modules, "adjointlab.report.junit", None)
    with pytest.raises(SystemExit) as end:
        main(words)
    os.chdir(tmp_path)
    assert end.value.code == ExitCode.USAGE
    assert capsys.readouterr().err.startswith("adjointlab: the current folder has been removed")


def test_an_error_that_comes_before_the_engine_is_imported_is_not_taken_for_an_incoherence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing() -> int:
        raise ImportError("of Hypothesis")

    for name in ("adjointlab.core.declaration", "adjointlab.engine.subject"):
        monkeypatch.setitem(sys.modules, name, None)
    assert exit_code_of(failing) == ExitCode.UNJUDGED
    assert "ImportError: of Hypothesis" in capsys.readouterr().err


@pytest.mark.parametrize("action", ACTIONS)
def test_a_failure_is_stored_and_named_as_seen_from_where_the_command_was_started(
    action: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("subject.py").write_text(SUBJECT.format(ACTIONS[action]))
    with pytest.raises(SystemExit) as end:
        main(
            [
                "check",
                "subject.py",
                "--check",
                "adjoint",
                "--cases",
                "5",
                "--ranks",
                "2",
                "--json",
                "out.json",
            ]
        )

    assert end.value.code == ExitCode.INCOHERENT
    os.chdir(tmp_path)
    (report,) = json.loads(Path("out.json").read_text())["reports"]
    assert Path(report["reproducer"]).parts[0] == ".adjointlab"
    assert Path(report["reproducer"]).is_file()


def test_a_supervisor_goes_on_without_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    log = JobLog(folder)
    log.begin(1, 1.0)
    job = Job(["true"], 1, None, folder, Output())
    assert job._state_of_files()
    shutil.rmtree(folder)
    assert job._state_of_files() == {}
    json_lines.append(folder / "lines", 1)
    assert json_lines.lines(folder / "lines", int) == [1]
