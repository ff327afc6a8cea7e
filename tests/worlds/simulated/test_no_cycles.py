"""A run leaves no cycles behind: what it made goes when it is over, and does not wait for a garbage collection."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from adjointlab import MPI
from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.worlds.simulated.world import SimulatedWorld
from adjointlab.worlds.world import RankContext

pytestmark = pytest.mark.mpi_skip


@contextmanager
def _cycles_of_the_lab() -> Iterator[list[str]]:
    """Context in which no garbage is collected; its value then has the types of the lab among what a collection found."""
    found: list[str] = []
    gc.collect()
    gc.disable()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        types = (type(each) for each in gc.garbage)
        found += sorted({kind.__qualname__ for kind in types if kind.__module__.startswith("adjointlab.")})
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def _communicate(context: RankContext, _: object) -> object:
    comm = context.comm
    beside, mine, other = 1 - comm.rank, np.full(3, 1.0 + comm.rank), np.empty(3)
    for send in (comm.Isend, comm.Issend):
        requests = [comm.Irecv(other, beside), send(mine, beside)]
        MPI.Request.Waitall(requests)
    comm.Allreduce(MPI.IN_PLACE, other)
    request = comm.Iallreduce(MPI.IN_PLACE, other)
    request.Wait()
    part = comm.Create_group(comm.Get_group().Incl([comm.rank]))
    assert comm.Split(0).allgather(part.size) == [1, 1]
    return lambda: comm  # as the observation of a layer holds its module


def test_a_run_leaves_no_cycles_behind() -> None:
    world = SimulatedWorld(2)
    # Whether sends are buffered, and results are there as late as may be, depends on the seed.
    for seed in range(8):
        with _cycles_of_the_lab() as found:
            run = world.run(_communicate, seed=seed)
            assert run.completed, run
            del run
        assert found == []
    world.close()


def test_a_layout_is_in_no_cycle_with_what_it_has_found_of_its_ranks() -> None:
    with _cycles_of_the_lab() as found:
        layout = Layout((4,), Partition((2,)))
        assert (layout.window(1), layout.local_shapes[1], layout.local_shape(7)) == (((2, 4),), (2,), (0,))
        del layout
    assert found == []
