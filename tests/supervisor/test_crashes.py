"""A process crashes or gets stuck: its case is recorded as a failure of its subject, and the others are judged too."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from adjointlab.store.job_log import Death, JobLog
from adjointlab.supervisor.supervise import SupervisedCommand, _Supervisor
from tests.supervisor.jobs import ADJOINT, FAULTS, kinds, left_in, stored, supervised


def test_a_crash_is_the_failure_of_its_subject_and_the_others_are_judged_too(tmp_path: Path) -> None:
    subjects = [f"{FAULTS}:{name}" for name in ("raises_in_adjoint", "reads_nowhere", "receives_first")]
    ended = supervised("--shrinking", "8", "--", "adjointlab", "check", *subjects, *ADJOINT, cwd=tmp_path)

    assert ended.returncode == 3, ended.stderr
    assert kinds(tmp_path) == {
        "RaisesInAdjoint": "raised RuntimeError",
        "ReadsNowhere": "the process of the ranks died of a segmentation fault (SIGSEGV)",
        "ReceivesFirst": "deadlock",
    }
    assert "found after" in ended.stdout
    assert "2 ranks)" in ended.stdout
    assert "operators.py" in ended.stdout.partition("segmentation fault (SIGSEGV) at")[2].splitlines()[0]
    assert stored(tmp_path) == [
        f"{name}.{kind}"
        for name in ("RaisesInAdjoint", "ReadsNowhere", "ReceivesFirst")
        for kind in ("json", "py")
    ]
    assert "shrunk to 2 ranks" in ended.stderr
    assert left_in(tmp_path) == []


def test_without_time_to_shrink_a_crash_is_stored_as_it_was_found(tmp_path: Path) -> None:
    subject = f"{FAULTS}:leaves"
    ended = supervised("--shrinking", "0", "--", "adjointlab", "check", subject, *ADJOINT, cwd=tmp_path)

    assert ended.returncode == 3, ended.stderr
    assert "2 jobs, 1 of which ended before its time" in ended.stderr
    assert "left by os._exit(0) at " in ended.stdout
    assert stored(tmp_path) == ["Leaves.json", "Leaves.py"]


def test_a_stored_case_that_crashes_again_stays_the_only_one(tmp_path: Path) -> None:
    command = ("--shrinking", "0", "--", "adjointlab", "check", f"{FAULTS}:leaves", *ADJOINT)
    supervised(*command, cwd=tmp_path)
    ended = supervised(*command, cwd=tmp_path)

    assert ended.returncode == 3, ended.stderr
    assert "this stored case still fails" in ended.stdout
    # It was replayed in other memory too, which crashes as well.
    assert "2 jobs, 1 of which ended before its time" not in ended.stderr
    assert stored(tmp_path) == ["Leaves.json", "Leaves.py"]


def test_a_job_that_is_stuck_is_ended_and_its_stacks_are_shown(tmp_path: Path) -> None:
    subject = f"{FAULTS}:sleeps"
    limits = ("--patience", "1.5", "--shrinking", "0")
    ended = supervised(
        *limits, "--", "adjointlab", "check", subject, "--watchdog", "1000", *ADJOINT, cwd=tmp_path
    )

    assert ended.returncode == 3, ended.stderr
    assert kinds(tmp_path) == {"Sleeps": "the job got stuck"}
    assert "operators.py" in ended.stderr.partition("stack")[2]
    assert left_in(tmp_path) == []


def died_at(path: Path, failures: Path) -> tuple[_Supervisor, list[str]]:
    """A supervisor, with its log, of a job that has died at the case in `path`, which belongs in the folder `failures`."""
    command = SupervisedCommand(("true",), 1, None, 60.0, 60.0, 1, path.parent)
    lines = list[str]()
    job_log = JobLog(path.parent)
    supervisor = _Supervisor(command, job_log, lines.append)
    job_log.record_death(Death("died", check_id="subject", reproducer=str(path), folder=str(failures)))
    return supervisor, lines


def test_a_case_is_stored_in_a_folder_of_another_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = os.replace

    def within_one_folder(source: Path, target: Path) -> None:
        if source.parent != target.parent:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        replace(source, target)

    monkeypatch.setattr(os, "replace", within_one_folder)
    case, failures = tmp_path / "case.json", tmp_path / "failures"
    case.write_bytes(b"{}")
    supervisor, lines = died_at(case, failures)
    assert supervisor.store_unshrunk_cases()
    assert (failures / "case.json").read_bytes() == b"{}"
    assert lines == [f"  subject: not shrunk; {failures / 'case.json'}"]


@pytest.mark.parametrize("is_there", [True, False])
def test_a_case_that_cannot_be_stored_is_left_where_it_is_and_named(tmp_path: Path, is_there: bool) -> None:
    case, failures = tmp_path / "case.json", tmp_path / "failures"
    if is_there:
        case.write_bytes(b"{}")
        failures.touch()
    supervisor, lines = died_at(case, failures)
    assert not supervisor.store_unshrunk_cases()
    assert case.exists() == is_there
    assert str(case) in lines[0]
