"""The explanation of a job's end, from what its ranks and its launcher have left."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adjointlab.supervisor.exit_report import exit_report, stack_of
from adjointlab.supervisor.job import JobEnd

MPICH_ABORT = (
    "Abort(7) on node 1 (rank 1 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 7) - process 1\n"
)
OPEN_MPI_ABORT = (
    "MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD\n  Proc: [[1,1],1]\n  Errorcode: 7\n"
)

FATAL = """Fatal Python error: Segmentation fault

Current thread 0x00007f (most recent call first):
  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at
  File "/home/me/shift.py", line 7 in forward
  File "{own}/operator.py", line 210 in apply_forward
  File "/home/me/main.py", line 1 in <module>
"""


def ended(folder: Path, rank: int, status: int, at: float, regular: bool = False, asked_by: int = 0) -> None:
    end = {"status": status, "regular": regular, "at": at, "asked_by": asked_by}
    (folder / f"rank-{rank}.ended").write_text(json.dumps(end))


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (-11, "a rank died of a segmentation fault (SIGSEGV)"),
        (-9, "a rank was killed (SIGKILL"),
        (-6, "a rank died by abort() (SIGABRT)"),
        (-30, "a rank was ended by a signal (SIGPWR)"),
        (4, "a rank left with exit code 4, without running exit handlers"),
    ],
)
def test_the_rank_that_ended_first_is_named_and_not_those_that_ended_with_it(
    tmp_path: Path, status: int, kind: str
) -> None:
    ended(tmp_path, 0, -15, at=2.0)
    ended(tmp_path, 1, status, at=1.0)
    ended(tmp_path, 2, 0, at=0.5, regular=True)
    found = exit_report(tmp_path, 4, JobEnd(1, False, ""))

    assert found.kind.startswith(kind)
    assert list(found.ranks) == [1]


OUR_ABORT = "adjointlab: rank 1 called Abort(7) at shift.py:3\n"


@pytest.mark.parametrize("stderr", [MPICH_ABORT, OPEN_MPI_ABORT, OUR_ABORT])
def test_an_abort_is_known_by_what_the_launcher_says(tmp_path: Path, stderr: str) -> None:
    found = exit_report(tmp_path, 2, JobEnd(7, False, stderr))

    assert found.kind == "a rank called MPI_Abort(7)"
    assert list(found.ranks) == [1]


def test_a_stack_ends_where_the_lab_begins(tmp_path: Path) -> None:
    own = Path(stack_of.__code__.co_filename).parents[1]
    ended(tmp_path, 0, -11, at=1.0)
    (tmp_path / "rank-0.stacks").write_text(FATAL.format(own=own))
    found = exit_report(tmp_path, 1, JobEnd(139, False, ""))

    assert found.ranks[0].endswith("at /home/me/shift.py:7 in forward")
    assert dict(found.lines)["stack of rank 0"].splitlines() == [
        "/usr/lib/python3.11/ctypes/__init__.py:519 in string_at",
        "/home/me/shift.py:7 in forward",
    ]


def test_a_recorded_exit_names_its_caller(tmp_path: Path) -> None:
    ended(tmp_path, 0, 0, at=1.0)
    (tmp_path / "rank-0.exit").write_text(
        'os._exit(0)\n  File "/home/me/main.py", line 9, in run\n    f()\n  File "/home/me/shift.py", line 3, in f\n    x\n'
    )

    assert (
        exit_report(tmp_path, 1, JobEnd(70, False, "")).ranks[0]
        == "it left by os._exit(0) at /home/me/shift.py:3 in f"
    )


@pytest.mark.parametrize("status", [-15, -2, -1])
def test_a_signal_that_the_launcher_has_sent_is_no_failure_and_any_other_is(
    tmp_path: Path, status: int
) -> None:
    ended(tmp_path, 0, status, at=1.0, asked_by=-status)
    assert exit_report(tmp_path, 1, JobEnd(143, False, "")).signal == -status

    ended(tmp_path, 0, status, at=1.0)
    assert "was ended by a signal (SIG" in exit_report(tmp_path, 1, JobEnd(143, False, "")).kind


def test_without_evidence_from_a_rank_the_launchers_last_output_is_shown(tmp_path: Path) -> None:
    found = exit_report(tmp_path, 2, JobEnd(255, False, "no such host\n"))

    assert found.kind == "the launcher ended the job with exit code 255"
    assert dict(found.lines)["last output"] == "no such host"
