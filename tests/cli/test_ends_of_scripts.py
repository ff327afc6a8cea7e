"""A script that is asked to end ends its case too, and says nothing of the failure."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.running import ROOT

pytestmark = pytest.mark.mpi_skip

PROGRAM = """
import os, sys, time
from pathlib import Path
from adjointlab.cli.reproduce import _code_of_child

def case():
    print(os.getpid(), flush=True)
    time.sleep(100)
    return 0

sys.exit(_code_of_child(case, Path("none.json")))
"""


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_script_that_is_terminated_ends_its_case() -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM], cwd=ROOT, stdout=subprocess.PIPE) as script:
        assert script.stdout is not None
        case = int(script.stdout.readline())
        time.sleep(0.1)  # the parent may not have come to its handlers
        script.send_signal(signal.SIGTERM)
        assert script.wait(60) == 128 + signal.SIGTERM
        assert not is_alive(case)


def test_the_case_of_a_script_that_is_killed_ends_with_it() -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM], cwd=ROOT, stdout=subprocess.PIPE) as script:
        assert script.stdout is not None
        case = int(script.stdout.readline())
        script.kill()
        until = time.monotonic() + 30
        while is_alive(case) and time.monotonic() < until:
            time.sleep(0.01)
        assert not is_alive(case)
