"""Communicators, groups, Cartesian grids and attributes."""

from __future__ import annotations

import numpy as np

from adjointlab import MPI
from tests.worlds.mpi_programs.registry import constant_name, neighbours, plain, program, ramp, status_values


def census(comm, mpi):
    """Rank and size in a communicator, or that this rank is no member."""
    if comm == mpi.COMM_NULL:
        return "COMM_NULL"
    return comm.Get_rank(), comm.Get_size()


@program
def attributes(comm, mpi):
    keyval, other = MPI.Create_keyval(), MPI.Create_keyval()
    before = comm.Get_attr(keyval)
    comm.Set_attr(keyval, {"cache": comm.rank})
    comm.Set_attr(other, 2)
    comm.Get_attr(keyval)["more"] = 1
    part = comm.Dup()
    found = [before, comm.Get_attr(keyval), comm.Get_attr(other), part.Get_attr(keyval)]
    comm.Delete_attr(keyval)
    comm.Set_attr(other, 3)
    found += [comm.Get_attr(keyval), comm.Get_attr(other)]
    comm.Delete_attr(other)
    MPI.Free_keyval(keyval)
    MPI.Free_keyval(other)
    part.Free()
    return found


@program
def dup_keeps_messages_apart(comm, mpi):
    left, right = neighbours(comm)
    other = comm.Dup()
    requests = [comm.isend("first", right), other.isend("second", right)]
    received = other.recv(source=left), comm.recv(source=left)
    mpi.Request.waitall(requests)
    seen = census(other, mpi)
    other.Free()
    return received, seen


@program
def other_ways_to_duplicate(comm, mpi):
    clone, other = comm.Clone(), comm.Dup_with_info(getattr(mpi, "INFO_NULL", None))
    seen = [
        census(clone, mpi),
        clone.allgather(comm.rank),
        other.allreduce(1),
        clone.is_topo,
        other.topology == mpi.UNDEFINED,
    ]
    clone.Disconnect()
    other.Free()
    return seen


@program
def split(comm, mpi):
    rank = comm.Get_rank()
    half = comm.Split(rank % 2, -rank)
    seen = [census(half, mpi), half.allgather(rank)]
    part = comm.Split(mpi.UNDEFINED if rank == 0 else 0, 0)
    seen.append(census(part, mpi))
    seen.append(part.allreduce(rank) if part != mpi.COMM_NULL else None)
    for each in (half, part):
        if each != mpi.COMM_NULL:
            each.Free()
    return seen


@program
def groups(comm, mpi):
    size = comm.Get_size()
    whole = comm.Get_group()
    backwards = whole.Incl(list(range(size))[::-1])
    rest = whole.Excl([0])
    seen = [
        whole.Get_size(),
        backwards.Get_rank(),
        constant_name(mpi, rest.Get_rank()),
        rest.Get_size(),
        [constant_name(mpi, each) for each in whole.Translate_ranks(list(range(size)), rest)],
    ]
    for group in (whole, backwards, rest):
        group.Free()
    return seen


@program
def create_of_disjoint_groups(comm, mpi):
    """The first two ranks, the others, and at last a group that rank 0 alone is in, and knows."""
    rank, size = comm.Get_rank(), comm.Get_size()
    group = comm.Get_group()
    mine = [0, 1] if rank < 2 else list(range(2, size))[::-1]
    made = comm.Create(group.Incl(mine))
    seen = [census(made, mpi), made.allgather(rank)]
    made.Free()
    alone = comm.Create(group.Incl([0] if rank == 0 else []))
    seen.append(census(alone, mpi))
    if alone != mpi.COMM_NULL:
        alone.Free()
    return seen


@program
def create_and_create_group(comm, mpi):
    rank, size = comm.Get_rank(), comm.Get_size()
    whole = comm.Get_group()
    chosen = whole.Incl([size - 1, 0])
    made = comm.Create(chosen)
    seen = [census(made, mpi)]
    if made != mpi.COMM_NULL:
        seen.append(made.allgather(rank))
        made.Free()
    if rank in (0, size - 1):
        alone = comm.Create_group(chosen, 3)
        seen += [census(alone, mpi), alone.allgather(rank)]
        alone.Free()
    else:
        seen.append(comm.Create_group(chosen, 3) == mpi.COMM_NULL)
    chosen.Free()
    whole.Free()
    return seen


@program
def a_line(comm, mpi):
    line = comm.Create_cart([comm.Get_size()], [False])
    seen = [census(line, mpi), line.Get_coords(line.Get_rank()), line.Get_dim(), plain(line.Get_topo())]
    for step in (1, -1, comm.Get_size()):
        seen.append([constant_name(mpi, each) for each in line.Shift(0, step)])
    source, dest = line.Shift(0, 1)
    seen += [(each == mpi.PROC_NULL, each != mpi.PROC_NULL) for each in (source, dest)]
    received, status = np.full(1, -1.0), mpi.Status()
    line.Sendrecv(ramp(line, 1), dest, 0, received, source, 0, status)
    seen += [plain(received), status_values(mpi, status)]
    line.Free()
    return seen


@program
def numbers_of_other_types_on_a_line(comm, mpi):
    line = comm.Create_cart(np.array([comm.Get_size(), 1]), np.array([0, 1]))
    coordinates = line.Get_coords(np.int64(line.Get_rank()))
    rank = line.Get_cart_rank(np.array(coordinates))
    shifted = [constant_name(mpi, each) for each in line.Shift(0.0, np.float64(1))]
    column = line.Sub(np.array([1, 0]))
    seen = type(rank) is int, line.Get_coords(1.0), shifted, list(line.periods), list(column.dims)
    for each in (column, line):
        each.Free()
    return coordinates, rank, seen


@program
def a_torus(comm, mpi):
    size = comm.Get_size()
    dims = [2, size // 2]
    torus = comm.Create_cart(dims, [True, False])
    if torus == mpi.COMM_NULL:
        return "COMM_NULL"
    rank = torus.Get_rank()
    seen = [
        list(torus.Get_coords(rank)),
        torus.Get_cart_rank(torus.Get_coords(rank)),
        torus.Get_cart_rank([3, 0]),
        [
            [constant_name(mpi, each) for each in torus.Shift(axis, step)]
            for axis in (0, 1)
            for step in (1, 2, -1)
        ],
        list(torus.dims),
        list(map(int, torus.periods)),
        list(torus.coords),
        torus.ndim,
    ]
    row = torus.Sub([False, True])
    seen += [census(row, mpi), row.allgather(rank), row.Get_dim(), list(row.dims)]
    row.Free()
    twin = torus.Dup()
    seen += [twin.Get_topology() == mpi.CART, list(twin.dims)]
    twin.Free()
    torus.Free()
    return seen


@program
def a_communicator_of_a_communicator(comm, mpi):
    rank = comm.Get_rank()
    half = comm.Split(rank % 2, rank)
    again = half.Split(0, -half.Get_rank())
    seen = again.allgather(rank)
    again.Free()
    half.Free()
    return seen


@program
def who_is_here(comm, mpi):
    return (
        comm.Get_rank() == comm.rank,
        comm.Get_size() == comm.size,
        comm.Is_inter(),
        comm.Is_intra(),
        constant_name(mpi, comm.Get_topology()),
    )
