"""A job that died leaves no shared memory, and takes none of others'."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from adjointlab.supervisor.shared_memory import SharedMemory
from tests.supervisor.jobs import ADJOINT, supervised

pytestmark = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux's /proc")

MAPS = """
import mmap, sys
for name in sys.argv[1:]:
    with open(name, "a+b") as file:
        file.truncate(4096)
        globals()[name] = mmap.mmap(file.fileno(), 4096)
print(flush=True)
sys.stdin.read()
"""


def mapping(*paths: Path) -> subprocess.Popen[str]:
    """A process that has mapped files, and made those that were not there."""
    command = [sys.executable, "-c", MAPS, *map(str, paths)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_what_a_dead_job_has_made_and_nobody_uses_is_removed_and_nothing_else(tmp_path: Path) -> None:
    names = ("mpich_shm_own", "mpich_shm_before", "mpich_shm_shared", "mpich_shm_new_owner", "users_own")
    own, before, shared, new_owner, users = (tmp_path / name for name in names)
    foreign = tmp_path / "mpich_shm_foreign"
    before.touch()
    memory = SharedMemory(tmp_path)
    job, other = mapping(own, before, shared, new_owner, users), mapping(shared, foreign)
    memory.look([job.pid])
    job.kill()
    job.communicate()
    new_owner.rename(tmp_path / "gone")
    new_owner.touch()
    memory.clear()

    assert not own.exists()
    assert all(path.exists() for path in (before, shared, new_owner, users, foreign))
    other.communicate()


ABORTS = """
from pathlib import Path
from tests.faults.operators import Shift, _subject


class Aborts(Shift):
    def forward(self, x):
        if self.size > 1:
            mapped = [line.split()[-1] for line in open("/proc/self/maps") if "/dev/shm/mpich_shm" in line]
            with (Path(__file__).parent / "mapped").open("a") as file:
                file.writelines(name + "\\n" for name in mapped)
            self.comm.Abort(5)
        return super().forward(x)


aborts = _subject(Aborts)
"""


@pytest.mark.starts_mpiexec
def test_a_job_that_died_leaves_no_shared_memory(tmp_path: Path) -> None:
    (tmp_path / "aborting.py").write_text(ABORTS)
    command = ("adjointlab", "check", "aborting.py:aborts", *ADJOINT)
    ended = supervised("-n", "2", "--shrinking", "1", "--", *command, cwd=tmp_path)

    assert ended.returncode == 3, ended.stderr
    mapped = (tmp_path / "mapped").read_text().splitlines()
    assert [name for name in mapped if Path(name).exists()] == []
