"""Each verdict is printed as it falls, each fault once, and what a user has misspelt is named with what was meant."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Ended
from tests.running import ROOT, SAMPLES, run

pytestmark = pytest.mark.mpi_skip

MISDECLARED = """
import adjointlab as al

@al.subject(forward=lambda comm, x: x, adjoint=lambda comm, y: y)
def misdeclared(draw, ranks):
    return dict(cells=3)

@al.subject(forward=lambda comm, x: x.copy(), adjoint=lambda comm, y: y.copy())
def right(draw, ranks):
    space = al.Space(al.Layout((ranks,), al.Partition((ranks,))))
    return dict(domain=space, codomain=space)
"""


def rows(printed: str) -> list[str]:
    """The rows of verdicts, by number, subject and check."""
    return re.findall(r"^ *(\d+/\d+ +\S+ +\S+)", printed, re.MULTILINE)


def test_a_verdict_is_printed_before_the_next_check_is_done(tmp_path: Path) -> None:
    operators = tmp_path / "slow.py"
    operators.write_text(
        SAMPLES.read_text()
        + "\nclass Slow(RingShift):\n    def forward(self, x):\n        __import__('time').sleep(30)\n\n"
        "@al.subject(Slow)\ndef slow(draw, ranks):\n    return equal_blocks(draw, ranks)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "adjointlab", "check", "slow.py:right", "slow.py:slow", "--check", "adjoint"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        begun = time.monotonic()
        assert "Verdict" in process.stdout.readline()
        assert "RingShift" in process.stdout.readline()
        assert time.monotonic() - begun < 25  # the second check would take longer
    finally:
        process.kill()
        process.communicate()


def test_a_fault_that_several_checks_see_is_told_once_and_recalled_in_the_end(
    here: Callable[..., Ended],
) -> None:
    once = here("check", f"{SAMPLES}:raising", "--cases", "5", "--ranks", "2")
    headline = "Raising: rank 1 raised RuntimeError: the second rank has had enough"
    assert once.stdout.count(headline) == 1
    assert len(rows(once.stdout)) > 3
    assert (
        once.stdout.count("has had enough, as in adjoint, .adjointlab/Raising-") == len(rows(once.stdout)) - 1
    )
    recap = once.stdout[once.stdout.index("\nFailures:\n") :]
    assert re.search(r"  Raising \(adjoint, matrix, .*\): rank 1 raised RuntimeError", recap)
    assert "    adjointlab replay .adjointlab/Raising-adjoint" in recap

    every = here("check", f"{SAMPLES}:raising", "--cases", "5", "--ranks", "2", "--verbose")
    assert every.stdout.count(headline) == len(rows(every.stdout))


def test_a_wrong_entry_that_two_checks_see_is_told_once(here: Callable[..., Ended]) -> None:
    checks = ("--check", "adjoint", "--check", "matrix", "--cases", "20", "--seed", "1")
    result = here("check", f"{SAMPLES}:wrong", *checks)
    assert result.stdout.count("WrongShift: adjoint is not the transpose of forward") == 1
    assert "as in adjoint" in result.stdout
    assert "WrongShift (adjoint, matrix): adjoint is not" in result.stdout


def test_faults_of_different_kinds_are_told_each(here: Callable[..., Ended]) -> None:
    result = here("check", f"{SAMPLES}:wrong", f"{SAMPLES}:raising", "--check", "adjoint", "--cases", "9")
    assert "WrongShift: adjoint is not the transpose" in result.stdout
    assert "Raising: rank 1 raised" in result.stdout
    assert "as in adjoint" not in result.stdout


def test_a_stored_failure_is_replayed_first_until_it_is_corrected(tmp_path: Path) -> None:
    operators = tmp_path / "operators.py"
    operators.write_text(SAMPLES.read_text())
    command = ("adjointlab", "check", "operators.py:wrong", "--check", "adjoint", "--cases", "20")
    assert "found after" in run(*command, cwd=tmp_path).stdout
    assert "replayed on 2 ranks" in run(*command, cwd=tmp_path).stdout
    operators.write_text(SAMPLES.read_text().replace("result[-1:] = 0", "pass"))
    corrected = run(*command, cwd=tmp_path)
    assert corrected.returncode == 0
    assert "20 cases" in corrected.stdout


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_wrong_declaration_is_one_usage_error(
    here: Callable[..., Ended], tmp_path: Path, jobs: str
) -> None:
    (tmp_path / "declared.py").write_text(MISDECLARED)
    result = here("check", "declared.py", "--cases", "5", "--jobs", jobs, "--json", "verdicts.json")
    assert result.returncode == 2
    assert result.stderr.count("declared.py:misdeclared: the strategy's dictionary needs `domain`") == 1
    # Once more in the end, where a log of standard output alone has it.
    assert result.stdout.count("misdeclared (adjoint): the strategy's dictionary needs `domain`") == 1
    assert "6 of 7 checks judged, 6 coherent, 1 could not be judged" in result.stdout
    assert "misdeclared" not in "".join(path.name for path in tmp_path.glob(".adjointlab/*"))
    verdicts = json.loads((tmp_path / "verdicts.json").read_text())
    reports = verdicts["reports"]
    assert verdicts["asked"] == len(reports) == 7
    assert sum(report["reference"].endswith(":misdeclared") for report in reports) == 1
    assert all(
        report["verdict"] == "coherent" for report in reports if report["reference"].endswith(":right")
    )


def test_a_wrong_result_of_another_subject_counts_for_more(
    here: Callable[..., Ended], tmp_path: Path
) -> None:
    (tmp_path / "declared.py").write_text(MISDECLARED)
    result = here(
        "check", "declared.py:misdeclared", f"{SAMPLES}:wrong", "--check", "adjoint", "--cases", "20"
    )
    assert result.returncode == 1


def test_time_that_is_up_ends_the_drawing_and_is_said(here: Callable[..., Ended]) -> None:
    subjects = (f"{SAMPLES}:right", "--check", "adjoint", "--check", "linearity", "--cases", "1000000")
    result = here("check", *subjects, "--max-time", "1", "--json", "verdicts.json")
    assert result.returncode == 0
    assert result.stdout.count("time was up") == 2
    for report in json.loads(Path("verdicts.json").read_text())["reports"]:
        assert report["counts"]["is_cut_short"]
        assert 10 <= report["cases"] < 100_000


@pytest.mark.parametrize(
    ("arguments", "suggestion"),
    [
        (("Brodcast",), "did you mean Broadcast?"),
        ((f"{SAMPLES}:rigth",), "did you mean right?"),
        ((f"{SAMPLES}:right", "--check", "adjiont"), "did you mean adjoint?"),
    ],
)
def test_a_misspelt_name_gets_a_suggestion(
    here: Callable[..., Ended], arguments: tuple[str, ...], suggestion: str
) -> None:
    result = here("check", *arguments)
    assert result.returncode == 2
    assert suggestion in result.stderr


def test_colours_are_printed_where_they_are_asked_for(
    here: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("FORCE_COLOR", "NO_COLOR"):
        monkeypatch.setenv(variable, "")  # restored afterwards, whatever the option sets
        monkeypatch.delenv(variable)
    command = ("check", f"{SAMPLES}:right", "--check", "adjoint", "--cases", "2")
    assert "\x1b[" not in here(*command).stdout
    assert "\x1b[32mcoherent" in here(*command, "--color", "always").stdout
    assert "\x1b[" not in here(*command, "--color", "never").stdout
    refused = here(*command, "--color", "blue")
    assert refused.returncode == 2
    assert "'blue' is not one of always, never, auto" in refused.stderr


def test_the_demonstration_shows_what_is_right_and_what_is_wrong(here: Callable[..., Ended]) -> None:
    result = here("demo")
    assert result.returncode == 0
    assert rows(result.stdout)[0].split() == ["1/2", "RightShift", "adjoint"]
    assert "exact" in result.stdout
    assert "two ranks: <Fx, y> = <x, F*y> is true" in result.stdout
    assert "WrongShift: adjoint is not the transpose of forward" in result.stdout
    assert "forward  moves x[0] (rank 0) to y[1] (rank 1) with weight 1" in result.stdout
    (replay,) = re.findall(r"see it again +adjointlab (replay .*)", result.stdout)
    again = here(*replay.split())
    assert again.returncode == 1
    assert "replayed on 3 ranks" in again.stdout


def test_the_demonstration_needs_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom adjointlab.cli.main import app\n"
        "app(['demo'], standalone_mode=False)\nassert 'torch' not in sys.modules"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr


def test_the_version_is_printed(here: Callable[..., Ended]) -> None:
    assert re.fullmatch(r"adjointlab \d+\.\d+\.\d+\n", here("--version").stdout)
