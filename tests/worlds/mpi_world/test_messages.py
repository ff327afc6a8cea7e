"""Messages that are received as something else than was sent are findings under MPI, with the lines of both sides.

``mpiexec -n 3 python -m pytest --with-mpi tests/worlds/mpi_world/test_messages.py``
"""

from __future__ import annotations

import re

import numpy as np
import pytest

from adjointlab import MPI
from adjointlab.worlds.launch import is_launched
from tests.worlds.mpi_world.worlds import opened

pytestmark = pytest.mark.skipif(
    not is_launched(), reason="processes of MPI are needed: run under mpiexec -n 3"
)


@pytest.fixture(scope="module")
def world():
    with opened(patience=5.0, least=2) as world:
        yield world


# What rank 0 does, what rank 1 does, and the finding.
MISMATCHES = {
    "a pickle that is too large for irecv without a buffer": (
        lambda comm: comm.send(bytes(40_000), 1),
        lambda comm: comm.irecv(source=0).wait(),
        "an object of 40018 bytes, pickled, was sent, and the receive has room for 32768",
    ),
    "a pickle that is too large for its buffer": (
        lambda comm: comm.send([1, 2, 3], 1),
        lambda comm: comm.recv(bytearray(5), 0),
        "an object of 22 bytes, pickled, was sent, and the receive has room for 5",
    ),
    "a pickle into a buffer": (
        lambda comm: comm.send({"many": [1, 2]}, 1),
        lambda comm: comm.Recv(np.zeros(90), 0),
        "an object was sent, and float64 is received",
    ),
    "a pickle into a buffer, by wildcards": (
        lambda comm: comm.isend([1], 1, 7).wait(),
        lambda comm: comm.Irecv(np.zeros(90)).Wait(),
        "an object was sent, and float64 is received",
    ),
    "a buffer as an object": (
        lambda comm: comm.Send(np.ones(4), 1),
        lambda comm: comm.recv(),
        "an array was sent, and an object is received",
    ),
    "single precision as double": (
        lambda comm: comm.Send(np.ones(4, "f"), 1, 3),
        lambda comm: comm.Recv(np.zeros(2), 0, 3),
        "float32 was sent, and float64 is received",
    ),
    "integers as numbers": (
        lambda comm: comm.Sendrecv(np.ones(4, "q"), 1, 0, np.ones(1), MPI.PROC_NULL),
        lambda comm: comm.Sendrecv(np.ones(1), MPI.PROC_NULL, 0, np.ones(4)),
        "int64 was sent, and float64 is received",
    ),
    "the second of two": (
        lambda comm: [comm.Send(np.ones(2), 1, 5), comm.Send(np.ones(2, "f"), 1, 5), comm.send(1, 1, 6)],
        lambda comm: [comm.recv(source=0, tag=6), comm.Recv(np.ones(2), 0, 5), comm.Recv(np.ones(2))],
        "float32 was sent, and float64 is received",
    ),
    "more than there is room, by wildcards": (
        lambda comm: comm.Send(np.ones(4), 1),
        lambda comm: comm.Irecv(np.zeros(2)).Wait(),
        "32 bytes were sent, and the receive buffer holds 16",
    ),
    "more than there is room": (
        lambda comm: comm.Send(np.ones(4), 1),
        lambda comm: comm.Recv(np.zeros(2), 0),
        "32 bytes were sent, and the receive buffer holds 16",
    ),
}


@pytest.mark.parametrize("what", MISMATCHES)
def test_a_message_that_is_received_as_another_is_named(world, what):
    send, receive, reason = MISMATCHES[what]
    run = world.run(lambda context, _: (send, receive, lambda comm: None)[min(context.rank, 2)](context.comm))
    found = [finding.text for finding in run.findings if finding.kind == "mismatched message"]
    assert len(found) == 1, run
    assert found[0].startswith(reason)
    assert re.search(rf"sent .* at {re.escape(__file__)}:\d+ on rank 0", found[0])
    assert re.search(rf"received .* at {re.escape(__file__)}:\d+ on rank 1", found[0])


def test_messages_that_fit_are_let_pass(world):
    def body(context, _):
        comm, rank = context.comm, context.rank
        if rank == 1:
            gone = comm.Irecv(np.empty(3, "i"), 0, 5)
            gone.Cancel()
            gone.Wait()
        comm.Barrier()  # or the message would be there, and received, before the receive is cancelled
        if rank == 0:
            comm.Send(np.ones(2), 1)
            comm.Send([np.arange(8, dtype="b"), MPI.BYTE], 1, 1)
            comm.Send(np.ones(1), 1, 2)
            comm.send("word", 1, 3)
            comm.Send(np.ones(0, "f"), 1, 4)
            comm.Ssend(np.ones(2), 1, 5)
            comm.Send(np.ones(3, "f"), 1, 6)
        if rank == 1:
            later = comm.Irecv(np.empty(9, "f"), MPI.ANY_SOURCE, 6)
            comm.Recv(np.empty(7))  # shorter than there is room
            comm.Recv(np.empty(1), 0, 1)  # bytes
            comm.Recv([np.empty(8, "B"), MPI.BYTE], 0, 2)
            comm.Recv([bytearray(99), MPI.BYTE], 0, 3)
            comm.Recv(np.empty(1), 0, 4)  # nothing at all
            comm.Recv(np.empty(2), 0, 5)
            later.Wait()

    run = world.run(body)
    assert run.completed, run
    assert not run.findings
