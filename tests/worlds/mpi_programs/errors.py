"""Calls that MPI or mpi4py refuses."""

from __future__ import annotations

import numpy as np

from tests.worlds.mpi_programs.registry import error


@error
def a_rank_beyond_the_communicator(comm, mpi):
    comm.Send(np.ones(1), comm.Get_size())


@error
def a_source_beyond_the_communicator(comm, mpi):
    comm.Recv(np.ones(1), comm.Get_size())


@error
def a_negative_destination(comm, mpi):
    comm.Isend(np.ones(1), -77)


@error
def a_probe_of_a_rank_beyond(comm, mpi):
    comm.Probe(comm.Get_size() + 3)


@error
def a_wildcard_destination(comm, mpi):
    comm.Send(np.ones(1), mpi.ANY_SOURCE)


@error
def a_negative_tag(comm, mpi):
    comm.Send(np.ones(1), 0, -3)


@error
def a_wildcard_tag_to_send(comm, mpi):
    comm.Send(np.ones(1), 0, mpi.ANY_TAG)


@error
def a_negative_tag_to_receive(comm, mpi):
    comm.Recv(np.ones(1), 0, -3)


@error
def a_tag_that_is_no_int_of_c(comm, mpi):
    comm.Send(np.ones(1), 0, 1 << 31)


@error
def a_tag_to_receive_that_is_no_int_of_c(comm, mpi):
    comm.Recv(np.ones(1), 0, 1 << 40)


@error
def a_tag_of_a_probe_that_is_no_int_of_c(comm, mpi):
    comm.Iprobe(0, 1 << 40)


@error
def a_negative_tag_to_nobody(comm, mpi):
    comm.Send(np.ones(1), mpi.PROC_NULL, -5)


@error
def a_negative_tag_from_nobody(comm, mpi):
    comm.Recv(np.ones(1), mpi.PROC_NULL, -5)


@error
def a_negative_tag_of_a_probe(comm, mpi):
    comm.Iprobe(0, -5)


@error
def a_tag_that_is_no_number(comm, mpi):
    comm.Send(np.ones(1), mpi.PROC_NULL, "a")


@error
def a_source_that_is_no_int_of_c(comm, mpi):
    comm.Recv(np.ones(1), 1 << 40)


@error
def a_key_that_is_no_int_of_c(comm, mpi):
    comm.Split(0, 1 << 40)


@error
def a_fractional_count(comm, mpi):
    comm.Reduce_scatter(np.ones(comm.Get_size()), np.ones(1), [1.5] * comm.Get_size())


@error
def a_grid_of_fractional_sides(comm, mpi):
    comm.Create_cart([1.5])


@error
def periods_that_are_bools_of_numpy(comm, mpi):
    comm.Create_cart([comm.Get_size()], np.array([True]))


@error
def periods_that_are_too_few(comm, mpi):
    comm.Create_cart([comm.Get_size(), 1], [True])


@error
def periods_that_are_fractional(comm, mpi):
    comm.Create_cart([comm.Get_size()], [1.0])


@error
def remaining_dimensions_that_are_bools_of_numpy(comm, mpi):
    comm.Create_cart([comm.Get_size(), 1]).Sub(np.array([True, False]))


@error
def coordinates_that_are_fractional(comm, mpi):
    comm.Create_cart([comm.Get_size()]).Get_cart_rank([0.0])


@error
def a_fractional_rank_in_a_group(comm, mpi):
    comm.Get_group().Incl([0.5])


@error
def a_root_beyond_the_communicator(comm, mpi):
    comm.Bcast(np.ones(1), comm.Get_size())


@error
def a_negative_root(comm, mpi):
    comm.Reduce(np.ones(1), np.ones(1), mpi.SUM, -77)


@error
def a_root_beyond_for_objects(comm, mpi):
    comm.bcast(1, comm.Get_size())


@error
def bits_of_floating_numbers(comm, mpi):
    comm.Allreduce(np.ones(1), np.ones(1), mpi.BAND)


@error
def the_larger_of_complex_numbers(comm, mpi):
    comm.Allreduce(np.ones(1, "D"), np.ones(1, "D"), mpi.MAX)


@error
def buffers_of_two_sizes_in_a_reduction(comm, mpi):
    comm.Allreduce(np.ones(2), np.ones(3))


@error
def buffers_of_two_types_in_a_reduction(comm, mpi):
    comm.Allreduce(np.ones(2), np.ones(2, "f"))


@error
def a_buffer_that_is_no_multiple(comm, mpi):
    comm.Allgather(np.ones(1), np.ones(comm.Get_size() + 1))


@error
def too_few_counts(comm, mpi):
    comm.Allgatherv(np.ones(1), [np.ones(9), [1] * (comm.Get_size() - 1)])


@error
def too_few_objects(comm, mpi):
    comm.alltoall([1] * (comm.Get_size() - 1))


@error
def a_strided_buffer(comm, mpi):
    comm.Send(np.ones((4, 4))[:, 1], 0)


@error
def a_buffer_that_cannot_be_written(comm, mpi):
    buffer = np.ones(1)
    buffer.flags.writeable = False
    comm.Recv(buffer, 0)


@error
def what_is_no_buffer(comm, mpi):
    comm.Send(object(), 0)


@error
def a_count_beyond_the_buffer(comm, mpi):
    comm.Send([np.ones(2), 1, 5, mpi.DOUBLE], 0)


@error
def a_grid_larger_than_the_communicator(comm, mpi):
    comm.Create_cart([comm.Get_size() + 1])


@error
def a_direction_that_the_grid_has_not(comm, mpi):
    line = comm.Create_cart([comm.Get_size()])
    try:
        line.Shift(1, 1)
    finally:
        line.Free()


@error
def coordinates_beyond_the_grid(comm, mpi):
    line = comm.Create_cart([comm.Get_size()])
    try:
        line.Get_cart_rank([comm.Get_size()])
    finally:
        line.Free()


@error
def coordinates_of_a_rank_beyond(comm, mpi):
    line = comm.Create_cart([comm.Get_size()])
    try:
        line.Get_coords(comm.Get_size())
    finally:
        line.Free()


@error
def a_group_with_a_rank_beyond(comm, mpi):
    whole = comm.Get_group()
    try:
        whole.Incl([comm.Get_size()])
    finally:
        whole.Free()


@error
def a_freed_communicator(comm, mpi):
    other = comm.Dup()
    other.Free()
    other.Barrier()


@error
def the_null_communicator(comm, mpi):
    mpi.COMM_NULL.Barrier()


@error
def a_negative_color(comm, mpi):
    comm.Split(-5)


@error
def a_group_with_ranks_that_the_communicator_has_not(comm, mpi):
    own = comm.Split(comm.Get_rank(), 0)
    whole = comm.Get_group()
    try:
        own.Create(whole)
    finally:
        whole.Free()
        own.Free()
