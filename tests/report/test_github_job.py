"""Errors for GitHub Actions stand at lines of user code, and are no more than GitHub shows."""

from __future__ import annotations

import json
import traceback
from pathlib import Path

import pytest

from adjointlab.pytest.github import GithubJob, tell_wrong_call
from adjointlab.pytest.profile import read_profile
from adjointlab.report.github_job import error_command, tell_github
from adjointlab.report.places import place_in
from adjointlab.worlds.interrupts import Terminated
from tests.running import run

pytestmark = pytest.mark.mpi_skip


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file of a checkout, in the folder that commands run in."""
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    (tmp_path / "sub dir").mkdir()
    monkeypatch.chdir(tmp_path / "sub dir")
    Path("code.py").write_text("import json\n\njson.loads('')\n")
    return "sub dir/code.py"


def test_the_place_of_a_traceback_is_its_innermost_line_of_user_code(code: str) -> None:
    try:
        exec(compile("import json\n\njson.loads('')\n", str(Path("code.py").resolve()), "exec"))  # noqa: S102
    except json.JSONDecodeError:
        text = traceback.format_exc()  # here, in code.py, and in the standard library
    assert place_in(text) == {"file": code, "line": "3"}


@pytest.mark.parametrize(
    "text",
    [
        "rank 0 in Recv(source=1, tag=ANY_TAG) at code.py:3, waits for rank 1",
        "it cannot be imported: RuntimeError: at import (code.py:3)",
        "user code ended the process by os._exit(7) at code.py:3. f adjoint was at work (seed 4).",
        "code.py:1: in <module>\n    import json\ncode.py:3: in <module>\n    json.loads('')\nE   ValueError",
    ],
)
def test_the_place_of_a_sentence_is_the_line_that_it_names(code: str, text: str) -> None:
    assert place_in(f"no place in nowhere.py:3 and (nothing.py:1), at {json.__file__}:5", text) == {
        "file": code,
        "line": "3",
    }


def test_code_outside_of_the_checkout_is_no_place(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert place_in("at code.py:3")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(Path.cwd() / "elsewhere"))
    assert place_in("at code.py:3") == {}


@pytest.fixture
def summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    return tmp_path / "summary.md"


def test_more_errors_than_github_shows_are_counted_by_the_last(summary: Path) -> None:
    commands = [error_command(str(number), title="it") for number in range(12)]
    ten: list[str] = []
    tell_github(ten.append, "", [], commands=commands[:10])
    assert ten == commands[:10]
    told: list[str] = []
    tell_github(told.append, "", [("the run was ended",)], commands=commands)
    assert told[1:-1] == commands[:8]
    assert "::4 more failures" in told[-1]


def test_a_message_does_not_end_its_block_of_the_summary(summary: Path) -> None:
    tell_github(print, "", [("```\n# a heading\x1b",)])
    text = summary.read_text()
    assert text.count("```") == 2
    assert "\x1b" not in text


def test_the_summary_says_which_run_it_is_of(summary: Path) -> None:
    tell_github(print, "8 simulated ranks, shard 1/2", [], "counts")
    assert summary.read_text() == "### adjointlab: 8 simulated ranks, shard 1/2\n\ncounts\n\n"


def test_a_summary_that_cannot_be_written_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "/dev/full")
    told: list[str] = []
    tell_github(told.append, "", [], "counts")
    assert told == ["adjointlab: the job's summary cannot be written: [Errno 28] No space left on device"]


def test_a_wrong_call_of_pytest_is_told_if_it_is_about_adjointlab(
    summary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tell_wrong_call("file or directory not found: test_nothing.py")
    assert not summary.exists()
    tell_wrong_call("[tool.adjointlab] has no key 'rnks'")
    assert "no key 'rnks'" in summary.read_text()
    assert capsys.readouterr().err == "::error title=adjointlab::[tool.adjointlab] has no key 'rnks'\n"


def test_a_session_of_pytest_that_is_ended_names_the_signal_and_the_test(
    summary: Path, pytestconfig: pytest.Config
) -> None:
    job = GithubJob(pytestconfig, "simulated", is_leader=True)
    job._begun -= 100
    job.pytest_runtest_logstart("test_all.py::test_adjoint")
    try:
        interrupt = Terminated(15)
        interrupt.add_note("seed 4")
        raise interrupt
    except KeyboardInterrupt:
        job.pytest_keyboard_interrupt(pytest.ExceptionInfo.from_current())
    told: list[str] = []
    job._tell(told.append)
    assert "ended by SIGTERM" in told[0]
    assert "test_all.py::test_adjoint was at work (seed 4)" in told[0]
    assert "was at work (seed 4)" in summary.read_text()
    assert " in 100." in summary.read_text()


def test_a_file_that_cannot_be_collected_is_told_once_and_by_its_last_words(
    code: str, pytestconfig: pytest.Config
) -> None:
    Path("code.py").write_text("import adjointlab\n")
    text = 'importing.py:1: in load\n    look()\nE     File "code.py", line 1\nE   SyntaxError: no'
    job = GithubJob(pytestconfig, "simulated", is_leader=True)
    for _ in range(2):
        job.pytest_collectreport(pytest.CollectReport(str(Path("code.py").resolve()), "failed", text, []))
    ((message, *evidence),) = job._problems
    assert "SyntaxError: no" in message
    assert "look" not in message
    assert place_in(message, *evidence) == {"file": code, "line": "1"}


TESTS = """
import os
import adjointlab as al
from tests.faults.operators import Shift, _subject

class Leaving(Shift):
    def adjoint(self, y):
        os._exit(0)

TestLeaving = al.coherence_tests(_subject(Leaving), checks=["adjoint"])
"""


def test_a_session_of_pytest_that_user_code_ends_names_the_call_the_test_and_its_replay(
    tmp_path: Path,
) -> None:
    (tmp_path / "test_all.py").write_text(TESTS)
    github = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md")}
    ended = run("pytest", "-p", "no:cacheprovider", "--adjointlab-seed=3", cwd=tmp_path, **github)
    assert ended.returncode == 3
    (annotation,) = (line for line in ended.stderr.splitlines() if line.startswith("::error "))
    assert annotation.startswith("::error file=test_all.py,line=8,")
    for told in (annotation, (tmp_path / "summary.md").read_text()):
        assert (
            "by os._exit(0) at test_all.py:8. test_all.py::TestLeaving::test_adjoint was at work (seed "
            in told
        )
        assert "To replay its case: adjointlab replay .adjointlab/" in told
    assert "adjointlab: test_all.py::TestLeaving::test_adjoint was at work" in ended.stderr


def test_two_results_of_pytest_in_one_file_are_refused(
    pytestconfig: pytest.Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file, refused in ((tmp_path / "v", True), (Path("/dev/null"), False)):
        monkeypatch.setattr(pytestconfig.option, "adjointlab_html", str(file))
        monkeypatch.setattr(pytestconfig.option, "xmlpath", str(file))
        if refused:
            with pytest.raises(pytest.UsageError, match="--adjointlab-html and --junitxml both name"):
                read_profile(pytestconfig, 1)
        else:
            assert read_profile(pytestconfig, 1).html == file
