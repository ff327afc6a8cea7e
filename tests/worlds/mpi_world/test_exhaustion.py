"""A job that has left too many communicators behind says so while it can still end in order.

``mpiexec -n 3 python -m pytest tests/worlds/mpi_world/test_exhaustion.py``
"""

from __future__ import annotations

import pytest

from adjointlab.worlds.launch import is_launched
from adjointlab.worlds.world import Exhausted

pytestmark = pytest.mark.skipif(
    not is_launched(), reason="processes of MPI are needed: run under mpiexec -n 3"
)

LIMIT = 160


@pytest.fixture
def world():
    from adjointlab.worlds.mpi.world import MPIWorld

    world = MPIWorld(patience=5.0, communicators=LIMIT)
    if world.ranks < 2:
        pytest.skip("two processes are needed: run under mpiexec -n 3")
    yield world
    world.close()


def fail(context, what):
    if what == "good":
        return context.comm.Dup().allreduce(1)
    if context.rank == 1:
        raise ValueError
    context.comm.Barrier()


def test_exhaustion_is_reported_in_time_and_on_all_ranks(world):
    said = []

    def conduct(run):
        while True:
            said.append(world.is_exhausted)
            run("bad", world.ranks)

    with pytest.raises(Exhausted, match=r"hardly any communicators left: failed cases have leaked \d+"):
        world.lead(fail, conduct)
    if world.is_leader:
        # A hundred cases more could be run between the warning and the end.
        assert not said[0]
        assert said[-1]
        assert said.count(True) > 50
        assert len(said) < LIMIT


def test_good_runs_use_nothing_up(world):
    def conduct(run):
        return all(run("good", world.ranks).completed for _ in range(2 * LIMIT)) and not world.is_exhausted

    assert world.lead(fail, conduct)
