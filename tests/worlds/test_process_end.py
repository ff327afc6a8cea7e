"""The end of a process is neither held up nor given another exit code by threads, processes and hooks of user code."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from adjointlab.exit_codes import ExitCode
from adjointlab.supervisor import rank
from adjointlab.worlds.launch import LAUNCHERS
from tests.running import run_python

pytestmark = pytest.mark.mpi_skip

ENDING = """
import atexit, multiprocessing, os, sys, time
from adjointlab.worlds import process_end
from adjointlab.worlds.exit_guard import earn, install_exit_guard

install_exit_guard()
process_end._PATIENCE = 0.2
atexit.register(print, "the first hook has run")
"""
END = """
earn(1, is_final=True)
process_end.end_despite_leftovers(1)
raise SystemExit(1)
"""
HOOKS = {
    "sleeps": (
        "atexit.register(time.sleep, 1000)",
        "a hook for the end of the process (atexit) does not return",
    ),
    "ends the process": ("atexit.register(os._exit, 0)", "wanted to end the process by os._exit(0)"),
    "leaves a process": (
        "multiprocessing.get_context('fork').Process(target=time.sleep, args=(1000,)).start()",
        "of multiprocessing was left behind and does not end; it is killed",
    ),
}


@pytest.mark.parametrize("hook", HOOKS)
def test_the_process_ends_with_its_code_after_all_hooks(hook: str, tmp_path: Path) -> None:
    code, said = HOOKS[hook]
    ended = run_python("-c", f"{ENDING}{code}\n{END}", cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (1, "the first hook has run\n"), ended.stderr
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr


def test_user_code_that_closes_standard_output_and_ends_the_process_is_named_all_the_same(
    tmp_path: Path,
) -> None:
    program = (
        "import os, sys\nfrom adjointlab.worlds.exit_guard import install_exit_guard\ninstall_exit_guard()\n"
    )
    ended = run_python("-c", f"{program}sys.stdout.close()\nos._exit(0)", cwd=tmp_path)
    assert ended.returncode == ExitCode.UNJUDGED
    assert "user code ended the process by os._exit(0) at" in ended.stderr


GUARDED = """
import ctypes, sys
from adjointlab.worlds.exit_of_c import allow_exit_of_c, guard_exit_of_c

guard_exit_of_c()
"""


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("sys.exit(5)", 5),
        ("allow_exit_of_c(); ctypes.CDLL(None).exit(5)", 5),
        ("ctypes.CDLL(None).exit(0)", -signal.SIGVTALRM),
    ],
)
def test_exit_of_c_is_told_from_an_end_of_python(end: str, code: int, tmp_path: Path) -> None:
    ended = run_python("-c", GUARDED + end, cwd=tmp_path)
    assert ended.returncode == code, ended.stderr
    assert ("line 6 in <module>" in ended.stderr) == (code < 0)


def test_a_supervised_command_has_the_code_that_it_had_settled_on(tmp_path: Path) -> None:
    files = tmp_path / "rank-0"
    program = (
        "import os, pathlib, sys\n"
        f"pathlib.Path({str(files) + '.hooked'!r}).touch()\n"
        f"pathlib.Path({str(files) + '.finished'!r}).write_text('1')\n"
        "os._exit(0)"
    )
    command = [sys.executable, "-I", "-S", rank.__file__, tmp_path, sys.executable, "-c", program]
    environment = {launcher.rank: "" for launcher in LAUNCHERS}
    subprocess.run(command, env=environment, check=False, timeout=60)
    ended = json.loads((tmp_path / "rank-0.ended").read_text())
    assert (ended["status"], ended["regular"]) == (1, True)
