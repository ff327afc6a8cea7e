"""Collectives on buffers."""

from __future__ import annotations

import numpy as np

from tests.worlds.mpi_programs.registry import counts, neighbours, plain, program, ramp, starts


@program
def barrier(comm, mpi):
    comm.barrier()
    comm.Barrier() if comm.Get_rank() % 2 else comm.barrier()  # two spellings of one call
    return comm.Barrier(), comm.Ibarrier().Wait()


@program
def bcast(comm, mpi):
    seen = []
    for root in range(comm.Get_size()):
        buffer = ramp(comm, 3)
        comm.Bcast(buffer, root)
        seen.append(plain(buffer))
    return seen, comm.bcast({"from": comm.Get_rank()}, root=comm.Get_size() - 1)


@program
def reductions(comm, mpi):
    seen = {}
    for name in ("SUM", "PROD", "MAX", "MIN", "LAND", "LOR", "LXOR", "BAND", "BOR", "BXOR"):
        received = np.zeros(3, "i")
        comm.Allreduce(ramp(comm, 3, "i"), received, getattr(mpi, name))
        seen[name] = plain(received)
    return seen


@program
def reduce_to_each_root(comm, mpi):
    seen = []
    for root in range(comm.Get_size()):
        received = np.full(2, -1.0)
        comm.Reduce(ramp(comm, 2), received if comm.Get_rank() == root else None, mpi.SUM, root)
        seen.append(plain(received))
    return seen


@program
def scans(comm, mpi):
    inclusive, exclusive = np.full(2, -1.0), np.full(2, -1.0)
    comm.Scan(ramp(comm, 2), inclusive, mpi.SUM)
    comm.Exscan(ramp(comm, 2), exclusive, mpi.SUM)
    if comm.Get_rank() == 0:
        exclusive[:] = 0  # undefined there
    return inclusive, exclusive, comm.scan(comm.Get_rank() + 1), comm.exscan(comm.Get_rank() + 1)


@program
def in_place(comm, mpi):
    rank, size = comm.Get_rank(), comm.Get_size()
    seen = []
    both = ramp(comm, 2)
    comm.Allreduce(mpi.IN_PLACE, both, mpi.MAX)
    seen.append(plain(both))
    both = ramp(comm, 2)
    if rank == 0:
        comm.Reduce(mpi.IN_PLACE, both, mpi.SUM, 0)
    else:
        comm.Reduce(both, None, mpi.SUM, 0)
    seen.append(plain(both))
    both = np.full(size * 2, -1.0)
    both[2 * rank : 2 * rank + 2] = ramp(comm, 2)
    comm.Allgather(mpi.IN_PLACE, both)
    seen.append(plain(both))
    both = ramp(comm, size * 2)
    comm.Alltoall(mpi.IN_PLACE, both)
    seen.append(plain(both))
    both = ramp(comm, 2)
    comm.Scan(mpi.IN_PLACE, both, mpi.SUM)
    seen.append(plain(both))
    both = ramp(comm, size)
    comm.Reduce_scatter_block(mpi.IN_PLACE, both, mpi.SUM)
    seen.append(plain(both[:1]))
    both = np.full(size, -1.0)
    if rank == 0:
        both[0] = 5
        comm.Gather(mpi.IN_PLACE, both, 0)
    else:
        comm.Gather(ramp(comm, 1), None, 0)
    seen.append(plain(both))
    both = ramp(comm, size)
    if rank == 0:
        comm.Scatter(both, mpi.IN_PLACE, 0)
    else:
        comm.Scatter(None, both[:1], 0)
    seen.append(plain(both))
    return seen


@program
def gather_and_scatter(comm, mpi):
    rank, size = comm.Get_rank(), comm.Get_size()
    root = size - 1
    gathered = np.full(2 * size, -1.0) if rank == root else None
    comm.Gather(ramp(comm, 2), gathered, root)
    scattered = np.full(2, -1.0)
    comm.Scatter(ramp(comm, 2 * size) if rank == root else None, scattered, root)
    return (
        gathered,
        scattered,
        comm.gather(rank, root),
        comm.scatter([f"for {each}" for each in range(size)] if rank == root else None, root),
    )


@program
def gatherv_and_scatterv(comm, mpi):
    rank = comm.Get_rank()
    mine, every, offsets = counts(comm)[rank], counts(comm), starts(comm)
    gathered = np.full(offsets[-1] + every[-1] + 1, -1.0)
    comm.Gatherv(ramp(comm, mine), [gathered, every, offsets, mpi.DOUBLE] if rank == 0 else None, 0)
    packed = np.full(sum(every), -1.0)
    comm.Gatherv(ramp(comm, mine), (packed, every) if rank == 0 else None, 0)
    scattered = np.full(mine, -1.0)
    source = [ramp(comm, offsets[-1] + every[-1]), every, offsets, mpi.DOUBLE] if rank == 0 else None
    comm.Scatterv(source, scattered, 0)
    return gathered, packed, scattered


@program
def allgathers(comm, mpi):
    rank, size = comm.Get_rank(), comm.Get_size()
    every, offsets = counts(comm), starts(comm)
    even, uneven = np.full((size, 2), -1.0), np.full(offsets[-1] + every[-1] + 1, -1.0)
    comm.Allgather(ramp(comm, 2), even)
    comm.Allgatherv(ramp(comm, every[rank]), [uneven, every, offsets, mpi.DOUBLE])
    placed = np.full(sum(every), -1.0)
    own = slice(sum(every[:rank]), sum(every[: rank + 1]))
    placed[own] = ramp(comm, every[rank])
    comm.Allgatherv(mpi.IN_PLACE, [placed, every])
    return even, uneven, placed, comm.allgather((rank, "x"))


@program
def alltoalls(comm, mpi):
    rank, size = comm.Get_rank(), comm.Get_size()
    even = np.full(2 * size, -1.0)
    comm.Alltoall(ramp(comm, 2 * size), even)
    # Rank r sends (r + s) % 3 elements to rank s.
    out, back = [(rank + each) % 3 for each in range(size)], [(each + rank) % 3 for each in range(size)]
    uneven = np.full(sum(back), -1.0)
    comm.Alltoallv([ramp(comm, sum(out)), out], [uneven, back])
    return even, uneven, comm.alltoall([(rank, each) for each in range(size)])


@program
def counts_of_a_block(comm, mpi):
    rank, size = comm.Get_rank(), comm.Get_size()

    def blocks(number, spare=0):
        return np.full(2 * number + spare, -1.0)

    def two(array):
        return [array, 2, mpi.DOUBLE]

    gathered, received, scattered, reduced, every = (blocks(n, 3) for n in (size, size, 1, 1, size))
    comm.Allgather(two(ramp(comm, 5)), two(every))
    comm.Alltoall(two(ramp(comm, 2 * size + 1)), two(received))
    comm.Gather(two(ramp(comm, 3)), two(gathered) if rank == 0 else None, 0)
    comm.Scatter(two(ramp(comm, 2 * size)) if rank == 0 else None, two(scattered), 0)
    comm.Reduce_scatter_block(two(ramp(comm, 2 * size + 1)), two(reduced), mpi.SUM)
    comm.Ialltoall(two(ramp(comm, 2 * size)), two(later := blocks(size))).Wait()
    return every, received, gathered, scattered, reduced, later


@program
def reduce_scatters(comm, mpi):
    rank, size = comm.Get_rank(), comm.Get_size()
    every = counts(comm)
    uneven, even = np.full(every[rank], -1.0), np.full(2, -1.0)
    comm.Reduce_scatter(ramp(comm, sum(every)), uneven, every, mpi.SUM)
    comm.Reduce_scatter_block(ramp(comm, 2 * size), even, mpi.SUM)
    return uneven, even


@program
def non_blocking_collectives(comm, mpi):
    rank, size = comm.Get_rank(), comm.Get_size()
    every, offsets = counts(comm), starts(comm)
    zeros = [np.full(size * 2, -1.0) for _ in range(8)]
    broad = ramp(comm, 2)
    ragged = np.full(offsets[-1] + every[-1], -1.0)
    requests = [
        comm.Ibarrier(),
        comm.Ibcast(broad, 0),
        comm.Iallreduce(ramp(comm, 2 * size), zeros[0], mpi.SUM),
        comm.Iallgather(ramp(comm, 2), zeros[1]),
        comm.Iallgatherv(ramp(comm, every[rank]), [ragged, every, offsets, mpi.DOUBLE]),
        comm.Ialltoall(ramp(comm, 2 * size), zeros[2]),
        comm.Ireduce(ramp(comm, 2 * size), zeros[3] if rank == 0 else None, mpi.SUM, 0),
        comm.Igather(ramp(comm, 2), zeros[4] if rank == 0 else None, 0),
        comm.Iscatter(ramp(comm, 2 * size) if rank == 0 else None, zeros[5][:2], 0),
        comm.Ireduce_scatter_block(ramp(comm, 2 * size), zeros[6][:2], mpi.SUM),
        comm.Iscan(ramp(comm, 2 * size), zeros[7], mpi.SUM),
    ]
    mpi.Request.Waitall(requests)
    return broad, ragged, zeros


@program
def two_collectives_under_way(comm, mpi):
    first, second = np.zeros(2), np.zeros(2)
    requests = [
        comm.Iallreduce(ramp(comm, 2), first, mpi.SUM),
        comm.Iallreduce(ramp(comm, 2), second, mpi.MAX),
    ]
    mpi.Request.Waitall(requests[::-1])
    return first, second


@program
def collectives_beside_messages(comm, mpi):
    left, right = neighbours(comm)
    received = np.zeros(1)
    request = comm.Irecv(received, left, 0)
    total = comm.allreduce(1)
    comm.Send(ramp(comm, 1), right, 0)
    comm.Barrier()
    request.Wait()
    return received, total


@program
def blocks_of_several_types(comm, mpi):
    rank, size = comm.Get_rank(), comm.Get_size()
    kinds = [(mpi.DOUBLE, "d"), (mpi.INT, "i"), (mpi.BYTE, "B")]

    def blocks(kind_of, values_of):
        """For each rank a block of one to two elements after eight bytes of another use, of the type that both ranks know."""
        memory, starts, counts, types = bytearray(b"\xff" * 8), [], [], []
        for other in range(size):
            datatype, code = kinds[kind_of(other) % 3]
            block = np.array(values_of(other), code)
            starts.append(len(memory))
            counts.append(block.size)
            types.append(datatype)
            memory += block.tobytes() + b"\xff" * 8
        return [np.frombuffer(memory, np.uint8).copy(), (counts, starts), types]

    results = []
    for blocking in (True, False):
        sent = blocks(
            lambda other: rank + other, lambda other: [10 * rank + other] * (1 + (rank + other) % 2)
        )
        received = blocks(lambda other: rank + other, lambda other: [0] * (1 + (rank + other) % 2))
        if blocking:
            comm.Alltoallw(sent, received)
        else:
            comm.Ialltoallw(sent, received).Wait()
        results.append(received[0])
    return results


@program
def forms_of_blocks_of_several_types(comm, mpi):
    rank, size = comm.Get_rank(), comm.Get_size()
    ones, zeros, types = [1] * size, [0] * size, [mpi.DOUBLE] * size
    results = []
    for form in (
        *([], [(ones, zeros)], [[ones, zeros]], [(None, None)], [ones, zeros], [None, None]),
        *([None], [(None, zeros)], [None, zeros], [1, 0], [ones, None]),
    ):
        received = np.zeros(size)
        try:
            comm.Alltoallw(
                [np.full(1, float(rank)), *form, types],
                [received, (ones, [8 * other for other in range(size)]), types],
            )
        except TypeError:
            results.append(None)
        else:
            results.append(received)
    return results
