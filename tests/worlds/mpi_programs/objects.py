"""Messages and collectives of objects."""

from __future__ import annotations

from tests.worlds.mpi_programs.registry import neighbours, plain, program, ramp, status_values


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


@program
def objects_that_a_posted_receive_takes(comm, mpi):
    left, right = neighbours(comm)
    seen = []
    for source, dest in ((left, right), (comm.Get_rank(), comm.Get_rank())):
        request = comm.irecv(source=source, tag=4)
        comm.ssend((comm.Get_rank(), "waits for its receive"), dest, 4)
        seen.append(request.wait())
        request = comm.irecv(source=source, tag=5)
        sending = comm.issend("polled", dest, 5)
        while not sending.test()[0]:
            pass
        seen.append(request.wait())
    return seen


@program
def a_posted_receive_of_an_object_has_the_first_message_that_matches(comm, mpi):
    left, right = neighbours(comm)
    posted, later, found = (
        comm.irecv(source=left, tag=6),
        comm.irecv(source=mpi.ANY_SOURCE, tag=7),
        ramp(comm, 2),
    )
    sends = [
        comm.isend("the first", right, 6),
        comm.Isend(ramp(comm, 2), right, 6),
        comm.isend("third", right, 7),
    ]
    comm.Barrier()
    seen = [comm.Iprobe(left, 7)]
    comm.Recv(found, left, 6)
    seen += [plain(found), comm.Iprobe(left, 6), later.wait(), posted.wait(), posted.wait()]
    mpi.Request.waitall(sends)
    return seen


@program
def messages_of_one_sender_in_order(comm, mpi):
    left, right = neighbours(comm)
    requests = [comm.isend((comm.Get_rank(), place), right, place % 2) for place in range(4)]
    received = [comm.recv(source=left, tag=mpi.ANY_TAG) for _ in range(4)]
    mpi.Request.waitall(requests)
    return received


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
    return index, first, second, status_values(mpi, status)[:2], rest, receives[0].test()


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
def objects_by_tests_of_several(comm, mpi):
    left, right = neighbours(comm)
    sends = [comm.isend((comm.Get_rank(), tag), right, tag) for tag in range(3)]
    receives = [comm.irecv(source=left, tag=tag) for tag in range(3)]
    done, first = False, None
    while not done:
        index, done, first = mpi.Request.testany(receives[:1])
    done, second = False, None
    while not done:
        done, second = mpi.Request.testall(receives[1:2])
    indices, third = mpi.Request.waitsome(receives[2:])
    mpi.Request.waitall(sends)
    return index, first, second, indices, third, mpi.Request.testsome(receives)


@program
def what_a_broadcast_returns_is_the_ranks_own(comm, mpi):
    given = [comm.Get_rank()]
    comm.bcast(given, root=0).append("more")
    comm.scatter([given] * comm.Get_size(), root=0).append("more")
    comm.allgather(given)[comm.Get_rank()].append("more")
    return given
