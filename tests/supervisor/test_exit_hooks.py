"""The files that the exit hooks of a process leave."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from adjointlab.supervisor.exit_hooks import record_exit_code
from adjointlab.supervisor.rank_files import RankFiles
from adjointlab.worlds.launch import LAUNCHERS, launched_rank

PROGRAM = """
import os, sys
from pathlib import Path

from adjointlab.worlds.launch import LAUNCHERS
from adjointlab.supervisor.exit_hooks import install_exit_hooks

install_exit_hooks(Path('.'))
"""


def test_an_orderly_end_a_call_of_exit_and_a_crash_are_told_apart(tmp_path: Path) -> None:
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": root, "ADJOINTLAB_SUPERVISED": str(tmp_path)}
    for launcher in LAUNCHERS:
        environment.pop(launcher.rank, None)

    def run(rest: str) -> int:
        for path in tmp_path.glob("rank-*"):
            path.unlink()
        command = [sys.executable, "-c", PROGRAM + rest]
        return subprocess.run(command, cwd=tmp_path, env=environment, check=False, timeout=60).returncode

    run("sys.exit(3)")
    assert (tmp_path / "rank-0.finished").exists()
    run("if os.fork() == 0:\n    os._exit(0)\nos.wait()\nos._exit(0)")
    assert not (tmp_path / "rank-0.finished").exists()
    assert (tmp_path / "rank-0.exit").read_text().startswith("os._exit(0)\n")
    run("import ctypes; ctypes.string_at(0)")
    assert "Segmentation fault" in (tmp_path / "rank-0.stacks").read_text()
    # Batch systems send it before a job's time is over: it ends a program that does not handle it, as it does without hooks.
    assert run("import signal; signal.raise_signal(signal.SIGUSR1)") == -signal.SIGUSR1


@pytest.mark.parametrize(
    ("status", "finished", "code"),
    [(-signal.SIGKILL, "1", 1), (-signal.SIGSEGV, "1", None), (-signal.SIGKILL, "", None)],
)
def test_a_rank_that_is_killed_after_its_work_has_ended_in_order(
    tmp_path: Path, status: int, finished: str, code: int | None
) -> None:
    files = RankFiles(tmp_path, 0)
    files.path("finished").write_text(finished)
    files.path("ended").write_text(json.dumps({"status": status, "regular": False, "at": 1.0}))
    end = files.last_end
    assert end is not None
    assert (end.status, end.regular) == (status if code is None else code, code is not None)


@pytest.mark.parametrize("is_child", [True, False])
def test_an_exit_code_is_settled_by_the_process_of_the_rank_alone(tmp_path: Path, is_child: bool) -> None:
    files = RankFiles(tmp_path, launched_rank())
    process = {"pid": os.getpid() if is_child else os.getppid(), "host": os.uname().nodename}
    files.path("pid").write_text(json.dumps(process))
    record_exit_code(tmp_path, 0)
    # A command of a script may be followed by others, which decide how the script ends.
    assert files.text("finished") == ("0" if is_child else "")
