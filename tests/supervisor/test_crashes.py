"""A process crashes or gets stuck: its case is recorded as a failure of its subject, and the others are judged too."""

from __future__ import annotations

from pathlib import Path

from tests.supervisor.jobs import ADJOINT, FAULTS, kinds, left_in, stored, supervised


def test_a_crash_is_the_failure_of_its_subject_and_the_others_are_judged_too(tmp_path: Path) -> None:
    subjects = [f"{FAULTS}:{name}" for name in ("raises_in_adjoint", "reads_nowhere", "receives_first")]
    ended = supervised("--", "adjointlab", "check", *subjects, *ADJOINT, cwd=tmp_path)

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
