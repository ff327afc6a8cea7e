"""Verdicts are printed where standard output led when the command began, whatever user code does to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.running import run_python

pytestmark = pytest.mark.mpi_skip

PROGRAM = """
import io, os, sys
from adjointlab.cli.held_streams import HeldStreams
from adjointlab.cli.output import Output

with HeldStreams():
    print("before")
    Output().line("first")
    {}
    Output().line("verdict")
"""
ACTIONS = {
    "closed": "sys.stdout.close()",
    "replaced": "sys.stdout = io.StringIO()",
    "none": "sys.stdout = None",
    "hostile": "sys.stdout = object()",
    "descriptor closed": "os.close(1)",
    "descriptor of another file": "os.dup2(os.open('other', os.O_CREAT | os.O_WRONLY), 1)",
}


@pytest.mark.parametrize("action", ACTIONS)
def test_what_is_printed_arrives(action: str, tmp_path: Path) -> None:
    ended = run_python("-c", PROGRAM.format(ACTIONS[action]), cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (0, "before\nfirst\nverdict\n"), ended.stderr
    other = tmp_path / "other"
    assert not other.exists() or not other.read_bytes()


def test_a_file_that_has_got_the_number_of_the_copy_is_not_written_to(tmp_path: Path) -> None:
    taken = "os.closerange(3, 4096); [os.open('other', os.O_CREAT | os.O_WRONLY) for _ in range(600)]"
    ended = run_python("-c", PROGRAM.format(taken), cwd=tmp_path)
    assert ended.stdout == "before\nfirst\nverdict\n", ended.stderr
    assert not (tmp_path / "other").read_bytes()
