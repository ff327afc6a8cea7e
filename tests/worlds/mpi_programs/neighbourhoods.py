"""Collectives among the neighbours of a grid's ranks."""

from __future__ import annotations

import numpy as np

from tests.worlds.mpi_programs.registry import error, program


def grids(comm):
    """A ring, a line, and a torus that is one rank wide in one dimension: so with neighbours that are the rank itself, and none."""
    size = comm.Get_size()
    return [
        comm.Create_cart([size], [True]),
        comm.Create_cart([size], [False]),
        comm.Create_cart([1, size], [True, True]),
    ]


def blocks_of(grid, width=2, dtype="d"):
    """So many elements for each neighbour, all different."""
    blocks = 2 * grid.Get_dim()
    return (100 * grid.Get_rank() + np.arange(blocks * width)).astype(dtype)


def wide_grids(comm):
    """Those without a rank that is its own neighbour, or has another one on both sides.

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
    return wide


def empty_blocks(grid, width):
    return np.full(2 * grid.Get_dim() * width, -1.0)


@program
def blocks_for_neighbours(comm, mpi):
    results = []
    for grid in grids(comm):
        swapped, gathered = empty_blocks(grid, 2), empty_blocks(grid, 2)
        grid.Neighbor_alltoall(blocks_of(grid), [swapped, 2, mpi.DOUBLE])
        grid.Neighbor_allgather(blocks_of(grid)[:2], gathered)
        results += [swapped, gathered]
        grid.Free()
    return results


@program
def blocks_for_neighbours_later(comm, mpi):
    results = []
    for grid in wide_grids(comm):
        swapped, gathered = empty_blocks(grid, 2), empty_blocks(grid, 2)
        requests = [
            grid.Ineighbor_alltoall(blocks_of(grid), swapped),
            grid.Ineighbor_allgather(blocks_of(grid)[:2], gathered),
        ]
        mpi.Request.Waitall(requests)
        results += [swapped, gathered]
        grid.Free()
    return results


@program
def blocks_of_several_sizes_for_neighbours(comm, mpi):
    results = []
    for grid in grids(comm):
        swapped, gathered = empty_blocks(grid, 3), empty_blocks(grid, 3)
        send, receive, gather = several_sizes(grid, mpi, swapped, gathered)
        grid.Neighbor_alltoallv(send, receive)
        grid.Neighbor_allgatherv(blocks_of(grid)[:3], gather)
        results += [swapped, gathered]
        grid.Free()
    return results


@program
def blocks_of_several_sizes_for_neighbours_later(comm, mpi):
    results = []
    for grid in wide_grids(comm):
        swapped, gathered = empty_blocks(grid, 3), empty_blocks(grid, 3)
        send, receive, gather = several_sizes(grid, mpi, swapped, gathered)
        grid.Ineighbor_alltoallv(send, receive).Wait()
        grid.Ineighbor_allgatherv(blocks_of(grid)[:3], gather).Wait()
        results += [swapped, gathered]
        grid.Free()
    return results


def several_sizes(grid, mpi, swapped, gathered):
    """Buffers in which the block that goes before has an element more than the one after: so has, too, the block that comes from after."""
    number = 2 * grid.Get_dim()
    starts = [3 * place for place in range(number)]
    return (
        [blocks_of(grid, 3), ([3, 2] * grid.Get_dim(), None), mpi.DOUBLE],
        [swapped, ([2, 3] * grid.Get_dim(), starts), mpi.DOUBLE],
        [gathered, [3] * number, starts[::-1], mpi.DOUBLE],
    )


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
def objects_for_neighbours(comm, mpi):
    results = []
    for grid in grids(comm):
        results.append(grid.neighbor_allgather({"rank": grid.Get_rank()}))
        results.append(
            grid.neighbor_alltoall([(grid.Get_rank(), place) for place in range(2 * grid.Get_dim())])
        )
        grid.Free()
    return results


@error
def too_few_objects_for_neighbours(comm, mpi):
    grid = comm.Create_cart([comm.Get_size()], [True])
    try:
        grid.neighbor_alltoall([1])
    finally:
        grid.Free()
