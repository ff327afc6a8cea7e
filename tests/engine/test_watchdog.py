"""A rank that does not return is ended, reported as such, shrunk, and stored; in both worlds."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from adjointlab.checks.verdict import Status
from adjointlab.engine.failed_runs import NO_RETURN
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget, SearchResult
from adjointlab.engine.subject import Subject
from adjointlab.store import running_case as running
from adjointlab.store.reproducer import read
from adjointlab.worlds.simulated.world import SimulatedWorld
from adjointlab.worlds.watchdog import TIMES_IN_ALL, Watchdog
from tests import hanging
from tests.running import HANGING, SAMPLES, check_hanging, run

# One process starts the others.
pytestmark = pytest.mark.mpi_skip

FOLDER = ".adjointlab"


def investigated(subject: Subject) -> SearchResult:
    return investigate(SimulatedWorld(4, Watchdog(0.6)), subject, "adjoint", Budget(20, seed=1))


def test_an_endless_loop_of_a_simulated_rank_is_ended_and_made_smaller():
    report = investigated(hanging.looping)

    assert (report.status, report.verdict.kind) == (Status.UNJUDGED, NO_RETURN)
    assert re.fullmatch(
        rf"rank 1 did not return within 0\.6 s, at {re.escape(str(HANGING))}:\d+", report.verdict.headline
    )
    assert "--watchdog SECONDS" in dict(report.verdict.lines)["limit"]
    assert report.case is not None
    assert report.case.ranks == 2


def test_an_exception_is_not_lost_in_a_callback_of_the_garbage_collector(tmp_path: Path):
    ended = check_hanging("collecting", tmp_path, "--watchdog", "0.5", "--cases", "5")

    assert re.search(r"rank 1 did not return within 0\.5 s, at .*hanging\.py:\d+ +\(found", ended.stdout)
    assert "Exception ignored" not in ended.stderr


def test_a_good_operator_is_left_in_peace():
    assert investigated(hanging.right).status is Status.COHERENT


def test_a_simulated_rank_that_no_exception_reaches_ends_the_process_and_not_the_case(tmp_path: Path):
    ended = check_hanging("stubborn", tmp_path, "--watchdog", "0.5")

    _ended_by_the_watchdog(ended, tmp_path, "Stubborn", "simulated")


def test_verdicts_that_were_reached_outlive_the_process_that_the_watchdog_ends(tmp_path: Path):
    ended = run(
        "adjointlab",
        *("check", f"{SAMPLES}:wrong", f"{HANGING}:stubborn", "--check", "adjoint", "--watchdog", "0.5"),
        *("--json", "verdicts.json"),
        cwd=tmp_path,
    )

    assert ended.returncode == 3, ended.stderr
    assert "WrongShift: adjoint is not the transpose of forward" in ended.stdout
    verdicts = json.loads((tmp_path / "verdicts.json").read_text())
    assert (verdicts["complete"], verdicts["exit_code"]) == (False, 3)
    assert [entry["subject"] for entry in verdicts["reports"]] == ["WrongShift"]


@pytest.mark.starts_mpiexec
@pytest.mark.parametrize("subject", ["stubborn", "raw"])
def test_a_process_that_no_exception_reaches_ends_the_job_and_not_the_case(tmp_path: Path, subject: str):
    ended = check_hanging(subject, tmp_path, "--watchdog", "1.5", ranks=2)

    _ended_by_the_watchdog(ended, tmp_path, subject.capitalize(), "mpi")
    assert "adjointlab: rank 0, asked by rank 1:" in ended.stderr


@pytest.mark.starts_mpiexec
@pytest.mark.parametrize(
    ("subject", "state"), [("stopped", "is stopped by a signal"), ("holds_lock", "holds Python's lock")]
)
def test_of_a_rank_that_cannot_be_asked_only_what_is_known_is_told(tmp_path: Path, subject: str, state: str):
    ended = check_hanging(subject, tmp_path, "--watchdog", "0.5", ranks=2)

    assert ended.returncode == 3, ended.stderr
    assert re.search(
        rf"rank 1 did not return, and has not responded .*{state}; it was last seen \d+ s ago, at ",
        ended.stderr,
    )
    record = running.read(tmp_path / FOLDER)
    assert record is not None
    lines = dict(read(tmp_path / FOLDER / record.reproducer).lines)
    assert "stack" not in lines  # that of the leader would be another rank's


@pytest.mark.parametrize(
    ("subject", "ranks"),
    [("sleeping_strategy", 0), pytest.param("looping_strategy", 2, marks=pytest.mark.starts_mpiexec)],
)
def test_a_strategy_that_does_not_return_is_one_that_could_not_be_judged(
    tmp_path: Path, subject: str, ranks: int
):
    words = ("check", f"{HANGING}:{subject}", f"{HANGING}:right", "--check", "adjoint", "--watchdog", "0.5")
    ended = run("adjointlab", *words, cwd=tmp_path, ranks=ranks)

    assert ended.returncode == 3, ended.stderr
    assert re.search(r"the strategy did not return within 3 s, at .*hanging\.py:\d+", ended.stdout)
    assert re.search(r"1 of 2 checks judged|1 coherent", ended.stdout)
    assert running.read(tmp_path / FOLDER) is None


@pytest.mark.parametrize(
    ("subject", "ranks"),
    [("late_strategy", 0), pytest.param("stubborn_strategy", 2, marks=pytest.mark.starts_mpiexec)],
)
def test_a_strategy_that_no_exception_reaches_ends_the_process_and_is_no_failure_of_a_case(
    tmp_path: Path, subject: str, ranks: int
):
    ended = check_hanging(subject, tmp_path, "--watchdog", "0.5", ranks=ranks)

    assert ended.returncode == 3, ended.stderr
    assert "the strategy has not returned within 3 s" in ended.stderr
    assert f'File "{HANGING}", line' in ended.stderr
    record = running.read(tmp_path / FOLDER)
    assert record is not None
    assert (record.ended, record.kind, record.case) == ("watchdog", NO_RETURN, None)
    assert not list((tmp_path / FOLDER).glob("*-adjoint-*"))


@pytest.mark.parametrize(
    ("handler", "ranks", "where"),
    [
        ("BaseException", 0, 0),
        pytest.param("", 2, 0, marks=pytest.mark.starts_mpiexec),
        pytest.param("", 2, 1, marks=pytest.mark.starts_mpiexec),
    ],
    ids=["stubborn", "on rank 0 of two", "on rank 1 of two"],
)
def test_a_module_whose_import_does_not_return_ends_the_command_which_says_where(
    tmp_path: Path, handler: str, ranks: int, where: int
):
    loop = "while True:\n    pass\n"
    if handler:
        loop = f"while True:\n    try:\n        while True: pass\n    except {handler}: pass\n"
    only = f"import adjointlab.worlds.launch as launch\nif launch.launched_rank() == {where}:\n"
    (tmp_path / "endless.py").write_text(only + "".join(f"    {line}\n" for line in loop.splitlines()))

    ended = run("adjointlab", "check", "endless.py", "--watchdog", "0.3", cwd=tmp_path, ranks=ranks)

    assert ended.returncode == 3, ended.stdout + ended.stderr
    late = re.search(
        r"loading the subjects (did not return|has not returned) within 3 s, at .*endless\.py:\d",
        ended.stderr,
    )
    assert late
    assert ("on rank 1: loading" in ended.stderr) == (where == 1)
    # Where the module lets no exception through, as on Python 3.14, the process is ended with the stacks of all its threads.
    is_ended_by_exception = late[1] == "did not return"
    assert is_ended_by_exception or handler
    if is_ended_by_exception:
        assert "typer" not in ended.stderr, "the stack is of the module, not of what has called the lab"
    assert not (tmp_path / FOLDER).exists()


def test_a_reference_that_does_not_return_is_a_case_that_does_not():
    report = investigate(
        SimulatedWorld(2, Watchdog(0.6)), hanging.endless_reference, "sequential", Budget(5, seed=1)
    )

    assert (report.status, report.verdict.kind) == (Status.UNJUDGED, NO_RETURN)
    assert report.case is not None


@pytest.mark.parametrize("check", ["adjoint", "linearity"])
def test_what_user_code_makes_of_the_exception_is_never_a_verdict(check: str):
    report = investigate(
        SimulatedWorld(4, Watchdog(0.3)), hanging.swallowing, check, Budget(5, seed=1, shrinking=2)
    )

    assert (report.status, report.verdict.kind) == (Status.UNJUDGED, NO_RETURN)


@pytest.mark.starts_mpiexec
def test_under_mpi_what_user_code_makes_of_the_exception_is_never_a_verdict(tmp_path: Path):
    ended = check_hanging("swallowing", tmp_path, "--watchdog", "0.5", ranks=2)

    assert ended.returncode == 3, ended.stderr
    assert "incoherent" not in ended.stdout
    assert re.search(r"rank 1 did not return within [\d.]+ s, at .*hanging\.py:\d+", ended.stdout)


def test_an_endless_loop_that_makes_calls_is_ended():
    patience = 0.5  # in less, a rank on a loaded machine may come to no call
    report = investigate(
        SimulatedWorld(2, Watchdog(patience)), hanging.chatting, "adjoint", Budget(10, seed=1, shrinking=0.1)
    )

    assert (report.status, report.verdict.kind) == (Status.UNJUDGED, NO_RETURN)
    assert f"did not return within {TIMES_IN_ALL * patience:g} s" in report.verdict.headline


def _ended_by_the_watchdog(
    ended: subprocess.CompletedProcess[str], folder: Path, subject: str, world: str
) -> None:
    assert ended.returncode == 3, ended.stderr
    assert "rank 1 has not returned" in ended.stderr
    assert "--watchdog SECONDS" in ended.stderr
    assert f'File "{HANGING}", line' in ended.stderr
    record = running.read(folder / FOLDER)
    assert record is not None
    assert (record.ended, record.kind) == ("watchdog", NO_RETURN)
    stored = read(folder / record.reproducer)
    assert stored.case == record.case
    assert (stored.subject, stored.world, stored.kind) == (subject, world, NO_RETURN)


@pytest.mark.starts_mpiexec
@pytest.mark.parametrize("subject", [pytest.param("collecting", marks=pytest.mark.thorough), "sleeping"])
def test_a_process_that_does_not_come_back_is_interrupted_and_the_run_goes_on(tmp_path: Path, subject: str):
    ended = run(
        "adjointlab",
        *("check", f"{HANGING}:{subject}", f"{HANGING}:right", "--check", "adjoint", "--watchdog", "1.5"),
        cwd=tmp_path,
        ranks=3,
    )

    assert ended.returncode == 3, ended.stderr
    assert re.search(r"rank 1 did not return within [\d.]+ s, at .*hanging\.py:\d+ +\(found", ended.stdout)
    assert "on 2 ranks" in ended.stdout or "shrunk to 2 ranks" in ended.stdout
    assert "1 coherent, 1 could not be judged" in ended.stdout
    assert running.read(tmp_path / FOLDER) is None
    assert len(list((tmp_path / FOLDER).glob("*.json"))) == 1
