"""Collectives among the neighbours of a rank of a grid or of a graph."""

from __future__ import annotations

import numpy as np

from tests.worlds.mpi_programs.registry import error, program, ramp


def grids(comm):
    """A ring, a line, and a torus that is one rank wide in one dimension: so with neighbours that are the rank itself, and none."""
    size = comm.Get_size()
    return [
        comm.Create_cart([size], [True]),
        comm.Create_cart([size], [False]),
        comm.Create_cart([1, size], [True, True]),
    ]


def graphs(comm):
    """A ring in one direction, a star, and two edges from each rank to the next.

    None with a rank that nothing comes from, or goes to: there Open MPI (5.0.11) waits for ever, or says that messages are truncated.
    """
    size, rank = comm.Get_size(), comm.Get_rank()
    before, after, others = (rank - 1) % size, (rank + 1) % size, list(range(size))
    star = (others, others) if rank == 0 else ([0], [0])
    named = [([before], [after]), star, ([before] * 2, [after] * 2)]
    return [comm.Create_dist_graph_adjacent(*lists) for lists in named]


def topologies(comm):
    return grids(comm) + graphs(comm)


def wide_topologies(comm):
    """Those without a rank of a grid that is its own neighbour, or has another one on both sides.

    There Open MPI (5.0.11) mixes up the two blocks, in the non-blocking calls alone.
    """
    made = grids(comm)
    wide = [
        grid
        for grid in made
        if all(width > 2 or not period for width, period in zip(grid.dims, grid.periods, strict=True))
    ]
    for grid in made:
        if grid not in wide:
            grid.Free()
    return wide + graphs(comm)


def blocks_of(topology, width=2):
    """So many elements for each neighbour, all different."""
    return (100 * topology.Get_rank() + np.arange(topology.outdegree * width)).astype("d")


def empty_blocks(topology, width):
    return np.full(topology.indegree * width, -1.0)


@program
def blocks_for_neighbours(comm, mpi):
    results = []
    for topology in topologies(comm):
        swapped, gathered = empty_blocks(topology, 2), empty_blocks(topology, 2)
        topology.Neighbor_alltoall(blocks_of(topology), [swapped, 2, mpi.DOUBLE])
        topology.Neighbor_allgather(own_block(topology, 2), gathered)
        results += [swapped, gathered]
        topology.Free()
    return results


def own_block(topology, width):
    return 100.0 * topology.Get_rank() + np.arange(width)


@program
def blocks_for_neighbours_later(comm, mpi):
    results = []
    for topology in wide_topologies(comm):
        swapped, gathered = empty_blocks(topology, 2), empty_blocks(topology, 2)
        requests = [
            topology.Ineighbor_alltoall(blocks_of(topology), swapped),
            topology.Ineighbor_allgather(own_block(topology, 2), gathered),
        ]
        mpi.Request.Waitall(requests)
        results += [swapped, gathered]
        topology.Free()
    return results


@program
def blocks_of_several_sizes_for_neighbours(comm, mpi):
    results = []
    for topology in topologies(comm):
        swapped, gathered = empty_blocks(topology, 3), empty_blocks(topology, 3)
        send, receive, gather = several_sizes(topology, mpi, swapped, gathered)
        topology.Neighbor_alltoallv(send, receive)
        topology.Neighbor_allgatherv(own_block(topology, 3), gather)
        results += [swapped, gathered]
        topology.Free()
    return results


@program
def blocks_of_several_sizes_for_neighbours_later(comm, mpi):
    results = []
    for topology in wide_topologies(comm):
        swapped, gathered = empty_blocks(topology, 3), empty_blocks(topology, 3)
        send, receive, gather = several_sizes(topology, mpi, swapped, gathered)
        topology.Ineighbor_alltoallv(send, receive).Wait()
        topology.Ineighbor_allgatherv(own_block(topology, 3), gather).Wait()
        results += [swapped, gathered]
        topology.Free()
    return results


def several_sizes(topology, mpi, swapped, gathered):
    """Buffers in which the number of elements of a block depends on who sends it to whom."""
    rank = topology.Get_rank()
    sent = [size_of_block(rank, to) for to in topology.outedges]
    received = [size_of_block(source, rank) for source in topology.inedges]
    starts = [3 * place for place in range(len(received))]
    return (
        [blocks_of(topology, 3), (sent, None), mpi.DOUBLE],
        [swapped, (received, starts), mpi.DOUBLE],
        [gathered, [3] * len(received), starts[::-1], mpi.DOUBLE],
    )


def size_of_block(source, destination):
    return 2 if min(source, destination) < 0 else 1 + (source + 2 * destination) % 3


@program
def edges_of_topologies(comm, mpi):
    results = []
    for topology in topologies(comm):
        edges = topology.inoutedges
        assert edges == (topology.inedges, topology.outedges)
        assert topology.degrees == (topology.indegree, topology.outdegree)
        kinds = [topology.Get_topology() == kind for kind in (mpi.CART, mpi.DIST_GRAPH)]
        assert topology.topology == topology.Get_topology()
        results.append([kinds, topology.degrees, [[max(rank, -1) for rank in each] for each in edges]])
        topology.Free()
    return results


@program
def weights_of_edges(comm, mpi):
    size, rank = comm.Get_size(), comm.Get_rank()
    results = []
    for weights in ((None, None), ([rank], [rank + 1]), (mpi.UNWEIGHTED, mpi.UNWEIGHTED)):
        graph = comm.Create_dist_graph_adjacent([(rank + 1) % size], [(rank - 1) % size], *weights)
        results += [graph.Get_dist_neighbors_count(), graph.Get_dist_neighbors()]
        graph.Free()
    return results


@program
def a_graph_of_edges_that_any_rank_names(comm, mpi):
    """The order of a rank's neighbours is the library's."""
    size, rank = comm.Get_size(), comm.Get_rank()
    star = [*range(size)], [size, *[1] * (size - 1)], [*range(size), *[0] * (size - 1)]
    named = star if rank == 0 else ([], [], [])
    graph = comm.Create_dist_graph(*named)
    twin = graph.Dup()
    results = []
    for each in (graph, twin):
        received = each.neighbor_alltoall([(rank, to) for to in each.outedges])
        assert [source for source, _ in received] == each.inedges
        results.append([sorted(received), sorted(each.outedges), each.Get_dist_neighbors_count()])
    comm.Barrier()
    twin.Free()
    graph.Free()
    return results


@program
def a_graph_of_weighted_edges_that_any_rank_names(comm, mpi):
    size, rank = comm.Get_size(), comm.Get_rank()
    found = []
    for weights in ([10 + rank], mpi.UNWEIGHTED, None):
        graph = comm.Create_dist_graph([rank], [1], [(rank + 1) % size], weights)
        found.append(graph.Get_dist_neighbors())
        graph.Free()
    return found


@program
def faces_exchanged_among_neighbours(comm, mpi):
    """A halo exchange in one call: the faces of a block go into the ghost cells of its neighbours."""
    results = []
    for periods in ([True, True], [False, False]):
        grid = comm.Create_cart([comm.Get_size(), 1], periods)
        block = np.full((4, 5), -1.0)
        block[1:-1, 1:-1] = 10 * grid.Get_rank() + np.arange(6).reshape(2, 3)
        faces = {
            "out": [((1, 3), (1, 1)), ((1, 3), (2, 1)), ((2, 1), (1, 1)), ((2, 1), (1, 3))],
            "into": [((1, 3), (0, 1)), ((1, 3), (3, 1)), ((2, 1), (1, 0)), ((2, 1), (1, 4))],
        }
        kinds = {
            name: [mpi.DOUBLE.Create_subarray((4, 5), shape, start) for shape, start in listed]
            for name, listed in faces.items()
        }
        for kind in kinds["out"] + kinds["into"]:
            kind.Commit()
        ones, zeros = [1] * 4, [0] * 4
        other = block.copy()
        grid.Neighbor_alltoallw([block, ones, zeros, kinds["out"]], [block, ones, zeros, kinds["into"]])
        grid.Ineighbor_alltoallw(
            [other, ones, zeros, kinds["out"]], [other, ones, zeros, kinds["into"]]
        ).Wait()
        for kind in kinds["out"] + kinds["into"]:
            kind.Free()
        results.append(block)
        grid.Free()
    return results


@program
def blocks_of_absent_neighbours_over_those_of_others(comm, mpi):
    """As code has them whose displacements are zero where nothing comes from."""
    line = comm.Create_cart([comm.Get_size()])
    starts = [0, 0 if line.Shift(0, 1)[0] == mpi.PROC_NULL else 2]
    sent, pair = ramp(comm, 4), mpi.DOUBLE.Create_contiguous(2).Commit()
    received = np.full((4, 4), -1.0)
    line.Neighbor_alltoallv([sent, [2, 2]], [received[0], ([2, 2], starts)])
    line.Neighbor_allgatherv(sent[:2], [received[1], ([2, 2], starts)])
    for row, kind in ((2, pair), (3, mpi.DOUBLE)):
        counts, octets = [1 if kind is pair else 2] * 2, [8 * each for each in starts]
        out = [sent, counts, [0, 16], [kind] * 2]
        line.Neighbor_alltoallw(out, [received[row], counts, octets, [kind] * 2])
    pair.Free()
    line.Free()
    return received


@program
def objects_for_neighbours(comm, mpi):
    results = []
    for topology in topologies(comm):
        results.append(topology.neighbor_allgather({"rank": topology.Get_rank()}))
        results.append(
            topology.neighbor_alltoall([(topology.Get_rank(), place) for place in range(topology.outdegree)])
        )
        topology.Free()
    return results


@error
def too_few_objects_for_neighbours(comm, mpi):
    grid = comm.Create_cart([comm.Get_size()], [True])
    try:
        grid.neighbor_alltoall([1])
    finally:
        grid.Free()


@error
def too_few_destinations_for_the_degrees(comm, mpi):
    comm.Create_dist_graph([comm.Get_rank()], [2], [0])


@error
def too_few_weights_for_the_sources(comm, mpi):
    comm.Create_dist_graph_adjacent([0], [0], [1, 2], [1])
