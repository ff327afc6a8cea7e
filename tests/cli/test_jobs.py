"""``adjointlab check --jobs``: the report is that of one process, and what ends a process ends no more than the check there."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from adjointlab.check_result import CheckResult
from adjointlab.cli.check_run import processes_for
from adjointlab.cli.main import main
from adjointlab.cli.parallel_messages import Outcome
from tests.running import ROOT, begun, run, run_python

# One process starts the others.
pytestmark = pytest.mark.mpi_skip

SUBJECTS = Path(__file__).with_name("jobs_samples.py")


def named(*names: str) -> list[str]:
    return [f"{SUBJECTS}:{name}" for name in names]


def comparable(text: str) -> str:
    """Without times, and addresses of objects."""
    return re.sub(r"0x[0-9a-f]+", "0x", re.sub(r"[\d.]+ s\b", "N s", text))


def results(folder: Path) -> Any:
    data = json.loads(comparable((folder / "verdicts.json").read_text()))
    for report in data["reports"]:
        report.pop("seconds", None)
    return data


def test_two_processes_report_what_one_reports(tmp_path: Path) -> None:
    found = []
    for jobs in ("1", "2"):
        folder = tmp_path / jobs
        folder.mkdir()
        (folder / "known.txt").write_text("WrongShift matrix  # known\nRingShift adjoint  # fixed\n")
        ended = run(
            *("adjointlab", "check", *named("printing", "wrong", "unsendable", "right"), "--jobs", jobs),
            *("--check", "adjoint", "--check", "matrix", "--cases", "5", "--seed", "3", "--ranks", "3"),
            *("--json", "verdicts.json", "--xfails", "known.txt"),
            cwd=folder,
        )
        stored = sorted(path.name for path in (folder / ".adjointlab").iterdir())
        printed = comparable(ended.stdout)
        # How often something is printed depends on the seconds that there are to make a failure smaller.
        lines = [line for line in printed.splitlines() if not line.startswith("printed ")]
        order = list(dict.fromkeys(line for line in printed.splitlines() if line.startswith("printed ")))
        found.append(
            (ended.returncode, lines, order, set(ended.stderr.splitlines()), stored, results(folder))
        )
    one, two = found
    assert two == one
    assert one[0] == 1
    assert one[2] == ["printed by Printing", "printed at the end"]
    assert {line for line in one[3] if "unsendable" not in line} == {"written to standard error"}
    assert {report["verdict"] for report in one[5]["reports"]} >= {"coherent", "incoherent"}


def test_a_check_whose_process_dies_is_not_judged_and_the_others_are(tmp_path: Path) -> None:
    ended = run(
        *("adjointlab", "check", *named("segfaulting", "exiting", "wrong", "right"), "--check", "adjoint"),
        *("--cases", "5", "--seed", "3", "--jobs", "2", "--json", "verdicts.json"),
        cwd=tmp_path,
    )
    assert ended.returncode == 1, ended.stderr
    reports = {report["subject"]: report for report in results(tmp_path)["reports"]}
    assert list(reports) == ["Segfaulting", "Exiting", "WrongShift", "RingShift"]
    assert [report["verdict"] for report in reports.values()] == [
        "could not be judged",
        "could not be judged",
        "incoherent",
        "coherent",
    ]
    assert "its process was ended by SIGSEGV" in ended.stdout
    assert "user code ended the process by os._exit(0)" in ended.stderr
    # The case that ran can be run again.
    for name in ("Segfaulting", "Exiting"):
        assert (tmp_path / reports[name]["reproducer"]).exists()
    assert not list((tmp_path / ".adjointlab").glob("running*"))


def test_a_check_alone_whose_process_dies_does_not_end_the_command_that_was_given_several(
    tmp_path: Path,
) -> None:
    ended = run(
        *("adjointlab", "check", *named("segfaulting"), "--check", "adjoint", "--cases", "5", "--jobs", "2"),
        *("--json", "verdicts.json"),
        cwd=tmp_path,
    )
    assert ended.returncode == 3, ended.stderr
    (report,) = results(tmp_path)["reports"]
    assert report["verdict"] == "could not be judged"
    assert "SIGSEGV" in report["headline"]


def test_a_failure_is_kept_where_a_smaller_case_that_the_strategy_does_not_draw_ends_the_process(
    tmp_path: Path,
) -> None:
    command = (
        *("adjointlab", "check", *named("segfaulting_when_smaller"), "--check", "adjoint", "--cases", "5"),
        *("--seed", "3", "--jobs", "2", "--json", "verdicts.json"),
    )
    ended = run(*command, cwd=tmp_path)
    assert ended.returncode == 3, ended.stderr
    (report,) = results(tmp_path)["reports"]
    assert report["headline"].startswith(
        "a case fails, as its replay shows; while smaller ones were tried, its process"
    )
    ended = run(*command, cwd=tmp_path)
    assert ended.returncode == 1, ended.stderr
    (report,) = results(tmp_path)["reports"]
    assert report["headline"] == "adjoint is not the transpose of forward"


def test_ctrl_c_ends_all_processes_and_tells_what_is_known(tmp_path: Path) -> None:
    process = begun(
        *("-m", "adjointlab", "check", *named("wrong", "printing", "right"), "--check", "adjoint"),
        *("--cases", "1000000", "--jobs", "3", "--json", "verdicts.json"),
        cwd=tmp_path,
    )
    try:
        # Two failures are found at once, and the last check takes for ever.
        limit = time.monotonic() + 60
        while time.monotonic() < limit and (
            not (tmp_path / "verdicts.json").exists() or len(results(tmp_path)["reports"]) < 2
        ):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        printed, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert printed.count("WrongShift: adjoint is not the transpose of forward") == 1
    assert "2 of 3 are done." in printed
    verdicts = results(tmp_path)
    assert (verdicts["complete"], verdicts["exit_code"]) == (False, 130)
    # What a process was at has ended, so its record is gone.
    assert not list((tmp_path / ".adjointlab").glob("running*"))


TOGETHER = """
import os, time
from pathlib import Path
from tests.samples import right

here = Path(__file__).parent
(here / f"imported by {os.getpid()}").touch()
limit = time.monotonic() + 30
while len(list(here.glob("imported by *"))) < 2:
    assert time.monotonic() < limit, "no other process is loading the subjects"
    time.sleep(0.01)
"""

OTHERS = """
import os
from tests.samples import right

globals()[f"right_{os.getpid()}"] = right
del right
"""


def checked(folder: Path, text: str) -> str:
    (folder / "subjects.py").write_text(text)
    checks = ("--check", "adjoint", "--check", "matrix", "--cases", "5", "--ranks", "2")
    ended = run("adjointlab", "check", "subjects.py", *checks, "--jobs", "2", cwd=folder)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_a_process_loads_the_subjects_while_they_are_loaded_here(tmp_path: Path) -> None:
    assert "2 of 2 checks judged, 2 coherent" in checked(tmp_path, TOGETHER)


def test_subjects_that_another_process_does_not_find_are_checked_here(tmp_path: Path) -> None:
    assert "2 of 2 checks judged, 2 coherent" in checked(tmp_path, OTHERS)


@pytest.fixture
def code_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., object]:
    """The exit code of a command in this process, where no other can be started."""
    monkeypatch.chdir(tmp_path)

    def refuse(*_: object, **__: object) -> None:
        raise OSError("no process can be started")

    monkeypatch.setattr(subprocess, "Popen", refuse)

    def code(*arguments: str) -> object:
        with pytest.raises(SystemExit) as end:
            main(list(arguments))
        return end.value.code

    return code


@pytest.mark.parametrize("subjects", [("right",), ("right", "wrong")])
def test_where_no_process_can_be_started_the_checks_run_here(
    code_of: Callable[..., object], subjects: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"{ROOT / 'tests' / 'samples.py'}:{name}" for name in subjects]
    code = code_of("check", *names, "--check", "adjoint", "--cases", "5", "--ranks", "2", "--jobs", "4")
    assert code == len(subjects) - 1
    assert f"{len(subjects)} of {len(subjects)} check" in capsys.readouterr().out


def test_under_a_launcher_there_are_no_jobs(
    code_of: Callable[..., object], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PMI_RANK", "0")
    assert code_of("check", *named("right"), "--jobs", "2") == 2
    assert "--jobs: under a launcher" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("checks", "cases", "cores", "processes"),
    [(1, 10**6, 8, 1), (31, 50, 8, 1), (32, 50, 8, 2), (32, 25, 8, 1), (500, 50, 8, 8), (500, 50, 1, 1)],
)
def test_few_checks_are_done_in_one_process_and_many_on_all_cores(
    checks: int, cases: int, cores: int, processes: int
) -> None:
    assert processes_for(checks, cases, cores) == processes


EARLY = """
import sys
from adjointlab.cli.main import main
from adjointlab.cli.parallel import CheckProcesses

start, pids = CheckProcesses.start_one, []

def noting(self):
    print("with" if "hypothesis" in sys.modules else "without", "the engine")
    start(self)
    pids.extend(process.popen.pid for process in self._processes)

CheckProcesses.start_one = noting
try:
    main(sys.argv[1:])
finally:
    import os
    print("left", [pid for pid in pids if os.path.exists(f"/proc/{pid}")])
"""


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ([*named("right"), "--cases", "3"], 0),
        (["no_such_subject"], 2),
        ([*named("right"), "--shard", "x"], 2),
    ],
)
def test_a_process_is_started_before_the_engine_is_imported_and_none_is_left(
    arguments: list[str], code: int, tmp_path: Path
) -> None:
    script = tmp_path / "early.py"
    script.write_text(EARLY)
    ended = run_python(script, "check", "--jobs", "2", *arguments, cwd=tmp_path)
    assert ended.returncode == code
    lines = ended.stdout.splitlines()
    assert "without the engine" in lines
    assert "left []" in lines


def test_where_one_process_checks_none_is_started_early(tmp_path: Path) -> None:
    script = tmp_path / "early.py"
    script.write_text(EARLY)
    ended = run_python(script, "check", "--jobs", "1", "--cases", "3", *named("right"), cwd=tmp_path)
    assert ended.returncode == 0
    assert "the engine" not in ended.stdout


def test_a_process_sends_all_of_a_result_but_what_the_command_knows_itself() -> None:
    names = {field.name for field in fields(CheckResult)}
    assert set(Outcome._fields) == names - {"found", "known"}
