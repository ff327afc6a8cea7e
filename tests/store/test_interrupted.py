"""A check that something has ended is told with its seed and the command that replays its case."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from msgspec import structs

from adjointlab.checks.context import InputSetting
from adjointlab.engine.case import Case
from adjointlab.store.interrupted import checks_at_work, interrupted_at, keep_running, note_replay, note_seed
from adjointlab.store.reproducer import read
from adjointlab.store.running_case import Progress, Running, RunningCaseFile, is_record
from adjointlab.worlds.world import WorldName

pytestmark = pytest.mark.mpi_skip

CASE = Case("RingShift", "adjoint", 3, {}, InputSetting(), 0)


def progress(check: str, seed: int = 5, world: WorldName = WorldName.SIMULATED) -> Progress:
    return Progress("samples.py:right", "samples:right", check, world, 8, seed)


def test_the_notes_on_an_exception_become_sentences() -> None:
    interrupt = KeyboardInterrupt()
    assert interrupted_at("right adjoint", interrupt) == "right adjoint was at work."
    note_seed(interrupt, 7)
    assert interrupted_at("right adjoint", interrupt) == "right adjoint was at work (seed 7)."
    note_replay(interrupt, "adjointlab replay x.json")
    assert interrupted_at("right adjoint", interrupt) == (
        "right adjoint was at work (seed 7). To replay its case: adjointlab replay x.json"
    )


def test_every_check_at_work_that_is_asked_for_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    records = [
        RunningCaseFile(tmp_path, progress(check, seed))
        for check, seed in (("adjoint", 5), ("matrix", 0), ("purity", 3))
    ]
    for number, record in enumerate(records):
        record.record(structs.replace(CASE, schedule=number), 1)
    assert sum(map(is_record, tmp_path.iterdir())) == 3
    labels = {("samples:right", check): f"right {check}" for check in ("adjoint", "matrix", "linearity")}
    told = checks_at_work(tmp_path, labels, "SIGTERM", are_kept=False).splitlines()
    assert told == ["right adjoint was at work (seed 5).", "right matrix was at work."]
    assert all(is_record(path) for path in tmp_path.iterdir())
    told = checks_at_work(tmp_path, labels, "SIGTERM").splitlines()
    kept = [path for path in tmp_path.iterdir() if not is_record(path)]
    assert len(kept) == 2
    for path in kept:
        stored = read(path)
        (line,) = (line for line in told if f" To replay its case: adjointlab replay {path.name} " in line)
        assert line.endswith(" --subject samples.py:right")
        assert line.startswith(f"right {('adjoint', 'matrix')[stored.case.schedule]} was at work")
        assert "SIGTERM" in str(stored)
    for record in records:
        record.clear()
    assert checks_at_work(tmp_path, labels, "SIGTERM") == ""


def test_a_case_that_is_not_there_or_cannot_be_stored_is_not_promised(tmp_path: Path) -> None:
    assert keep_running(Running.of(progress("adjoint"), None), tmp_path, "SIGTERM") == ""
    (tmp_path / "file").touch()
    assert keep_running(Running.of(progress("adjoint"), CASE), tmp_path / "file", "SIGTERM") == ""
    no_data = Case("RingShift", "adjoint", 3, {"a": object()}, InputSetting(), 0)
    assert keep_running(Running.of(progress("adjoint"), no_data), tmp_path, "SIGTERM") == ""


@pytest.mark.parametrize(
    ("world", "start"),
    [
        (WorldName.SIMULATED, ""),
        (WorldName.MPI, "mpiexec -n 3 "),
        (WorldName.TORCH, "torchrun --nproc-per-node 3 -m "),
    ],
)
def test_the_command_starts_the_ranks_of_the_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world: WorldName, start: str
) -> None:
    monkeypatch.chdir(tmp_path)
    running = Running.of(progress("adjoint", world=world), CASE)
    asked = " --subject samples.py:right"
    assert running.replay_command(tmp_path / "a b.json") == f"{start}adjointlab replay 'a b.json'{asked}"
    elsewhere = tmp_path.parent / "x.json"
    assert (
        running.replay_command(elsewhere) == f"{start}adjointlab replay {shlex.quote(str(elsewhere))}{asked}"
    )
    without = Running.of(progress("adjoint", world=world), None)
    assert (
        without.replay_command(Path("x.json")) == f"{start.replace('3', '1')}adjointlab replay x.json{asked}"
    )
