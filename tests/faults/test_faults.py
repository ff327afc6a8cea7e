"""Every fault that a process survives is found as what it is, in simulation and under mpiexec.

``python -m tests.faults.matrix`` runs the others too; tests/supervisor has jobs that crash.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from adjointlab.engine.search import Budget, investigate
from adjointlab.worlds.launch import is_launched
from adjointlab.worlds.simulated.world import SimulatedWorld
from adjointlab.worlds.watchdog import Watchdog
from adjointlab.worlds.world import World
from tests.faults.declaring import RuntimeFault
from tests.faults.operators import FAULTS, waits_for_uneven_cuts

SURVIVED = [fault for fault in FAULTS if not fault.is_fatal]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    if is_launched():
        from adjointlab.worlds.mpi.world import MPIWorld

        yield MPIWorld(patience=0.5, watchdog=Watchdog(1.5))
    else:
        yield SimulatedWorld(4, watchdog=Watchdog(1.0))


@pytest.mark.parametrize("fault", SURVIVED, ids=[fault.name for fault in SURVIVED])
def test_a_fault_is_found_as_what_it_is_on_as_few_ranks_as_show_it(world: World, fault: RuntimeFault) -> None:
    kinds = fault.simulated if world.name == "simulated" else fault.mpi
    if world.name == "mpi" and world.ranks != 3:
        pytest.skip("on three ranks is enough")
    if not kinds or fault.ranks > world.ranks:
        pytest.skip("cannot show in this world")
    schedules = 6 if fault.options and world.name == "simulated" else 1
    report = investigate(world, fault.subject, fault.check, Budget(seed=1, schedules=schedules))

    assert report.verdict.kind in kinds, str(report.verdict)
    assert report.case is not None
    assert report.case.ranks == fault.ranks or not fault.ranks
    assert report.verdict.lines


def test_a_deadlock_of_uneven_cuts_is_found_shrunk_and_explained(world: World) -> None:
    if world.ranks < 3:
        pytest.skip("it takes three ranks")
    report = investigate(world, waits_for_uneven_cuts, "adjoint")

    assert report.verdict.kind == "deadlock", str(report.verdict)
    assert report.case is not None
    assert report.case.ranks == 3
    layout = report.case.parameters["layout"]
    assert len({layout.local_shape(rank) for rank in range(3)}) > 1
    text = str(report.verdict)
    assert "cycle: rank 0 → rank 2 → rank 1 → rank 0" in text
    for rank, other in ((0, 2), (1, 0), (2, 1)):
        assert (
            f"rank {rank} in Recv(source={other}, tag=5) at {__file__.replace('test_faults', 'operators')}"
            in text
        )
