"""A sample of the fault matrix, of all topics: what a process survives is found as what it is.

On simulated ranks; under mpiexec the first topic alone. ``python -m tests.faults.matrix`` runs all rows, as users would.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from adjointlab.engine.discovery import found_as
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget
from adjointlab.session import run_check
from adjointlab.worlds.launch import is_launched
from adjointlab.worlds.simulated.world import SimulatedWorld
from adjointlab.worlds.watchdog import Watchdog
from adjointlab.worlds.world import World
from tests.faults.all_rows import TOPICS
from tests.faults.declaring import COHERENT, RuntimeFault
from tests.faults.matrix import SIMULATED, Page, Rows, read, tables
from tests.faults.operators import FAULTS, waits_for_uneven_cuts
from tests.faults.raising import INCOMPLETE

EVERY = 28
"""One row in so many of a topic is run here; of the first topic, all."""


def _sample() -> list[RuntimeFault]:
    rows = Page.load().rows
    sample = [fault for fault in FAULTS if not fault.is_fatal]
    for faults in list(TOPICS.values())[1:]:
        survived = [
            each for each in faults if not each.is_fatal and each.simulated not in ((), COHERENT, INCOMPLETE)
        ]
        # A bold cell is a fault of the lab that is known.
        survived = [
            fault for fault in survived if not rows.get(fault.name, {}).get(SIMULATED, "**").startswith("**")
        ]
        sample += [] if is_launched() else survived[::EVERY]
    return sample


SURVIVED = _sample()


def test_the_page_has_all_rows_and_reads_back() -> None:
    rows = Page.load().rows
    assert set(rows) == {fault.name for faults in TOPICS.values() for fault in faults}
    some: Rows = {fault.name: {SIMULATED: f"found {fault.name}; 1 s"} for fault in FAULTS}
    read_back = read(tables(some))
    assert {name: read_back[name] for name in some} == some


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    if is_launched():
        from adjointlab.worlds.mpi.world import MPIWorld

        yield MPIWorld(patience=0.5, watchdog=Watchdog(1.5))
    else:
        yield SimulatedWorld(4, watchdog=Watchdog(1.0))


@pytest.mark.parametrize("fault", SURVIVED, ids=[fault.name for fault in SURVIVED])
def test_a_fault_is_found_as_what_it_is_on_as_few_ranks_as_show_it(
    world: World, fault: RuntimeFault, tmp_path: Path
) -> None:
    kinds = fault.simulated if world.name == "simulated" else fault.mpi
    if world.name == "mpi" and world.ranks != 3:
        pytest.skip("on three ranks is enough")
    if not kinds or fault.ranks > world.ranks:
        pytest.skip("cannot show in this world")
    schedules = 6 if fault.options and world.name == "simulated" else 1
    assert fault.subject is not None
    budget = Budget(seed=1, schedules=schedules, shrinking=4.0)
    report = run_check(world, found_as(fault.subject), fault.check, budget, tmp_path).result

    assert (report.verdict.kind or report.status.value) in kinds, str(report.verdict)
    assert fault.ranks == 0 or (report.case is not None and report.case.ranks == fault.ranks)
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
