"""The choices that MPI leaves to the machine and the library, and that a schedule makes: the nodes of ranks, and their order where they may be reordered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from adjointlab import MPI
from adjointlab.worlds.schedule import Schedule
from adjointlab.worlds.simulated.world import SimulatedWorld

pytestmark = pytest.mark.mpi_skip

WORLD = SimulatedWorld(4)
SEEDS = range(1, 40)


def values(program: Callable[[Any], Any], schedule: Schedule) -> tuple[Any, ...]:
    run = WORLD.run(lambda context, _: program(context.comm), None, 4, schedule=schedule)
    assert run.completed, (run.findings, run.outcomes)
    return run.values


def of_node(comm: Any) -> tuple[int, ...]:
    """The ranks on this rank's node."""
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    ranks = tuple(node.allgather(comm.rank))
    node.Free()
    return ranks


def reordered(comm: Any, *, reorder: bool = True) -> tuple[int, ...]:
    """The ranks of a line in their new order."""
    line = comm.Create_cart([4], reorder=reorder)
    ranks = tuple(line.allgather(comm.rank))
    line.Free()
    return ranks


def test_where_ranks_run_in_turn_they_share_one_node_and_keep_their_order() -> None:
    assert set(values(of_node, Schedule())) == {(0, 1, 2, 3)}
    assert set(values(reordered, Schedule())) == {(0, 1, 2, 3)}


def test_other_schedules_have_other_nodes_of_any_size_and_any_ranks() -> None:
    seen = [values(of_node, Schedule.of(seed)) for seed in SEEDS]
    assert all(rank in ranks for nodes in seen for rank, ranks in enumerate(nodes))
    assert all(nodes[other] == ranks for nodes in seen for ranks in nodes for other in ranks)
    counts = {len(set(nodes)) for nodes in seen}
    assert {1, 2, 3} <= counts
    assert any(ranks == (0, 2) for nodes in seen for ranks in nodes)  # not only neighbours


def test_ranks_that_may_be_reordered_are_in_some_schedules_and_others_never() -> None:
    orders = {values(reordered, Schedule.of(seed)) for seed in SEEDS}
    assert all(len(set(order)) == 1 and sorted(order[0]) == [0, 1, 2, 3] for order in orders)
    assert len(orders) > 5
    assert ((0, 1, 2, 3),) * 4 in orders
    kept = {values(lambda comm: reordered(comm, reorder=False), Schedule.of(seed)) for seed in SEEDS}
    assert kept == {((0, 1, 2, 3),) * 4}


def test_a_run_has_one_machine_however_often_it_is_asked() -> None:
    def twice(comm: Any) -> bool:
        half = comm.Split(comm.rank // 2)
        of_half = {comm.rank // 2 * 2 + rank for rank in of_node(half)}
        return (
            of_node(comm) == of_node(comm)
            and reordered(comm) == reordered(comm)
            and of_half == set(of_node(comm)) & {comm.rank // 2 * 2, comm.rank // 2 * 2 + 1}
        )

    assert all(all(values(twice, Schedule.of(seed))) for seed in SEEDS)


def test_a_recorded_machine_is_replayed() -> None:
    def both(comm: Any) -> Any:
        return of_node(comm), reordered(comm)

    for seed in SEEDS:
        schedule = Schedule.of(seed)
        run = WORLD.run(lambda context, _: both(context.comm), None, 4, schedule=schedule)
        again = Schedule("random", 7, decisions=run.decisions)
        assert values(both, again) == run.values


def test_each_rank_of_a_reordered_graph_has_the_neighbours_of_its_new_rank() -> None:
    def ring(comm: Any) -> bool:
        left, right = (comm.rank - 1) % 4, (comm.rank + 1) % 4
        adjacent = comm.Create_dist_graph_adjacent([left], [right], reorder=True)
        named = comm.Create_dist_graph([comm.rank], [1], [right], reorder=True)
        came = []
        for graph in (adjacent, named):
            received = np.empty(1)
            graph.Neighbor_alltoall(np.full(1, float(graph.rank)), received)
            came.append(received[0] == (graph.rank - 1) % 4)
            graph.Free()
        return all(came)

    assert all(all(values(ring, Schedule.of(seed))) for seed in SEEDS)


def test_what_was_chosen_is_told_with_the_call() -> None:
    def both(comm: Any) -> Any:
        return of_node(comm), reordered(comm)

    told = []
    for seed in SEEDS:
        run = WORLD.run(lambda context, _: both(context.comm), None, 4, schedule=Schedule.of(seed))
        told += [str(each) for each in run.matched if "Split_type" in str(each) or "Create_cart" in str(each)]
    assert any(
        "rank 0 in Split_type() at " in text and text.endswith(" is on one node with rank 2") for text in told
    )
    assert any(text.endswith(" is alone on its node") for text in told)
    assert any(
        "Create_cart() at " in text and " is rank 3 of a communicator that may reorder" in text
        for text in told
    )
    assert not WORLD.run(lambda context, _: both(context.comm), None, 4, schedule=Schedule()).matched


def test_ranks_without_a_type_are_in_no_node() -> None:
    assert values(lambda comm: comm.Split_type(MPI.UNDEFINED) == MPI.COMM_NULL, Schedule.of(3)) == (True,) * 4
