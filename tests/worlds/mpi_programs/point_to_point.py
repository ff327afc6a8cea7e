"""Messages and probes."""

from __future__ import annotations

import numpy as np

from tests.worlds.mpi_programs.registry import constant_name, neighbours, plain, program, ramp, status_values


@program
def a_ring_of_sendrecv(comm, mpi):
    left, right = neighbours(comm)
    received, status = np.full(5, -1.0), mpi.Status()
    comm.Sendrecv(ramp(comm, 3), right, 7, received, left, 7, status)
    return received, status_values(mpi, status), status.Get_count(mpi.DOUBLE)


@program
def sendrecv_replace(comm, mpi):
    left, right = neighbours(comm)
    both = ramp(comm, 4, "i")
    status = mpi.Status()
    comm.Sendrecv_replace(both, right, 1, left, 1, status)
    return both, status_values(mpi, status)


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
def ranks_and_tags_of_any_type(comm, mpi):
    """As code has them that divides, or reads them from an array."""
    left, right = neighbours(comm)
    received = np.full(5, -1.0)
    for place, kind in enumerate((float, np.float64, np.int32, np.array)):
        to, back, tag = kind(right), kind(left), kind(place)
        request = comm.Irecv(received[place : place + 1], back, tag)
        sent = comm.Isend(ramp(comm, 1), to, tag)
        while not comm.Iprobe(back, tag) and not request.Get_status():
            pass
        mpi.Request.Waitall([request, sent])
        comm.Sendrecv(ramp(comm, 1), to, tag, received[4:], back, tag)
        one = comm.isend(place, to, tag)
        assert comm.recv(source=back, tag=tag) == comm.sendrecv(place, to, tag, None, back, tag)
        one.wait()
    return received


@program
def wildcards(comm, mpi):
    if comm.Get_rank() == 0:
        seen = []
        for _ in range(comm.Get_size() - 1):
            buffer, status = np.zeros(4), mpi.Status()
            comm.Recv(buffer, mpi.ANY_SOURCE, mpi.ANY_TAG, status)
            seen.append([plain(buffer), *status_values(mpi, status)])
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
    return received, status_values(mpi, status), comm.sendrecv("me", rank, 0, source=rank)


@program
def messages_with_nobody(comm, mpi):
    status, buffer = mpi.Status(), ramp(comm, 2)
    comm.Send(buffer, mpi.PROC_NULL)
    comm.Recv(buffer, mpi.PROC_NULL, status=status)
    seen = [plain(buffer), status_values(mpi, status)]
    status = mpi.Status()
    comm.Probe(mpi.PROC_NULL, 5, status)
    seen += [status_values(mpi, status), comm.Iprobe(mpi.PROC_NULL)]
    status = mpi.Status()
    request = comm.Irecv(buffer, mpi.PROC_NULL)
    seen += [comm.Isend(buffer, mpi.PROC_NULL).Test(), request.Test(status), status_values(mpi, status)]
    seen += [comm.recv(source=mpi.PROC_NULL), comm.sendrecv(1, mpi.PROC_NULL, source=mpi.PROC_NULL)]
    return seen


@program
def an_open_chain_with_nobody_at_its_ends(comm, mpi):
    rank, size = comm.Get_rank(), comm.Get_size()
    up = rank + 1 if rank + 1 < size else mpi.PROC_NULL
    down = rank - 1 if rank else mpi.PROC_NULL
    received, status = np.full(1, -1.0), mpi.Status()
    comm.Sendrecv(ramp(comm, 1), up, 0, received, down, 0, status)
    return received, status_values(mpi, status)


@program
def messages_of_no_elements(comm, mpi):
    left, right = neighbours(comm)
    status = mpi.Status()
    comm.Sendrecv(np.zeros(0), right, 0, np.zeros(3), left, 0, status)
    return status_values(mpi, status)


@program
def shorter_messages_leave_the_rest_alone(comm, mpi):
    left, right = neighbours(comm)
    received, status = np.full(6, -1, "i"), mpi.Status()
    request = comm.Isend([ramp(comm, 6, "i"), (2, 3)], right)
    comm.Recv([received, (4, 1), mpi.INT], left, status=status)
    request.Wait()
    return received, status.Get_count(mpi.INT), constant_name(mpi, status.Get_count(mpi.DOUBLE_COMPLEX))


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
    return received, status_values(mpi, status), status_values(mpi, again)


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
    return received, status_values(mpi, status), value, comm.Improbe(mpi.ANY_SOURCE, 77) is None


@program
def iprobe_of_what_nobody_sends(comm, mpi):
    status = mpi.Status()
    return bool(comm.Iprobe(mpi.ANY_SOURCE, 77, status)), status_values(mpi, status)
