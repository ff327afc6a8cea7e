"""The record of what is running: there before a case runs, whole at any moment, gone after a good end."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from adjointlab import session
from adjointlab.check_result import SearchInterrupted
from adjointlab.checks.context import InputSetting
from adjointlab.checks.verdict import unjudged
from adjointlab.engine.case import Case
from adjointlab.engine.discovery import found_as
from adjointlab.engine.run_case import Stage
from adjointlab.engine.search_result import Budget
from adjointlab.session import run_check
from adjointlab.store import running_case
from adjointlab.store.reproducer import keep_interrupted, write_case
from adjointlab.store.reproducer import read as read_reproducer
from adjointlab.store.running_case import (
    COMMAND,
    NAME,
    EndedBy,
    Progress,
    Running,
    RunningCaseFile,
    at_work,
    is_record,
    left_behind,
    read,
    read_file,
    recording,
    write_end,
)
from adjointlab.worlds.interrupts import RepeatedInterrupt, Terminated, signal_of
from adjointlab.worlds.simulated.world import SimulatedWorld
from adjointlab.worlds.world import Exhausted, WorldName
from tests.running import ROOT, run
from tests.samples import raising, right, wrong

pytestmark = pytest.mark.mpi_skip

PROGRESS = Progress("samples.py:right", "samples:right", "adjoint", WorldName.SIMULATED, 8, 5)


def case(name: str = "", ranks: int = 2) -> Case:
    return Case("RingShift", "adjoint", ranks, {"name": name}, InputSetting(), 0)


def test_what_is_read_is_what_was_recorded_last(tmp_path: Path):
    recorder = RunningCaseFile(tmp_path, PROGRESS)
    for done, text in enumerate(("short", "long " * 2000, "", "x" * 1023, "middling " * 100)):
        recorder.record(case(text), done, Stage.SHRINKING)

        assert read(tmp_path) == Running.of(PROGRESS, case(text), done, Stage.SHRINKING)
        assert json.loads((tmp_path / NAME).read_text())["done"] == done
    recorder.clear()

    assert read(tmp_path) is None


def test_a_good_end_leaves_nothing_behind(tmp_path: Path):
    folder = tmp_path / "not" / "there"
    with recording(folder, PROGRESS, is_leader=True) as recorder:
        assert recorder is not None
        recorder.record(case(), 0)
        assert read(folder) is not None

    assert not list(tmp_path.iterdir())


def test_folders_that_hold_something_stay(tmp_path: Path):
    folder = tmp_path / "new"
    with recording(folder, PROGRESS, is_leader=True):
        (folder / "reproducer.json").touch()

    assert [path.name for path in folder.iterdir()] == ["reproducer.json"]


def test_followers_keep_no_record(tmp_path: Path):
    with recording(tmp_path, PROGRESS, is_leader=False) as recorder:
        assert recorder is None
    assert not list(tmp_path.iterdir())


def test_a_new_record_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # A record that is half written is: a check that begins has none.
    monkeypatch.setattr(running_case.time, "sleep", lambda seconds: pytest.fail("it waits"))
    with recording(tmp_path, PROGRESS, is_leader=True) as recorder:
        assert recorder is not None
        assert not recorder.previous


def test_two_jobs_in_one_folder_do_not_mix(tmp_path: Path):
    first = RunningCaseFile(tmp_path, PROGRESS)
    first.record(case("first"), 0)
    second = RunningCaseFile(tmp_path, PROGRESS)
    second.record(case("second"), 0)

    assert first.path != second.path
    found = [read_file(recorder.path) for recorder in (first, second)]
    assert [running.case for running in found if running is not None] == [case("first"), case("second")]
    second.clear()
    first.clear()
    assert not list(tmp_path.iterdir())


def test_a_child_that_outlives_its_parent_does_not_keep_the_record_alive(tmp_path: Path):
    # What dies leaves its record, though a child that it has forked goes on.
    program = f"""
import os, sys, time
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from tests.store.test_running_case import PROGRESS, case
from adjointlab.store.running_case import recording
with recording(Path({str(tmp_path)!r}), PROGRESS, is_leader=True) as recorder:
    recorder.record(case("fatal"), 0)
    if os.fork() == 0:
        os.close(1)
        time.sleep(30)
        os._exit(0)
    os._exit(1)
"""
    ended = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, timeout=60, check=False)
    assert ended.returncode == 1
    recorder = RunningCaseFile(tmp_path, PROGRESS)
    assert [running.case for running in recorder.previous] == [case("fatal")]
    recorder.clear()


def test_the_record_of_a_job_that_died_is_handed_over(tmp_path: Path):
    ended = Running.of(PROGRESS, case("fatal"), 7, Stage.DRAWING, EndedBy.WATCHDOG, "no return", "x.json")
    write_end(tmp_path / NAME, ended)
    recorder = RunningCaseFile(tmp_path, PROGRESS)

    assert [(running.case, running.ended) for running in recorder.previous] == [(case("fatal"), "watchdog")]


def test_the_record_of_a_check_is_found_beside_those_of_others(tmp_path: Path):
    write_end(tmp_path / NAME, Running.of(PROGRESS, case("fatal"), 7))
    others = (
        (PROGRESS.location, "matrix"),
        (PROGRESS.location, "a"),
        ("samples:wrong", PROGRESS.check),
        ("a:right", PROGRESS.check),
    )
    for location, check in others:
        assert left_behind(tmp_path, location, check) is None
    found = left_behind(tmp_path, PROGRESS.location, PROGRESS.check)
    assert found is not None
    assert found.case == case("fatal")
    assert not list(tmp_path.iterdir())


def test_the_records_of_several_jobs_that_died_are_handed_over_and_not_those_of_live_ones(tmp_path: Path):
    live = RunningCaseFile(tmp_path, PROGRESS)
    live.record(case("live"), 0)
    for name in ("one", "other"):
        write_end(tmp_path / f"running-{name}.json", Running.of(PROGRESS, case(name)))
    recorder = RunningCaseFile(tmp_path, PROGRESS)
    recorder.record(case("new"), 0)

    assert [running.case for running in recorder.previous] == [case("one"), case("other")]
    assert sorted(tmp_path.iterdir()) == sorted([live.path, recorder.path])
    assert RunningCaseFile(tmp_path, PROGRESS).previous == ()


@pytest.mark.parametrize("name", [NAME, "running-other.json"])
def test_the_record_of_a_process_that_shared_the_checks_of_a_command_is_left_to_the_command(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(COMMAND, "17-4")
    write_end(tmp_path / name, Running.of(PROGRESS, case("fatal"), 7))
    sibling = RunningCaseFile(tmp_path, PROGRESS)
    sibling.record(case("next"), 0)

    assert sibling.previous == ()
    sibling.clear()
    left = left_behind(tmp_path, PROGRESS.location, PROGRESS.check)
    assert left is not None
    assert left.case == case("fatal")
    assert not list(tmp_path.iterdir())

    write_end(tmp_path / name, left)
    monkeypatch.setenv(COMMAND, "18-1")  # the command has died as well
    assert [running.case for running in RunningCaseFile(tmp_path, PROGRESS).previous] == [case("fatal")]


def test_the_folder_may_go_as_soon_as_it_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder, make, made = tmp_path / "folder", Path.mkdir, []

    def made_and_gone(path: Path, *arguments, **keywords) -> None:
        make(path, *arguments, **keywords)
        made.append(path)
        if len(made) % 3:
            path.rmdir()  # as another process does that has used it and leaves it empty

    monkeypatch.setattr(Path, "mkdir", made_and_gone)
    write_case(case(), "samples:right", "simulated", unjudged("died"), folder).unlink()
    folder.rmdir()
    recorder = RunningCaseFile(folder, PROGRESS)
    recorder.record(case(), 0)

    assert read_file(recorder.path) is not None
    assert len(made) == 6


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"schema": 1, "done": 0}', b"\xff\xfe"])
def test_what_is_no_record_is_none(tmp_path: Path, content: bytes):
    (tmp_path / NAME).write_bytes(content)

    assert read(tmp_path) is None


def test_a_folder_that_cannot_be_written_to_stops_nothing(tmp_path: Path):
    (tmp_path / "file").touch()
    with recording(tmp_path / "file" / "folder", PROGRESS, is_leader=True) as recorder:
        assert recorder is not None
        recorder.record(case(), 0)


def test_parameters_that_are_no_data_stop_nothing(tmp_path: Path):
    with recording(tmp_path, PROGRESS, is_leader=True) as recorder:
        assert recorder is not None
        recorder.record(Case("RingShift", "adjoint", 2, {"made of": object()}, InputSetting(), 0), 3)
        running = read(tmp_path)

        assert running is not None
        assert (running.case, running.done) == (None, 3)


def _interrupted(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, at whose beginning SIGTERM arrives."""

    def interrupted(*arguments: object) -> object:
        signal.raise_signal(signal.SIGTERM)
        return function(*arguments)

    return interrupted


@pytest.mark.parametrize("place", ["_locked", "_remove"])
def test_a_signal_leaves_no_record_of_a_job_that_goes_on_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
):
    monkeypatch.setattr(running_case, place, _interrupted(getattr(running_case, place)))
    with (
        pytest.raises(Terminated),
        RepeatedInterrupt(),
        recording(tmp_path / "folder", PROGRESS, is_leader=True),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_signal_after_the_last_case_loses_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(session, "_store", _interrupted(session._store))
    with pytest.raises(SearchInterrupted) as interrupt, RepeatedInterrupt():
        run_check(SimulatedWorld(2), found_as(wrong), "adjoint", Budget(5, 2, seed=0), tmp_path)

    assert signal_of(interrupt.value) == signal.SIGTERM
    written = interrupt.value.known.written
    assert written is not None
    assert written.json.exists()


@pytest.mark.parametrize("subject", [right, raising], ids=["right", "raising"])
def test_run_check_keeps_one_while_it_lasts(tmp_path: Path, subject):
    world, seen = SimulatedWorld(4), []
    run_check(
        world,
        found_as(subject),
        "adjoint",
        Budget(5, seed=0),
        tmp_path,
        lambda tried: seen.append(read(tmp_path)),
    )
    world.close()

    # Each case is on disk when the next one is drawn.
    assert [running.done for running in seen[1:]] == list(range(len(seen) - 1))
    assert all(running.case is not None and running.stage == "drawing" for running in seen[1:])
    assert read(tmp_path) is None


class Spent(SimulatedWorld):
    """A world whose job has to be started again."""

    is_exhausted = True


def test_a_job_that_has_to_be_started_again_says_so(tmp_path: Path):
    world = Spent(4)
    with pytest.raises(Exhausted, match="restart the job"):
        run_check(world, found_as(right), "adjoint", Budget(5, seed=0), tmp_path)
    world.close()

    running = read(tmp_path)
    assert running is not None
    assert (running.ended, running.check) == ("communicators", "adjoint")


def stored(running: Running) -> bytes:
    return running_case._encoded(running)


@pytest.mark.parametrize("length", [0, 1, 1022, 1023, 1024, 1025, 2047, 2048, 5000])
def test_a_record_fills_whole_blocks_of_its_file_and_ends_with_a_line(tmp_path: Path, length: int):
    name = "x" * max(0, length - len(stored(Running.of(PROGRESS, case(), 3))))
    data = stored(Running.of(PROGRESS, case(name), 3))
    recorder = RunningCaseFile(tmp_path, PROGRESS)
    recorder.record(case(name), 3)
    blocks = len(data) // 1024 + 1
    content = recorder.path.read_bytes()
    assert content == data.ljust(blocks * 1024 - 1) + b"\n"
    assert recorder.last == case(name)

    recorder.record(case(), 4)
    assert (
        recorder.path.read_bytes() == stored(Running.of(PROGRESS, case(), 4)).ljust(blocks * 1024 - 1) + b"\n"
    )
    recorder.clear()


def test_the_end_of_a_job_is_written_over_its_record_and_makes_the_file_no_longer_than_it_must(
    tmp_path: Path,
):
    path = tmp_path / "folder" / NAME
    long, short = (Running.of(PROGRESS, case(name)) for name in ("long" * 50, ""))
    write_end(path, short)
    assert path.read_bytes() == stored(short) + b"\n"
    write_end(path, long)
    assert path.read_bytes() == stored(long) + b"\n"
    write_end(path, short)
    assert path.read_bytes() == stored(short).ljust(len(stored(long))) + b"\n"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (NAME, True),
        ("running-1f.json", True),
        ("running-.json", True),
        ("running.jsonl", False),
        ("a.json", False),
        ("zero.json", False),
        ("running-1f.txt", False),
    ],
)
def test_records_have_names_of_their_own(name: str, expected: bool):
    assert is_record(Path("folder") / name) is expected


def test_a_record_that_is_half_written_is_read_again_and_after_three_times_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path, slept = tmp_path / NAME, []
    whole = stored(Running.of(PROGRESS, case()))

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == becomes_whole_after:
            path.write_bytes(whole)

    monkeypatch.setattr(running_case.time, "sleep", sleep)
    for becomes_whole_after, times in ((0, 3), (2, 2), (3, 3)):
        slept.clear()
        path.write_bytes(whole[:-5])
        found = read(tmp_path)
        assert (found is not None) is (becomes_whole_after == 2)
        assert len(slept) == times
        assert all(0 < seconds < 0.1 for seconds in slept)


def others(folder: Path, *names: str) -> None:
    for name in names:
        write_end(folder / f"running-{name}.json", Running.of(PROGRESS, case(name)))


def test_what_cannot_be_opened_and_what_is_locked_hides_no_record_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    live = RunningCaseFile(tmp_path, PROGRESS)
    live.record(case("live"), 0)
    (tmp_path / "running-b.json").mkdir()
    monkeypatch.setattr(running_case.secrets, "token_hex", lambda count: "a" * count)
    second = RunningCaseFile(tmp_path, PROGRESS)
    second.record(case("second"), 0)
    assert second.path == tmp_path / f"running-{'a' * 8}.json"

    others(tmp_path, "c", "d")
    left = left_behind(tmp_path, PROGRESS.location, PROGRESS.check)
    assert left is not None
    assert left.case == case("c")
    assert [running.case for running in at_work(tmp_path)] == [case("live"), case("second"), case("d")]

    # The one that begins has a name that comes before all of them.
    monkeypatch.setattr(running_case.secrets, "token_hex", lambda count: "0" * count)
    third = RunningCaseFile(tmp_path, PROGRESS)
    assert third.path == tmp_path / f"running-{'0' * 8}.json"
    assert [running.case for running in third.previous] == [case("d")]
    for recorder in (live, second, third):
        recorder.clear()
    assert [path.name for path in tmp_path.iterdir()] == ["running-b.json"]


def test_without_locks_no_record_is_kept_and_no_file_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refused(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(running_case.fcntl, "flock", refused)
    for _ in range(2):
        with recording(tmp_path, PROGRESS, is_leader=True) as recorder:
            assert recorder is not None
            recorder.record(case(), 0)
            assert at_work(tmp_path) == []
        assert list(tmp_path.iterdir()) == []


def test_a_folder_without_records_has_left_nothing_behind(tmp_path: Path):
    assert left_behind(tmp_path, PROGRESS.location, PROGRESS.check) is None
    assert left_behind(tmp_path / "gone", PROGRESS.location, PROGRESS.check) is None
    assert at_work(tmp_path) == []


def test_the_record_of_another_process_at_the_same_place_stays(tmp_path: Path):
    recorder = RunningCaseFile(tmp_path, PROGRESS)
    recorder.record(case("mine"), 0)
    recorder.path.unlink()
    write_end(tmp_path / NAME, Running.of(PROGRESS, case("another's")))
    recorder.clear()
    running = read(tmp_path)
    assert running is not None
    assert running.case == case("another's")
    recorder.clear()


@pytest.mark.parametrize(
    ("command", "own", "expected"),
    [
        ("", "", False),
        ("1", "1", True),
        ("1", "2", False),
        ("2", "1", False),
        ("1", "", False),
        ("", "1", False),
    ],
)
def test_a_record_is_asked_for_by_the_command_that_shared_the_checks_out(
    command: str, own: str, expected: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(COMMAND, command)
    running = Running.of(PROGRESS, case())
    assert running.command == command
    monkeypatch.setenv(COMMAND, own)
    assert running_case._is_asked_for(running) is expected
    assert not running_case._is_asked_for(None)


def test_a_record_names_its_format_and_has_no_other_fields(tmp_path: Path):
    content = json.loads(stored(Running.of(PROGRESS, case())))
    assert content["schema"] == 1
    for changed in ({**content, "schema": 2}, {**content, "unknown": 1}):
        (tmp_path / NAME).write_text(json.dumps(changed))
        assert read(tmp_path) is None
    (tmp_path / NAME).write_text(json.dumps(content))
    assert read(tmp_path) is not None


def test_a_record_says_nothing_of_an_end_unless_there_is_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(COMMAND, raising=False)
    running = Running.of(PROGRESS, None)
    assert (running.done, running.stage, running.ended) == (0, Stage.DRAWING, EndedBy.NOTHING)
    assert (running.kind, running.reproducer, running.because, running.command) == ("", "", "", "")


DYING = """
import os
import numpy as np
import adjointlab as al
from adjointlab.check_result import SearchInterrupted
from adjointlab.session import run_check
from adjointlab.store import running_case
from adjointlab.engine.search_result import Budget
from adjointlab.engine.discovery import found_as
from adjointlab.worlds.simulated.world import SimulatedWorld
from pathlib import Path
from tests.hanging import Copy, cuts

class Dying(Copy):
    def fault(self, rank, size):
        if size > 2:
            os._exit(9)

run_check(SimulatedWorld(4), found_as(al.subject(Dying)(cuts)), "adjoint", Budget(50, seed=1), Path("failures"))
"""


def test_the_case_that_ends_the_process_is_known(tmp_path: Path):
    ended = subprocess.run(
        [sys.executable, "-c", DYING], cwd=tmp_path, env=_environment(), check=False, timeout=60
    )

    running = read(tmp_path / "failures")
    assert ended.returncode == 9
    assert running is not None
    assert running.case is not None
    assert (running.case.subject, running.case.ranks > 2) == ("Dying", True)


def test_the_next_job_keeps_the_case_that_ended_the_one_before(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    fatal = Running.of(PROGRESS, case("fatal"), 7)
    write_end(tmp_path / NAME, fatal)
    world = SimulatedWorld(2)
    run_check(world, found_as(right), "adjoint", Budget(2, seed=0), tmp_path)
    world.close()

    (kept,) = tmp_path.glob("*.json")
    assert read_reproducer(kept).case == fatal.case
    assert read_reproducer(kept).location == PROGRESS.location
    assert "adjointlab: note: an earlier job was ended" in capfd.readouterr().err


def test_a_failure_that_is_stored_stays_when_its_case_is_interrupted(tmp_path: Path):
    path = write_case(case(), "samples:right", "simulated", unjudged("deadlock"), tmp_path)

    assert keep_interrupted(case(), "samples:right", "simulated", "SIGTERM", tmp_path) == path
    assert read_reproducer(path).headline == "deadlock"
    other = keep_interrupted(case("other"), "samples:right", "simulated", "SIGTERM", tmp_path)
    assert read_reproducer(other).headline == "SIGTERM ended the process while this case ran"


@pytest.mark.parametrize(
    "command",
    [
        ("adjointlab", "check", f"{ROOT}/tests/samples.py:right", "--check", "adjoint", "--cases", "2"),
        ("pytest", "-q", "-p", "no:cacheprovider", "--adjointlab-cases=2"),
    ],
    ids=["check", "pytest"],
)
def test_after_a_job_that_was_killed_every_front_end_makes_a_note_and_judges_as_ever(
    tmp_path: Path, command: tuple[str, ...]
):
    (tmp_path / "test_it.py").write_text(
        "import adjointlab as al\nfrom tests.samples import right\n"
        'TestIt = al.coherence_tests(right, checks=["adjoint"])\n'
    )
    fatal = structs.replace(case("fatal"), subject="Ring\x1b[2JShift")
    write_end(tmp_path / ".adjointlab" / NAME, Running.of(PROGRESS, fatal, 7))
    ended = run(*command, cwd=tmp_path)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stderr.count("adjointlab: note: an earlier job was ended") == 1
    assert "replay" in ended.stderr
    assert "\x1b" not in ended.stdout + ended.stderr


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}
