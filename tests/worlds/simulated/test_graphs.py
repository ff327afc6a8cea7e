"""Graphs of simulated ranks, beyond what the programs of every world show."""

from __future__ import annotations

import numpy as np
import pytest

from adjointlab import MPI
from adjointlab.worlds.simulated.world import SimulatedWorld

pytestmark = pytest.mark.mpi_skip

WORLD = SimulatedWorld(3)


def run(program):
    return WORLD.run(lambda context, _: program(context.comm), None, 3)


def test_a_rank_without_neighbours_takes_part_with_empty_buffers():
    def program(comm):
        named = {0: ([], [1]), 1: ([0], [])}.get(comm.rank, ([], []))
        graph = comm.Create_dist_graph_adjacent(*named)
        received = np.full(2 * graph.indegree, -1.0)
        graph.Neighbor_alltoall(np.arange(2.0 * graph.outdegree), [received, 2, MPI.DOUBLE])
        graph.Neighbor_alltoallv([np.arange(2.0), [1] * graph.outdegree], [received, [1] * graph.indegree])
        graph.Neighbor_allgather(np.full(2, 7.0 + comm.rank), received)
        return received.tolist(), graph.neighbor_alltoall(["a"] * graph.outdegree), graph.degrees

    assert run(program).values == (([], [], (0, 1)), ([7.0, 7.0], ["a"], (1, 0)), ([], [], (0, 0)))


def test_an_edge_that_one_end_alone_names_is_a_mismatch_that_names_both():
    def program(comm):
        sources = [] if comm.rank == 2 else [(comm.rank - 1) % 3]
        comm.Create_dist_graph_adjacent(sources, [(comm.rank + 1) % 3])

    (finding,) = run(program).findings
    assert (
        "rank 1 names rank 2 once among its destinations, and rank 2 names rank 1 not among its sources"
        in finding.text
    )


def test_weights_of_sources_without_those_of_destinations_are_refused():
    def program(comm):
        comm.Create_dist_graph_adjacent([comm.rank], [comm.rank], [1])

    assert run(program).outcomes[0].message == "sourceweights and destweights: give both or neither"


def test_a_neighbour_that_the_communicator_has_not_is_refused():
    def program(comm):
        comm.Create_dist_graph_adjacent([3], [0])

    assert run(program).outcomes[0].message == "Invalid rank 3: must be nonnegative and less than 3"


def test_a_plain_communicator_says_where_its_neighbours_would_come_from():
    def program(comm):
        return comm.indegree

    assert "Create_cart or Create_dist_graph_adjacent makes" in run(program).outcomes[0].message
