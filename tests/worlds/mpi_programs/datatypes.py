"""Derived datatypes: elements at several places of a buffer."""

from __future__ import annotations

import numpy as np

from tests.worlds.mpi_programs.registry import error, neighbours, program, ramp, status_values


def matrix(comm, rows, columns, dtype="d"):
    return ramp(comm, rows * columns, dtype).reshape(rows, columns)


def committed(datatype):
    datatype.Commit()
    return datatype


@program
def a_column_goes_to_a_row(comm, mpi):
    left, right = neighbours(comm)
    column = committed(mpi.DOUBLE.Create_vector(3, 1, 4))
    sent, received, status = matrix(comm, 3, 4), np.full((2, 3), -1.0), mpi.Status()
    comm.Sendrecv([sent, 1, column], right, 5, received[1], left, 5, status)
    sizes = [status.Get_count(mpi.DOUBLE), status.Get_count(column), column.Get_size(), column.Get_extent()]
    column.Free()
    return received, status_values(mpi, status), sizes


@program
def a_row_goes_to_a_column(comm, mpi):
    left, right = neighbours(comm)
    column = committed(mpi.DOUBLE.Create_vector(3, 1, 4))
    received = matrix(comm, 3, 4)
    request = comm.Irecv([received.reshape(-1)[2:], 1, column], left, 1)
    comm.Send(ramp(comm, 3), right, 1)
    request.Wait()
    both = matrix(comm, 3, 4)
    comm.Sendrecv_replace([both, 1, column], right, 2, left, 2)
    column.Free()
    return received, both


@program
def faces_of_a_block(comm, mpi):
    left, right = neighbours(comm)
    block = matrix(comm, 4, 6, "f")
    results = []
    for order, shape in ((mpi.ORDER_C, (4, 6)), (mpi.ORDER_FORTRAN, (6, 4))):
        last = committed(mpi.FLOAT.Create_subarray(shape, (2, 2), (1, 2), order))
        ghost = committed(mpi.FLOAT.Create_subarray(shape, (2, 2), (2, 0), order))
        whole = block.copy()
        comm.Sendrecv([whole, last], right, 1, [whole, 1, ghost], left, 1)
        results.append(whole)
        last.Free()
        ghost.Free()
    return results


@program
def kinds_of_derived_datatypes(comm, mpi):
    left, right = neighbours(comm)
    received = []
    kinds = [
        mpi.INT.Create_contiguous(4),
        mpi.INT.Create_hvector(3, 2, 16),
        mpi.INT.Create_indexed([2, 0, 1], [5, 1, 0]),
        mpi.INT.Create_hindexed([1, 2], [20, 4]),
        mpi.INT.Create_indexed_block(2, [6, 0]),
        mpi.INT.Create_hindexed_block(1, [12, 0, 8]),
        mpi.INT.Create_vector(2, 2, 3).Create_resized(0, 24),
        mpi.INT.Create_vector(2, 1, 3).Dup(),
        mpi.INT.Create_vector(2, 1, 2).Create_contiguous(2),
        mpi.Datatype.Create_struct([2, 1], [4, 24], [mpi.INT, mpi.INT]),
    ]
    for number, kind in enumerate(map(committed, kinds)):
        elements = kind.Get_size() // 4
        packed, back = np.zeros(elements, "i"), np.full(12, -1, "i")
        requests = [
            comm.Isend([ramp(comm, 12, "i"), 1, kind], right, number),
            comm.Irecv(packed, left, number),
        ]
        mpi.Request.Waitall(requests)
        comm.Sendrecv([packed, elements, mpi.INT], left, 100, [back, 1, kind], right, 100)
        received.append([packed, back, list(kind.Get_extent())])
        kind.Free()
    return received


@program
def records_of_several_types(comm, mpi):
    left, right = neighbours(comm)
    record = np.dtype([("number", "i4"), ("value", "f8")], align=True)
    kind = mpi.Datatype.Create_struct([1, 1], [0, 8], [mpi.INT, mpi.DOUBLE])
    resized = committed(kind.Create_resized(0, record.itemsize))
    sent, received = np.zeros(3, record), np.zeros(3, record)
    sent["number"], sent["value"] = comm.Get_rank(), np.arange(3) / 2
    comm.Sendrecv([sent, 3, resized], right, 0, [received, 3, resized], left, 0)
    resized.Free()
    return received["number"].tolist(), received["value"].tolist()


@program
def columns_scattered_and_gathered(comm, mpi):
    size = comm.Get_size()
    column = committed(mpi.DOUBLE.Create_vector(3, 1, size).Create_resized(0, 8))
    whole = matrix(comm, 3, size)
    own, gathered = np.zeros(3), np.full((3, size), -1.0)
    comm.Scatter([whole, 1, column] if comm.Get_rank() == 0 else None, own, 0)
    comm.Gather(own, [gathered, 1, column] if comm.Get_rank() == 0 else None, 0)
    shared = np.full((3, size), -1.0)
    comm.Allgather(own + comm.Get_rank(), [shared, 1, column])
    swapped = np.full((3, size), -1.0)
    comm.Alltoall([whole, 1, column], [swapped, 3, mpi.DOUBLE])
    by_counts = np.full((3, size), -1.0)
    comm.Allgatherv(own, [by_counts, ([1] * size, list(range(size))[::-1]), column])
    copied = np.full((3, size), float(comm.Get_rank()))
    comm.Bcast([copied, 1, column], 0)
    column.Free()
    return own, gathered, shared, swapped, by_counts, copied


@program
def a_transpose_by_subarrays(comm, mpi):
    """As distributed transforms change from pencils along one dimension to pencils along another."""
    rank, size = comm.Get_rank(), comm.Get_size()
    rows, columns = 2, 3
    before = (100 * rank + np.arange(rows * columns * size, dtype="d")).reshape(rows, columns * size)
    after, again = np.zeros((rows * size, columns)), np.zeros_like(before)
    out = [
        committed(mpi.DOUBLE.Create_subarray(before.shape, (rows, columns), (0, columns * other)))
        for other in range(size)
    ]
    into = [
        committed(mpi.DOUBLE.Create_subarray(after.shape, (rows, columns), (rows * other, 0)))
        for other in range(size)
    ]
    comm.Alltoallw([before, out], [after, into])
    comm.Ialltoallw([after, into], [again, out]).Wait()
    for kind in out + into:
        kind.Free()
    return after, bool((before == again).all())


@program
def aligned_records_one_after_the_other(comm, mpi):
    """A structure is as long as makes the next one lie well: its last element is smaller than its first."""
    left, right = neighbours(comm)
    record = np.dtype([("value", "f8"), ("number", "i4")], align=True)
    kind = committed(mpi.Datatype.Create_struct([1, 1], [0, 8], [mpi.DOUBLE, mpi.INT]))
    pair = committed(kind.Create_contiguous(2))
    sent, received, gathered = np.zeros(4, record), np.zeros(4, record), np.zeros(comm.Get_size(), record)
    sent["value"], sent["number"] = comm.Get_rank() + np.arange(4) / 4, 10 * comm.Get_rank() + np.arange(4)
    comm.Sendrecv([sent, 4, kind], right, 0, [received, 2, pair], left, 0)
    comm.Allgather([sent, 1, kind], [gathered, 1, kind])
    both = sent.copy()
    comm.Sendrecv_replace([both, 4, kind], right, 1, left, 1)
    results = [kind.Get_extent(), pair.Get_extent()]
    kind.Free()
    pair.Free()
    return results, [each.tolist() for each in (received, gathered, both)]


@program
def a_field_of_packed_records(comm, mpi):
    left, right = neighbours(comm)
    record = np.dtype([("number", "i4"), ("value", "f8")])
    field = committed(mpi.DOUBLE.Create_hindexed_block(1, [4, 16, 28]))
    sent, received = np.zeros(3, record), np.zeros(3)
    sent["value"] = comm.Get_rank() + np.arange(3)
    comm.Sendrecv([sent, 1, field], right, 0, received, left, 0)
    field.Free()
    return received


@program
def parts_without_elements_among_others(comm, mpi):
    """A transpose of fewer columns than there are ranks."""
    rank, size = comm.Get_rank(), comm.Get_size()
    columns = size - 1
    before = (10 * rank + np.arange(2 * columns, dtype="d")).reshape(2, columns)
    after = np.full((2 * size, 1), -1.0)

    def part(shape, start, is_there):
        if not is_there:
            return mpi.DOUBLE.Create_contiguous(0)
        return mpi.DOUBLE.Create_subarray(shape, (2, 1), start)

    out = [committed(part(before.shape, (0, other), other < columns)) for other in range(size)]
    into = [committed(part(after.shape, (2 * other, 0), rank < columns)) for other in range(size)]
    comm.Alltoallw([before, out], [after, into])
    for kind in out + into:
        kind.Free()
    return after


@program
def blocks_of_the_root_in_place(comm, mpi):
    rank, size = comm.Get_rank(), comm.Get_size()
    whole = np.full(2 * size, -1.0)
    whole[:2] = 5.0
    comm.Gather(mpi.IN_PLACE if rank == 0 else np.full(2, float(rank)), [whole, 2, mpi.DOUBLE], 0)
    part = np.zeros(2)
    comm.Scatter([whole, 2, mpi.DOUBLE], mpi.IN_PLACE if rank == 0 else part, 0)
    return whole if rank == 0 else part


@program
def a_duplicate_of_a_committed_datatype(comm, mpi):
    """It is committed, as that is."""
    column = committed(mpi.DOUBLE.Create_vector(3, 1, 4))
    twin, plain = column.Dup(), mpi.DOUBLE.Dup()
    whole = np.arange(12.0) if comm.Get_rank() == 0 else np.zeros(12)
    comm.Bcast([whole, 1, twin])
    comm.Bcast([whole[1:], 2, plain])
    for each in (column, twin, plain):
        each.Free()
    return whole


@error
def a_datatype_that_is_not_committed(comm, mpi):
    column = mpi.DOUBLE.Create_vector(2, 1, 3)
    try:
        comm.Bcast([np.ones(6), 1, column])
    finally:
        column.Free()


@error
def a_reduction_of_several_elements_as_one(comm, mpi):
    several = committed(mpi.DOUBLE.Create_contiguous(2))
    try:
        comm.Allreduce([np.ones(2), 1, several], [np.ones(2), 1, several])
    finally:
        several.Free()


@error
def a_reduction_of_a_derived_datatype(comm, mpi):
    column = committed(mpi.DOUBLE.Create_vector(2, 1, 2))
    try:
        comm.Allreduce([np.ones(4), 1, column], [np.ones(4), 1, column])
    finally:
        column.Free()


@error
def a_buffer_that_is_no_multiple_of_the_extent(comm, mpi):
    column = committed(mpi.DOUBLE.Create_vector(2, 1, 3))
    try:
        comm.Bcast([np.ones(6), column])
    finally:
        column.Free()
