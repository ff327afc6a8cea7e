"""Completion of requests."""

from __future__ import annotations

import numpy as np

from tests.worlds.mpi_programs.registry import constant_name, neighbours, program, ramp, status_values


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
    return received, [status_values(mpi, status) for status in statuses], [bool(each) for each in receives]


@program
def waiting_for_nothing(comm, mpi):
    _received, receives, sends = pending(comm, mpi)
    mpi.Request.Waitall([*receives, *sends])
    status = mpi.Status()
    return (
        mpi.Request.Waitall(receives),
        mpi.Request.Testall(receives),
        constant_name(mpi, mpi.Request.Waitany(receives)),
        mpi.Request.Waitsome(receives),
        mpi.Request.Testsome(receives),
        [constant_name(mpi, part) for part in mpi.Request.Testany(receives)],
        receives[0].Wait(),
        receives[0].Test(status),
        status_values(mpi, status),
    )


@program
def waitany_until_none_is_left(comm, mpi):
    received, receives, sends = pending(comm, mpi)
    indices, seen = [], []
    for _ in receives:
        status = mpi.Status()
        indices.append(mpi.Request.Waitany(receives, status))
        seen.append(status_values(mpi, status))
    mpi.Request.Waitall(sends)
    matched = all(seen[place][1] == index for place, index in enumerate(indices))
    return sorted(indices), received, matched, constant_name(mpi, mpi.Request.Waitany(receives))


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
def persistent_requests(comm, mpi):
    left, right = neighbours(comm)
    x, y = ramp(comm, 2), np.zeros(2)
    send, receive, empty = (
        comm.Send_init(x, right, 4),
        comm.Recv_init(y, left, 4),
        comm.Ssend_init(x, mpi.PROC_NULL),
    )
    seen = []
    for turn in range(3):
        x[:] += turn
        receive.Start()
        send.Start()
        empty.Start()
        status = mpi.Status()
        if turn == 1:
            mpi.Request.Waitall([send, receive, empty], [mpi.Status(), status, mpi.Status()])
        else:
            receive.Wait(status)
            while not send.Test():
                pass
            empty.Wait()
        seen += [y.copy(), status_values(mpi, status), receive.Wait(), send.Test()]
    for request in (send, receive, empty):
        request.Free()
    return seen


@program
def requests_of_which_nothing_is_left(comm, mpi):
    """As code asks that completes requests until none is left, or has a list with places for messages that there are not."""
    left, right = neighbours(comm)
    received = np.full(2, -1.0)
    requests = [mpi.REQUEST_NULL] * 5
    requests[1], requests[2] = comm.Irecv(received[:1], left, 1), comm.irecv(source=left, tag=2)
    requests[3], requests[4] = comm.Isend(ramp(comm, 1), right, 1), comm.isend("text", right, 2)
    number = 0
    while any(each != mpi.REQUEST_NULL for each in requests):
        mpi.Request.Waitany(requests)
        number += 1
    freed = comm.Isend(ramp(comm, 1), comm.Get_rank(), 3)
    seen = [freed == mpi.REQUEST_NULL, freed != mpi.REQUEST_NULL, freed == freed, freed in requests]
    freed.Free()
    comm.Recv(received[1:], comm.Get_rank(), 3)
    barrier = comm.Ibarrier()
    barrier.Wait()
    nothing = [freed, barrier, *requests]
    seen += [each == mpi.REQUEST_NULL for each in nothing] + [each == mpi.REQUEST_NULL for each in nothing]
    seen += [freed == barrier, freed == 0, freed is None, bool(mpi.REQUEST_NULL), mpi.REQUEST_NULL.Test()]
    seen += [mpi.Request.Testall(nothing), mpi.Request.Waitsome(nothing), refuses_a_hash(freed)]
    return received, number, seen


def refuses_a_hash(request):
    return type(request).__hash__ is None


@program
def a_persistent_request_before_and_after_it_is_freed(comm, mpi):
    received, own = np.zeros(1), comm.Get_rank()
    request, idle = comm.Recv_init(received, own, 6), comm.Send_init(received, own, 7)
    seen = [bool(idle), idle == mpi.REQUEST_NULL, constant_name(mpi, mpi.Request.Waitany([idle]))]
    sent = comm.Isend(ramp(comm, 1), own, 6)
    request.Start()
    seen += [bool(request), mpi.Request.Waitany([idle, request]), mpi.Request.Testall([idle, request])]
    seen += [bool(request), request == mpi.REQUEST_NULL, request == idle]
    sent.Wait()
    for each in (request, idle):
        each.Free()
    return received, [*seen, bool(request), request == mpi.REQUEST_NULL, request == idle]


@program
def a_cancelled_receive(comm, mpi):
    buffer, status = ramp(comm, 2), mpi.Status()
    request = comm.Irecv(buffer, mpi.ANY_SOURCE, 99)
    request.Cancel()
    request.Wait(status)
    seen = [status.Is_cancelled()]
    comm.Sendrecv(buffer, comm.Get_rank(), 1, buffer.copy(), comm.Get_rank(), 1, status)
    return buffer, [*seen, status.Is_cancelled()]


@program
def a_cancelled_receive_of_an_object(comm, mpi):
    status = mpi.Status()
    request = comm.irecv(source=mpi.ANY_SOURCE, tag=99)
    request.Cancel()
    request.Wait(status)
    return status.Is_cancelled()


@program
def a_status_before_completion(comm, mpi):
    left, right = neighbours(comm)
    received, status = np.zeros(2), mpi.Status()
    request = comm.Irecv(received, left, 3)
    comm.Send(ramp(comm, 2), right, 3)
    while not request.Get_status(status):
        pass
    active = bool(request)
    request.Wait()
    return active, bool(request), received, status_values(mpi, status)
