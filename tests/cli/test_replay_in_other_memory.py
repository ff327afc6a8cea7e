"""A failure that was stored where there was a device, on a machine without one."""

from __future__ import annotations

from pathlib import Path

import pytest

from adjointlab.core import arrays
from tests.running import run

pytestmark = [
    pytest.mark.mpi_skip,
    pytest.mark.skipif(arrays.installed("cupy"), reason="CuPy's memory can be used here"),
]

SUBJECT = """
import adjointlab as al

class Scaled(al.LinearOperator):
    def __init__(self, comm, layout):
        self.comm, self.domain, self.codomain = comm, al.Space(layout), al.Space(layout)

    def forward(self, x):
        return (3 * x,)

    def adjoint(self, y):
        return (2 * y,)

@al.subject(Scaled)
def cases(draw, ranks):
    return dict(layout=al.Layout((3,), (ranks,)))
"""

CHECK = ("adjointlab", "check", "scaled.py", "--check", "adjoint", "--cases", "3", "--ranks", "2")
OF_FILE = ("--subject", "scaled.py:cases")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A stored failure in memory of CuPy."""
    (tmp_path / "scaled.py").write_text(SUBJECT)
    assert run(*CHECK, cwd=tmp_path).returncode == 1
    (stored,) = tmp_path.glob(".adjointlab/*.json")
    text = stored.read_text()
    assert '"numpy"' in text
    stored.write_text(text.replace('"numpy"', '"cupy"'))
    return stored


def test_a_replay_says_that_there_is_no_such_memory_and_how_to_move_the_case(file: Path) -> None:
    here = file.parents[1]
    done = run("adjointlab", "replay", file, *OF_FILE, cwd=here)
    assert done.returncode == 2
    assert "the case is in the memory cupy, which cannot be used here (CuPy: " in done.stderr
    assert "; --device cpu moves it into the memory numpy" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    moved = run("adjointlab", "replay", file, *OF_FILE, "--device", "cpu", cwd=here)
    assert moved.returncode == 1, moved.stdout + moved.stderr


def test_a_check_passes_it_over_and_a_coherent_one_says_so(file: Path) -> None:
    again = run(*CHECK, cwd=file.parents[1])
    assert again.returncode == 1
    assert "adjoint is not the transpose of forward" in again.stdout
    assert "as this stored case fails, none was drawn" not in again.stdout
    for drawn in set(file.parent.iterdir()) - {file}:
        drawn.unlink()
    (file.parents[1] / "scaled.py").write_text(SUBJECT.replace("2 * y", "3 * y"))
    coherent = run(*CHECK, cwd=file.parents[1])
    assert coherent.returncode == 0, coherent.stdout
    assert (
        "a failure of Scaled (adjoint) is not replayed: it is in the memory cupy, which cannot be used here:"
        in coherent.stderr
    )


def test_a_run_on_the_host_alone_says_that_it_does_not_replay_what_is_elsewhere(file: Path) -> None:
    (file.parents[1] / "scaled.py").write_text(SUBJECT.replace("2 * y", "3 * y"))
    coherent = run(*CHECK, "--device", "cpu", cwd=file.parents[1])
    assert coherent.returncode == 0, coherent.stdout
    assert "is not replayed: it is in the memory cupy, and this run is on --device cpu:" in coherent.stderr


def test_a_case_moves_out_of_host_memory_that_there_is_not(file: Path) -> None:
    text = file.read_text().replace('"cupy"', '"torch"')
    file.write_text(text)
    subject = SUBJECT.replace("@al.subject(Scaled)", '@al.subject(Scaled, arrays=["numpy", "torch"])')
    here = file.parents[1]
    (here / "scaled.py").write_text("import sys\nsys.modules['torch'] = None\n" + subject)
    refused = run("adjointlab", "replay", file, *OF_FILE, cwd=here)
    assert refused.returncode == 2
    assert "(torch: not installed); --device cpu moves it into the memory numpy" in refused.stderr
    assert run("adjointlab", "replay", file, *OF_FILE, "--device", "cpu", cwd=here).returncode == 1


def test_a_placement_of_torch_is_no_error_where_there_is_no_torch(file: Path) -> None:
    here = file.parents[1]
    (here / "scaled.py").write_text(
        "import sys\nsys.modules['torch'] = None\n" + SUBJECT.replace("2 * y", "3 * y")
    )
    placement = '"p": {"$type": "placement", "kind": "Shard", "dim": 0},'
    text = file.read_text().replace('"parameters": {', '"parameters": {' + placement, 1)
    assert text != file.read_text()
    file.write_text(text)
    coherent = run(*CHECK, cwd=here)
    assert coherent.returncode == 0, coherent.stdout + coherent.stderr
    assert "this failure is not replayed: " in coherent.stderr
    assert "needs a torch with torch.distributed" in coherent.stderr
