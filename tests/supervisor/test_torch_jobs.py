"""A supervised job of torchrun: a rank dies, its case is kept and made smaller, and the job goes on with the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from adjointlab.exit_codes import ExitCode
from adjointlab.supervisor.launcher import find_program
from tests.running import IS_OPEN_MPI, run

pytestmark = [
    pytest.mark.skipif(find_program("torchrun") is None, reason="needs torchrun: install the extra `torch`"),
    pytest.mark.skipif(IS_OPEN_MPI, reason="has nothing to do with MPI: seen with the other library"),
]

SUBJECTS = """
import os, sys
import torch, torch.distributed as dist
import adjointlab as al

def summed(x):
    assert "mpi4py.MPI" not in sys.modules
    total = x.clone()
    dist.all_reduce(total)
    return total

def dying(x):
    if dist.get_rank() == 1:
        os._exit(0)
    return summed(x)

def spaces(draw, ranks):
    copies = al.Layout((draw(al.strategies.shapes(1))[0],), al.Partition((ranks,)), axes=(None,))
    return dict(
        domain=al.Space(copies, types=("varying",)), codomain=al.Space(copies, types=("varying",))
    )

@al.subject.pair(summed, summed, process_group=True, arrays=("torch",), name="Good")
def good(draw, ranks): return spaces(draw, ranks)

@al.subject.pair(dying, summed, process_group=True, arrays=("torch",), name="Dies")
def dies(draw, ranks): return spaces(draw, ranks)

@al.subject.pair(lambda comm, x: x, lambda comm, x: x, name="Needs")
def needs(draw, ranks): return spaces(draw, ranks)
"""


def test_a_death_is_kept_and_the_rest_is_checked(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text(SUBJECTS)
    subjects = [f"code.py:{name}" for name in ("dies", "needs", "good")]
    checked = run(
        *("adjointlab", "run", "--launcher", "torchrun", "-n", "2", "--shrinking", "0", "--"),
        *("adjointlab", "check", *subjects, "--check", "adjoint", "--cases", "5"),
        cwd=tmp_path,
    )
    said = checked.stdout + checked.stderr
    assert checked.returncode == ExitCode.UNJUDGED, said
    assert "Dies: a rank left by os._exit(0)" in checked.stdout, said
    assert "torchrun --nproc-per-node 2 -m adjointlab replay" in checked.stdout, said
    assert checked.stdout.count("ranks of torchrun do not have") == 3, (
        said
    )  # the sentence, the row, and the recapitulation
    assert "1 of 3 checks judged, 1 coherent" in checked.stdout, said
    assert list((tmp_path / ".adjointlab").glob("Dies-adjoint-*.json")), said
