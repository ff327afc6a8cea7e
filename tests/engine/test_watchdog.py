"""A rank that does not return is ended, reported as such, shrunk, and stored; in both worlds."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from adjointlab.checks.verdict import Status
from adjointlab.engine.run_case import NO_RETURN
from adjointlab.engine.search import Budget, SearchResult, investigate
from adjointlab.engine.subject import Subject
from adjointlab.store import running_case as running
from adjointlab.store.reproducer import read
from adjointlab.worlds.simulated.world import SimulatedWorld
from adjointlab.worlds.watchdog import Watchdog
from tests import hanging
from tests.running import SAMPLES, needs_mpi, run

# One process starts the others.
pytestmark = pytest.mark.mpi_skip

HANGING = Path(hanging.__file__)
FOLDER = ".adjointlab"


def check(subject: str, cwd: Path, *options: str, ranks: int = 0) -> subprocess.CompletedProcess[str]:
    words = ["check", f"{HANGING}:{subject}", "--check", "adjoint", "--seed", "1", *options]
    return run("adjointlab", *words, cwd=cwd, ranks=ranks)


def investigated(subject: Subject) -> SearchResult:
    world = SimulatedWorld(4, Watchdog(0.6))
    try:
        return investigate(world, subject, "adjoint", Budget(20, seed=1))
    finally:
        world.close()


def test_an_endless_loop_of_a_simulated_rank_is_ended_and_made_smaller():
    report = investigated(hanging.looping)

    assert (report.status, report.verdict.kind) == (Status.UNJUDGED, NO_RETURN)
    assert re.fullmatch(
        rf"rank 1 did not come back within 0\.6 s, at {re.escape(str(HANGING))}:\d+", report.verdict.headline
    )
    assert report.case is not None
    assert report.case.ranks == 2


def test_a_good_operator_is_left_in_peace():
    assert investigated(hanging.right).status is Status.COHERENT


def test_a_simulated_rank_that_no_exception_reaches_ends_the_process_and_not_the_case(tmp_path: Path):
    ended = check("stubborn", tmp_path, "--watchdog", "0.5")

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


@needs_mpi
@pytest.mark.parametrize("subject", ["stubborn", "raw"])
def test_a_process_that_no_exception_reaches_ends_the_job_and_not_the_case(tmp_path: Path, subject: str):
    ended = check(subject, tmp_path, "--watchdog", "1.5", ranks=2)

    _ended_by_the_watchdog(ended, tmp_path, subject.capitalize(), "mpi")
    assert "adjointlab: rank 0, asked by rank 1:" in ended.stderr


def _ended_by_the_watchdog(
    ended: subprocess.CompletedProcess[str], folder: Path, subject: str, world: str
) -> None:
    assert ended.returncode == 3, ended.stderr
    assert "rank 1 has not come back" in ended.stderr
    assert f'File "{HANGING}", line' in ended.stderr
    record = running.read(folder / FOLDER)
    assert record is not None
    assert (record.ended, record.kind) == ("watchdog", NO_RETURN)
    stored = read(folder / record.reproducer)
    assert stored.case == record.case
    assert (stored.subject, stored.world, stored.kind) == (subject, world, NO_RETURN)


@needs_mpi
@pytest.mark.parametrize("subject", ["looping", "sleeping"])
def test_a_process_that_does_not_come_back_is_interrupted_and_the_run_goes_on(tmp_path: Path, subject: str):
    ended = run(
        "adjointlab",
        *("check", f"{HANGING}:{subject}", f"{HANGING}:right", "--check", "adjoint", "--watchdog", "1.5"),
        cwd=tmp_path,
        ranks=3,
    )

    assert ended.returncode == 3, ended.stderr
    assert re.search(r"rank 1 did not come back within [\d.]+ s, at .*hanging\.py:\d+ +\(found", ended.stdout)
    assert "on 2 ranks" in ended.stdout or "shrunk to 2 ranks" in ended.stdout
    assert "1 coherent, 1 could not be judged" in ended.stdout
    assert running.read(tmp_path / FOLDER) is None
    assert len(list((tmp_path / FOLDER).glob("*.json"))) == 1
