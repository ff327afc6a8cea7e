"""Small SPMD programs over the whole surface of the communicator, each a function of a communicator and of the module of
its constants. What a program returns on each rank follows from the standard alone: no choice of an implementation shows.

Each is run by raw mpi4py, by the guarded communicator and by simulated ranks (:mod:`test_conformance`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from adjointlab import MPI

__all__ = ["ERRORS", "PROGRAMS", "SIMULATED_ONLY", "UNCHECKED", "plain"]

PROGRAMS: dict[str, Any] = {}
ERRORS: dict[str, Any] = {}


SIMULATED_ONLY = {"matched_probing": "Mprobe"}
"""Programs with a call that the guarded communicator has not."""

UNCHECKED = ("a_direction_that_the_grid_has_not", "coordinates_of_a_rank_beyond")
"""Errors that a library may let pass (Open MPI does)."""


def program(function: Any) -> Any:
    PROGRAMS[function.__name__] = function
    return function


def error(function: Any) -> Any:
    """A call that MPI (or mpi4py) refuses, on every rank, before anything is sent."""
    ERRORS[function.__name__] = function
    return function


def plain(value: Any) -> Any:
    """A result in terms that compare with ==, the same in all worlds."""
    if isinstance(value, np.ndarray):
        return (str(value.dtype), value.tolist())
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return value


def ramp(comm: Any, count: int, dtype: str = "d") -> np.ndarray:
    return (10 * comm.Get_rank() + np.arange(count)).astype(dtype)


def counts(comm: Any) -> list[int]:
    """Uneven, and none for rank 1."""
    return [0 if rank == 1 else rank + 1 for rank in range(comm.Get_size())]


def starts(comm: Any) -> list[int]:
    """With a gap of one element before every block."""
    return [sum(counts(comm)[:rank]) + rank + 1 for rank in range(comm.Get_size())]


def neighbours(comm: Any) -> tuple[int, int]:
    return (comm.Get_rank() - 1) % comm.Get_size(), (comm.Get_rank() + 1) % comm.Get_size()


def told(mpi: Any, status: Any) -> list[Any]:
    """What a status says, with constants by their names."""
    return [
        named(mpi, status.Get_source(), "PROC_NULL", "ANY_SOURCE"),
        named(mpi, status.Get_tag(), "ANY_TAG"),
        status.Get_count(mpi.BYTE),
    ]


def number(mpi: Any, value: Any) -> Any:
    return named(mpi, value, "PROC_NULL", "UNDEFINED")


def named(mpi: Any, value: Any, *names: str) -> Any:
    """The name of the constant that `value` equals, as user code compares it."""
    return next((name for name in names if value == getattr(mpi, name)), value)


# Messages


@program
def a_ring_of_sendrecv(comm, mpi):
    left, right = neighbours(comm)
    received, status = np.full(5, -1.0), mpi.Status()
    comm.Sendrecv(ramp(comm, 3), right, 7, received, left, 7, status)
    return received, told(mpi, status), status.Get_count(mpi.DOUBLE)


@program
def sendrecv_replace(comm, mpi):
    left, right = neighbours(comm)
    both = ramp(comm, 4, "i")
    status = mpi.Status()
    comm.Sendrecv_replace(both, right, 1, left, 1, status)
    return both, told(mpi, status)


@program
def messages_by_tag(comm, mpi):
    left, right = neighbours(comm)
    requests = [comm.Isend(np.full(1, float(tag)), right, tag) for tag in (1, 2, 3)]
    received = np.zeros((3, 1))
    for place, tag in enumerate((3, 1, 2)):
        comm.Recv(received[place], left, tag)
    mpi.Request.Waitall(requests)
    return received


@program
def messages_of_one_sender_in_order(comm, mpi):
    left, right = neighbours(comm)
    requests = [comm.isend((comm.Get_rank(), place), right, place % 2) for place in range(4)]
    received = [comm.recv(source=left, tag=mpi.ANY_TAG) for _ in range(4)]
    mpi.Request.waitall(requests)
    return received


@program
def wildcards(comm, mpi):
    if comm.Get_rank() == 0:
        seen = []
        for _ in range(comm.Get_size() - 1):
            buffer, status = np.zeros(4), mpi.Status()
            comm.Recv(buffer, mpi.ANY_SOURCE, mpi.ANY_TAG, status)
            seen.append([plain(buffer), *told(mpi, status)])
        return sorted(seen, key=str)
    comm.Send(ramp(comm, comm.Get_rank()), 0, 10 + comm.Get_rank())
    return None


@program
def kinds_of_send(comm, mpi):
    left, right = neighbours(comm)
    received = np.zeros((3, 2))
    requests = [comm.Irecv(received[place], left, place) for place in range(3)]
    comm.Ssend(ramp(comm, 2), right, 0)
    comm.Issend(ramp(comm, 2), right, 1).Wait()
    comm.Send([ramp(comm, 5), 2, mpi.DOUBLE], right, 2)
    mpi.Request.Waitall(requests)
    return received


@program
def a_message_to_oneself(comm, mpi):
    rank = comm.Get_rank()
    received, status = np.zeros(2), mpi.Status()
    request = comm.Irecv(received, rank, 4)
    comm.Send(ramp(comm, 2), rank, 4)
    request.Wait(status)
    return received, told(mpi, status), comm.sendrecv("me", rank, 0, source=rank)


@program
def messages_with_nobody(comm, mpi):
    status, buffer = mpi.Status(), ramp(comm, 2)
    comm.Send(buffer, mpi.PROC_NULL)
    comm.Recv(buffer, mpi.PROC_NULL, status=status)
    seen = [plain(buffer), told(mpi, status)]
    status = mpi.Status()
    comm.Probe(mpi.PROC_NULL, 5, status)
    seen += [told(mpi, status), comm.Iprobe(mpi.PROC_NULL)]
    status = mpi.Status()
    request = comm.Irecv(buffer, mpi.PROC_NULL)
    seen += [comm.Isend(buffer, mpi.PROC_NULL).Test(), request.Test(status), told(mpi, status)]
    seen += [comm.recv(source=mpi.PROC_NULL), comm.sendrecv(1, mpi.PROC_NULL, source=mpi.PROC_NULL)]
    return seen


@program
def an_open_chain_with_nobody_at_its_ends(comm, mpi):
    rank, size = comm.Get_rank(), comm.Get_size()
    up = rank + 1 if rank + 1 < size else mpi.PROC_NULL
    down = rank - 1 if rank else mpi.PROC_NULL
    received, status = np.full(1, -1.0), mpi.Status()
    comm.Sendrecv(ramp(comm, 1), up, 0, received, down, 0, status)
    return received, told(mpi, status)


@program
def messages_of_no_elements(comm, mpi):
    left, right = neighbours(comm)
    status = mpi.Status()
    comm.Sendrecv(np.zeros(0), right, 0, np.zeros(3), left, 0, status)
    return told(mpi, status)


@program
def shorter_messages_leave_the_rest_alone(comm, mpi):
    left, right = neighbours(comm)
    received, status = np.full(6, -1, "i"), mpi.Status()
    request = comm.Isend([ramp(comm, 6, "i"), (2, 3)], right)
    comm.Recv([received, (4, 1), mpi.INT], left, status=status)
    request.Wait()
    return received, status.Get_count(mpi.INT), number(mpi, status.Get_count(mpi.DOUBLE_COMPLEX))


@program
def element_types(comm, mpi):
    left, right = neighbours(comm)
    seen = []
    for dtype in ("?", "i1", "u1", "i2", "i4", "u4", "i8", "u8", "f4", "f8", "c8", "c16"):
        received = np.zeros(2, dtype)
        comm.Sendrecv(ramp(comm, 2, dtype), right, 0, received, left, 0)
        seen.append(plain(received))
    return seen


@program
def other_buffers(comm, mpi):
    left, right = neighbours(comm)
    fortran = np.zeros((2, 3), order="F")
    sent = np.asfortranarray(ramp(comm, 6).reshape(2, 3))
    comm.Sendrecv(sent, right, 0, fortran, left, 0)
    octets = bytearray(4)
    comm.Sendrecv(bytes([comm.Get_rank()] * 4), right, 0, octets, left, 0)
    number = np.zeros(())
    comm.Sendrecv(np.array(2.5), right, 0, number, left, 0)
    return fortran, list(octets), float(number)


@program
def objects(comm, mpi):
    left, right = neighbours(comm)
    seen = []
    for value in (None, [], {"a": (1, 2)}, "text", ramp(comm, 2)):
        request = comm.isend(value, right, 3)
        seen.append(plain(comm.recv(source=left, tag=3)))
        request.wait()
    seen.append(comm.sendrecv((comm.Get_rank(), "x"), right, 1, source=left, recvtag=1))
    request = comm.irecv(source=left, tag=9)
    comm.ssend("synchronous", right, 9) if comm.Get_rank() % 2 else comm.send("standard", right, 9)
    seen.append(request.wait())
    return seen


# Probes


@program
def probing(comm, mpi):
    left, right = neighbours(comm)
    request = comm.Isend(ramp(comm, 2 + comm.Get_rank()), right, 5)
    status = mpi.Status()
    comm.Probe(left, mpi.ANY_TAG, status)
    again = mpi.Status()
    while not comm.Iprobe(left, 5, again):
        pass
    received = np.zeros(status.Get_count(mpi.DOUBLE))
    comm.Recv(received, status.Get_source(), status.Get_tag())
    request.Wait()
    return received, told(mpi, status), told(mpi, again)


@program
def matched_probing(comm, mpi):
    left, right = neighbours(comm)
    requests = [comm.Isend(ramp(comm, 2), right, 1), comm.isend("object", right, 2)]
    status = mpi.Status()
    message = comm.Mprobe(left, 1, status)
    received = np.zeros(2)
    message.Recv(received)
    second = None
    while second is None:
        second = comm.improbe(left, 2)
    value = second.recv()
    mpi.Request.Waitall(requests)
    return received, told(mpi, status), value, comm.Improbe(mpi.ANY_SOURCE, 77) is None


@program
def iprobe_of_what_nobody_sends(comm, mpi):
    status = mpi.Status()
    return bool(comm.Iprobe(mpi.ANY_SOURCE, 77, status)), told(mpi, status)


# Requests


def pending(comm, mpi, many=3):
    """Receives from the left, and what is sent to the right; everything is under way on return."""
    left, right = neighbours(comm)
    received = np.zeros((many, 1))
    receives = [comm.Irecv(received[place], left, place) for place in range(many)]
    sends = [comm.Isend(ramp(comm, 1) + place, right, place) for place in range(many)]
    return received, receives, sends


@program
def waitall_with_statuses(comm, mpi):
    received, receives, sends = pending(comm, mpi)
    statuses = [mpi.Status() for _ in receives]
    mpi.Request.Waitall(receives, statuses)
    mpi.Request.Waitall(sends)
    return received, [told(mpi, status) for status in statuses], [bool(each) for each in receives]


@program
def waiting_for_nothing(comm, mpi):
    _received, receives, sends = pending(comm, mpi)
    mpi.Request.Waitall([*receives, *sends])
    status = mpi.Status()
    return (
        mpi.Request.Waitall(receives),
        mpi.Request.Testall(receives),
        number(mpi, mpi.Request.Waitany(receives)),
        mpi.Request.Waitsome(receives),
        mpi.Request.Testsome(receives),
        [number(mpi, part) for part in mpi.Request.Testany(receives)],
        receives[0].Wait(),
        receives[0].Test(status),
        told(mpi, status),
    )


@program
def waitany_until_none_is_left(comm, mpi):
    received, receives, sends = pending(comm, mpi)
    indices, seen = [], []
    for _ in receives:
        status = mpi.Status()
        indices.append(mpi.Request.Waitany(receives, status))
        seen.append(told(mpi, status))
    mpi.Request.Waitall(sends)
    matched = all(seen[place][1] == index for place, index in enumerate(indices))
    return sorted(indices), received, matched, number(mpi, mpi.Request.Waitany(receives))


@program
def waitsome_until_none_is_left(comm, mpi):
    received, receives, sends = pending(comm, mpi)
    indices = []
    while (some := mpi.Request.Waitsome(receives)) is not None:
        assert some
        indices += some
    mpi.Request.Waitall(sends)
    return sorted(indices), received


@program
def testing_until_complete(comm, mpi):
    received, receives, sends = pending(comm, mpi, many=4)
    while not receives[0].Test():
        pass
    while not mpi.Request.Testall(receives[1:2]):
        pass
    rest, indices = receives[2:], []
    while len(indices) < 1:
        index, flag = mpi.Request.Testany(rest)
        if flag:
            indices.append(index)
    while len(indices) < 2:
        indices += mpi.Request.Testsome(rest)
    mpi.Request.Waitall(sends)
    return received, sorted(indices)


@program
def objects_by_request(comm, mpi):
    left, right = neighbours(comm)
    sends = [comm.isend((comm.Get_rank(), tag), right, tag) for tag in range(4)]
    receives = [comm.irecv(source=left, tag=tag) for tag in range(4)]
    index, first = mpi.Request.waitany(receives[:1])
    status = mpi.Status()
    second = receives[1].wait(status)
    rest = mpi.Request.waitall(receives[2:])
    mpi.Request.waitall(sends)
    return index, first, second, told(mpi, status)[:2], rest, receives[0].test()


@program
def a_cancelled_receive(comm, mpi):
    buffer, status = ramp(comm, 2), mpi.Status()
    request = comm.Irecv(buffer, mpi.ANY_SOURCE, 99)
    request.Cancel()
    request.Wait(status)
    return buffer, status.Is_cancelled()


# Collectives


@program
def barrier(comm, mpi):
    comm.barrier()
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
def reduce_scatters(comm, mpi):
    rank, size = comm.Get_rank(), comm.Get_size()
    every = counts(comm)
    uneven, even = np.full(every[rank], -1.0), np.full(2, -1.0)
    comm.Reduce_scatter(ramp(comm, sum(every)), uneven, every, mpi.SUM)
    comm.Reduce_scatter_block(ramp(comm, 2 * size), even, mpi.SUM)
    return uneven, even


@program
def collectives_of_objects(comm, mpi):
    rank = comm.Get_rank()
    return (
        comm.allreduce(rank + 1),
        comm.allreduce([rank], mpi.SUM),
        comm.allreduce(rank, mpi.MAX),
        comm.allreduce(f"{rank}", lambda a, b: a + b),
        comm.reduce(str(rank), mpi.SUM, 0),
    )


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


# Communicators


def census(comm, mpi):
    """Who is in a communicator, by the ranks in the one that it came from."""
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
        number(mpi, rest.Get_rank()),
        rest.Get_size(),
        [number(mpi, each) for each in whole.Translate_ranks(list(range(size)), rest)],
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
    chosen.Free()
    whole.Free()
    return seen


@program
def a_line(comm, mpi):
    line = comm.Create_cart([comm.Get_size()], [False])
    seen = [census(line, mpi), line.Get_coords(line.Get_rank()), line.Get_dim(), plain(line.Get_topo())]
    for step in (1, -1, comm.Get_size()):
        seen.append([number(mpi, each) for each in line.Shift(0, step)])
    source, dest = line.Shift(0, 1)
    received, status = np.full(1, -1.0), mpi.Status()
    line.Sendrecv(ramp(line, 1), dest, 0, received, source, 0, status)
    seen += [plain(received), told(mpi, status)]
    line.Free()
    return seen


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
        [[number(mpi, each) for each in torus.Shift(axis, step)] for axis in (0, 1) for step in (1, 2, -1)],
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
        number(mpi, comm.Get_topology()),
    )


# What is refused


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
