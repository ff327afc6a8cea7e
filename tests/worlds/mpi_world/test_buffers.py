"""Buffers of pending operations are watched under MPI too: a finding where user code touches one too early.

``mpiexec -n 3 python -m pytest --with-mpi tests/worlds/mpi_world/test_buffers.py``
"""

from __future__ import annotations

import gc
import re

import numpy as np
import pytest

from adjointlab import MPI
from adjointlab.worlds.launch import is_launched
from tests.worlds.mpi_programs.registry import counts, neighbours
from tests.worlds.mpi_world.worlds import opened

pytestmark = pytest.mark.skipif(
    not is_launched(), reason="processes of MPI are needed: run under mpiexec -n 3"
)


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "strict"])
def world(request):
    with opened(patience=5.0, strict=request.param, least=2) as world:
        yield world


def a_changed_message(comm):
    left, right = neighbours(comm)
    x, y = np.ones(3), np.empty(3)
    request = comm.Isend(x, right, 1)
    x[1] += 1
    comm.Recv(y, left, 1)
    request.Wait()


def a_changed_part(comm):
    left, right = neighbours(comm)
    x, y = np.ones(3), np.empty(1)
    request = comm.Issend([x, (1, 2), MPI.DOUBLE], right)
    x[2] = 5
    comm.Recv(y, left)
    request.Wait()


def a_change_of_one_bit_in_many(comm):
    left, right = neighbours(comm)
    x, y = np.ones(100_003, "f"), np.empty(100_003, "f")
    requests = [comm.Isend(x, right), comm.Irecv(y, left)]
    x.view(np.uint32)[100_000 if comm.rank else 5000] ^= 1
    MPI.Request.Waitall(requests)


def a_changed_contribution(comm):
    x, y = np.ones(3), np.empty(3)
    request = comm.Iallreduce(x, y)
    x[:] = 0
    while not request.Test():
        pass


def changed_blocks(comm):
    sizes = [1] * comm.size
    x, y = np.arange(2.0 * comm.size), np.empty(comm.size)
    request = comm.Ialltoallv([x, (sizes, [2 * rank for rank in range(comm.size)])], [y, sizes])
    x[::2] = 9
    request.Wait()


def one_buffer_for_two_collectives(comm):
    x, y, z = np.ones(3), np.zeros(3), np.zeros(3)
    MPI.Request.Waitall([comm.Iallreduce(x, y), comm.Iallreduce(y, z)])


def one_buffer_received_twice(comm):
    y = np.zeros(4)
    MPI.Request.Waitall([comm.Iallreduce(np.ones(3), y[:3]), comm.Ibcast(y[2:])])


def a_message_into_a_pending_buffer(comm):
    left, right = neighbours(comm)
    x, y = np.ones(3), np.empty(3)
    request = comm.Isend(y, right, 1)
    comm.Sendrecv(x, right, 2, y[:1], left, 2) if comm.rank else comm.Sendrecv(x, right, 2, y[1:2], left, 2)
    comm.Recv(np.empty(3), left, 1)
    request.Wait()


def a_collective_on_a_pending_buffer(comm):
    left, right = neighbours(comm)
    y = np.empty(3)
    request = comm.Irecv(y, left)
    comm.Allreduce(np.ones(3), y)
    comm.Send(np.ones(3), right)
    request.Wait()


MISUSES = {
    a_changed_message: r"changed the send buffer of Isend\(dest=\d, tag=1\)",
    a_changed_part: r"changed the send buffer of Issend\(dest=\d",
    a_change_of_one_bit_in_many: r"changed the send buffer of Isend\(dest=\d, tag=0\)",
    a_changed_contribution: r"changed the send buffer of Iallreduce\(",
    changed_blocks: r"changed the send buffer of Ialltoallv\(",
    one_buffer_for_two_collectives: r"sent from the receive buffer of Iallreduce\(.* by Iallreduce\(",
    one_buffer_received_twice: r"wrote into the receive buffer of Iallreduce\(.* by Ibcast\(",
    a_message_into_a_pending_buffer: r"changed the send buffer of Isend\(.* by Sendrecv\(",
    a_collective_on_a_pending_buffer: r"wrote into the receive buffer of Irecv\(.* by Allreduce\(",
}


@pytest.mark.parametrize("program", MISUSES, ids=lambda program: program.__name__)
def test_what_is_done_to_a_buffer_too_early_is_a_finding(program, world):
    result = world.run(lambda context, _: program(context.comm))
    texts = [finding.text for finding in result.findings if finding.kind == "buffer misused"]
    for rank in range(1, world.ranks):  # where ranks have roles, these are alike
        pattern = rf"rank {rank} {MISUSES[program]}"
        assert any(re.match(pattern, text) and "test_buffers.py:" in text for text in texts), result.findings


def every_legal_use(comm):
    """Buffers that are shared, and operations that follow each other, as MPI allows."""
    left, right = neighbours(comm)
    x, y, z = np.arange(6.0), np.zeros(6), np.zeros(6)
    requests = [comm.Isend(x, right, tag) for tag in (1, 2)]  # read by two
    requests += [
        comm.Irecv(y[:3].copy(), left, 9),
        comm.Irecv(y[3:], MPI.PROC_NULL),
        comm.Irecv(y[3:], MPI.PROC_NULL),
    ]
    requests += [comm.Irecv(each, left, tag) for tag, each in ((1, y), (2, z))]
    comm.Send(x[:3], right, 9)  # read by a third
    MPI.Request.Waitall(requests)
    x[:] = 0
    halves = [comm.Irecv(y[:3], left, 1), comm.Irecv(y[3:], left, 2), comm.Irecv(y[6:], left, 3)]
    for tag, part in ((1, x[:3]), (2, x[3:]), (3, x[6:])):
        comm.Send(part, right, tag)
    MPI.Request.Waitall(halves)
    given, whole = counts(comm), np.zeros(sum(counts(comm)))
    mine = np.zeros(given[comm.rank])
    first = comm.Iscatterv([whole, given], mine, 0)
    comm.Bcast(y)
    second = comm.Ireduce(x, y if comm.rank == 0 else None, MPI.SUM, 0)
    MPI.Request.Waitall([first, second])
    comm.Iallreduce(MPI.IN_PLACE, y).Wait()
    comm.Iallreduce(MPI.IN_PLACE, y).Wait()
    for request in (comm.Iallgather(x, np.empty(6 * comm.size)), comm.Ibarrier(), comm.Iscan(x, y)):
        request.Wait()


def test_legal_uses_are_none(world):
    result = world.run(lambda context, _: every_legal_use(context.comm))
    assert result.completed, (result.findings, result.outcomes)
    assert not result.findings


@pytest.mark.parametrize("count", [1, 8192, 8193, 100_000])
@pytest.mark.parametrize("shape", ["flat", "C", "F"])
def test_no_change_of_a_buffer_is_lost(count, shape):
    from adjointlab.worlds.mpi.buffer_watch import watch_send

    sent = np.arange(2.0 * count) if shape == "flat" else np.arange(2.0 * count).reshape(2, -1, order=shape)
    watch = watch_send(sent)
    watch.begin()
    assert not watch.misuse()
    for change in (lambda: sent.flat.__setitem__(-1, -1.0), lambda: np.copyto(sent, sent[::-1].copy())):
        kept = sent.copy()
        change()
        assert watch.misuse() == "changed the send buffer"
        sent[...] = kept
    assert not watch.misuse()


def test_a_datatype_of_mpi_is_freed_with_the_last_use_of_ours():
    from adjointlab.worlds.constants import to_mpi4py

    ours = MPI.DOUBLE.Create_vector(2, 1, 3).Commit()
    theirs = to_mpi4py(ours)
    assert to_mpi4py(ours) is theirs
    assert theirs.Get_extent() == (0, 32)
    ours.Free()
    assert to_mpi4py(ours) is not theirs
    del ours
    gc.collect()
    assert not theirs
