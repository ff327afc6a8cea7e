"""A failure that was found under a launcher and is not seen on simulated ranks is not taken for one that is fixed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from adjointlab.worlds.simulated.world import SimulatedWorld
from adjointlab.worlds.watchdog import Watchdog
from tests.cli.conftest import Ended

pytestmark = pytest.mark.mpi_skip

SUBJECT = """
import os
import adjointlab as al

def forward(comm, x):
    return x.copy()

def adjoint(comm, y):
    return y * (2 if "WRONG" in os.environ else 1)

@al.subject.pair(forward, adjoint, name="Copies")
def copies(draw, ranks):
    space = al.Space(al.Layout.cut((3,), al.Partition((1,)), [[0, 3]]))
    return dict(domain=space, codomain=space)
"""


@pytest.fixture
def stored(here: Callable[..., Ended], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A failure, which is seen no more."""
    monkeypatch.setenv("WRONG", "1")
    (tmp_path / "copies.py").write_text(SUBJECT)
    check = ("check", "copies.py", "--check", "adjoint", "--cases", "3", "--ranks", "2")
    assert here(*check).returncode == 1
    monkeypatch.delenv("WRONG")
    (file,) = (tmp_path / ".adjointlab").glob("*.json")
    return file.relative_to(tmp_path)


def found_under_torchrun(file: Path) -> None:
    file.write_text(file.read_text().replace('"world": "simulated"', '"world": "torch"'))


def test_a_replay_in_another_world_says_so_and_is_no_success(
    here: Callable[..., Ended], stored: Path
) -> None:
    command = ("replay", str(stored), "--subject", "copies.py:copies")
    fixed = here(*command)
    assert fixed.returncode == 0
    assert "coherent on this case now, 1 simulated rank\n" in fixed.stdout

    found_under_torchrun(stored)
    unseen = here(*command)
    assert unseen.returncode == 3
    assert "found under torchrun is not seen on 1 simulated rank\n" in unseen.stdout
    assert "torchrun --nproc-per-node 1 -m adjointlab replay" in unseen.stdout


def test_a_replay_where_its_subject_cannot_run_says_so(
    here: Callable[..., Ended], stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SimulatedWorld, "has_communicator", False)  # as under torchrun
    refused = here("replay", str(stored), "--subject", "copies.py:copies")
    assert (refused.returncode, refused.stderr) == (3, "")
    assert refused.stdout.startswith(
        "Copies: adjoint could not be judged: it takes a communicator, which ranks of torchrun"
    )


def test_a_check_says_that_a_failure_of_another_world_is_not_seen(
    here: Callable[..., Ended], stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(Watchdog, "say", lambda self, text: said.append(text))
    command = ("check", "copies.py", "--check", "adjoint", "--cases", "3", "--ranks", "2", "--jobs", "1")
    assert here(*command).returncode == 0
    assert not said

    found_under_torchrun(stored)
    assert here(*command).returncode == 0
    (note,) = said
    assert "found under torchrun was replayed and is not seen under simulation" in note
    assert str(stored) in note
