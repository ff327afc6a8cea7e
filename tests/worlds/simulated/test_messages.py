"""Messages between simulated ranks arrive as the standard says, whatever nondeterminism the run takes."""

import numpy as np
import pytest

from adjointlab import MPI
from adjointlab.worlds.simulated.world import SimulatedWorld
from tests.worlds.simulated.completed import values

WORLD = SimulatedWorld(4)
SEEDS = range(6)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_ring_shift_moves_every_block_one_to_the_right(seed):
    def body(comm):
        received = np.zeros(3)
        comm.Sendrecv(
            np.full(3, comm.rank), (comm.rank + 1) % 4, recvbuf=received, source=(comm.rank - 1) % 4
        )
        return received[0]

    with pytest.raises(AssertionError, match="int64 was sent, and float64 is received"):
        values(body, seed=seed)

    def typed(comm):
        received = np.zeros(3)
        sent = np.full(3, float(comm.rank))
        comm.Sendrecv(sent, (comm.rank + 1) % 4, recvbuf=received, source=(comm.rank - 1) % 4)
        replaced = sent
        comm.Sendrecv_replace(replaced, (comm.rank + 1) % 4, source=(comm.rank - 1) % 4)
        assert (replaced == received).all()
        return received[0]

    assert values(typed, seed=seed) == (3, 0, 1, 2)


@pytest.mark.parametrize("seed", SEEDS)
def test_messages_of_one_sender_do_not_overtake_each_other(seed):
    def body(comm):
        if comm.rank:
            for number in range(5):
                comm.send((comm.rank, number), 0, tag=number % 2)
            return None
        matched = [comm.recv() for _ in range(15)]
        return [[number for who, number in matched if who == rank] for rank in (1, 2, 3)]

    assert values(body, seed=seed)[0] == [[0, 1, 2, 3, 4]] * 3


def test_a_wildcard_receive_matches_the_senders_in_different_orders_for_different_seeds():
    def body(comm):
        if comm.rank:
            comm.send(comm.rank, 0)
            return None
        return tuple(comm.recv(source=MPI.ANY_SOURCE) for _ in range(3))

    orders = {values(body, seed=seed)[0] for seed in range(40)}
    assert values(body, seed=0)[0] == (1, 2, 3)
    assert len(orders) > 3


@pytest.mark.parametrize("seed", SEEDS)
def test_tags_select_among_the_messages_of_one_sender(seed):
    def body(comm):
        if comm.rank == 0:
            requests = [comm.isend(tag, 1, tag=tag) for tag in (5, 6, 7)]
            MPI.Request.waitall(requests)
            return None
        return [comm.recv(source=0, tag=tag) for tag in (7, 5, 6)]

    assert values(body, ranks=2, seed=seed)[1] == [7, 5, 6]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_message_may_be_shorter_than_the_receive_buffer_and_leaves_its_rest_alone(seed):
    def body(comm):
        if comm.rank == 0:
            comm.Send(np.array([1.0, 2.0]), 1, tag=3)
            return None
        buffer, status = np.full(4, 9.0), MPI.Status()
        comm.Irecv(buffer).Wait(status)
        return buffer.tolist(), status.Get_source(), status.Get_tag(), status.Get_count(MPI.DOUBLE)

    assert values(body, ranks=2, seed=seed)[1] == ([1.0, 2.0, 9.0, 9.0], 0, 3, 2)


@pytest.mark.parametrize("seed", SEEDS)
def test_nobody_is_a_legal_partner(seed):
    def body(comm):
        buffer, status = np.ones(2), MPI.Status()
        comm.Send(buffer, MPI.PROC_NULL)
        comm.Recv(buffer, MPI.PROC_NULL, status=status)
        MPI.Request.Waitall([comm.Isend(buffer, MPI.PROC_NULL), comm.Irecv(buffer, MPI.PROC_NULL)])
        return buffer.tolist(), status.Get_source(), comm.recv(source=MPI.PROC_NULL)

    assert values(body, ranks=1, seed=seed) == (([1.0, 1.0], MPI.PROC_NULL, None),)


@pytest.mark.parametrize("seed", SEEDS)
def test_requests_complete_in_every_way(seed):
    def body(comm):
        if comm.rank == 0:
            for number in range(6):
                comm.Ssend(np.array([float(number)]), 1, tag=number)
            return None
        buffers = [np.zeros(1) for _ in range(6)]
        requests = [comm.Irecv(buffer, 0, tag) for tag, buffer in enumerate(buffers)]
        requests[0].Wait()
        while not requests[1].Test():
            pass
        assert MPI.Request.Waitany(requests) in (2, 3, 4, 5)
        assert MPI.Request.Waitsome(requests)
        while not MPI.Request.Testall(requests):
            pass
        assert MPI.Request.Waitany(requests) == MPI.UNDEFINED
        assert MPI.Request.Waitall(requests)
        return [buffer[0] for buffer in buffers]

    assert values(body, ranks=2, seed=seed)[1] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_probe_tells_the_size_before_the_receive(seed):
    def body(comm):
        if comm.rank == 0:
            comm.Send(np.arange(5.0), 1, tag=2)
            comm.Send(np.arange(2.0), 1, tag=3)
            comm.send("matched", 1, tag=4)
            return None
        status = MPI.Status()
        comm.Probe(0, 2, status)
        first = np.empty(status.Get_count(MPI.DOUBLE))
        comm.Recv(first, 0, 2)
        while not comm.Iprobe(0, 3, status):
            pass
        second = np.empty(status.Get_count(MPI.DOUBLE))
        comm.Recv(second, status.Get_source(), status.Get_tag())
        return first.size, second.size, comm.mprobe(tag=4).recv()

    assert values(body, ranks=2, seed=seed)[1] == (5, 2, "matched")


def test_objects_are_copied_on_their_way():
    def body(comm):
        mine = {"list": [comm.rank]}
        got = comm.sendrecv(mine, (comm.rank + 1) % 2, source=(comm.rank + 1) % 2)
        got["list"].append("changed")
        comm.barrier()
        return mine

    assert values(body, ranks=2) == ({"list": [0]}, {"list": [1]})


@pytest.mark.parametrize(
    ("receive", "room"),
    [
        (lambda comm: comm.irecv(source=0).wait(), 32768),
        (lambda comm: comm.irecv(bytearray(90), source=0).wait(), 90),
        (lambda comm: comm.recv(70, source=0), 70),
        (lambda comm: comm.sendrecv(None, MPI.PROC_NULL, recvbuf=bytearray(80), source=0), 80),
        (lambda comm: comm.recv(source=0), None),
        (lambda comm: comm.irecv(bytearray(50_000), source=0).wait(), None),
        (lambda comm: comm.mprobe(source=0).irecv().wait(), None),
    ],
)
def test_a_receive_of_an_object_has_the_room_of_its_buffer_and_irecv_32_kib_without_one(receive, room):
    run = SimulatedWorld(2).run(
        lambda context, _: (
            receive(context.comm) if context.rank else context.comm.send(bytes(40_000), dest=1)
        ),
        None,
        2,
    )
    told = [finding.text for finding in run.findings]
    if room is None:
        assert run.values[1] == bytes(40_000)
    else:
        assert f"pickled, was sent, and the receive has room for {room}" in told[0]


def test_a_cancelled_receive_takes_no_message():
    def body(comm):
        buffer = np.full(2, 7.0)
        request = comm.Irecv(buffer, 0)
        request.Cancel()
        request.Wait()
        return buffer.tolist()

    for seed in SEEDS:
        assert values(body, ranks=1, seed=seed) == ([7.0, 7.0],)


def test_what_is_out_of_range_raises_as_it_does_in_mpi():
    def body(comm):
        for call in (
            lambda: comm.Send(np.ones(1), 4),
            lambda: comm.Recv(np.ones(1), 4),
            lambda: comm.Send(np.ones(1), 0, tag=-4),
            lambda: comm.Send(np.ones(1), MPI.ANY_SOURCE),
            lambda: comm.Bcast(np.ones(1), root=4),
        ):
            with pytest.raises(MPI.Exception, match="Invalid"):
                call()

    values(body)


def test_an_unknown_method_raises_an_error_that_says_what_to_use():
    def body(comm):
        with pytest.raises(AttributeError, match=r"no 'Psend_init'.*: use an Isend and an Irecv"):
            comm.Psend_init(np.ones(1), 0)

    values(body, ranks=1)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("sends_bytes", "receives_bytes"), [(False, True), (True, False), (True, True)])
@pytest.mark.parametrize("dtype", ["f8", "i4", "u1", "?", "c16"])
def test_elements_are_sent_and_received_as_their_bytes(dtype, sends_bytes, receives_bytes, seed):
    def body(comm):
        if comm.rank == 0:
            sent = np.array([1, 0, 3], dtype)
            comm.Send([sent, MPI.BYTE] if sends_bytes else sent, 1)
            return sent.tolist()
        received = np.ones(4, dtype)
        request = comm.Irecv([received, MPI.BYTE] if receives_bytes else received, 0)
        request.Wait()
        return received.tolist()

    sent, received = values(body, ranks=2, seed=seed)
    assert received == [*sent, 1]


def test_a_buffer_that_is_sent_and_received_in_at_once_is_refused():
    def body(context, _):
        comm, whole = context.comm, np.arange(4.0)
        comm.Sendrecv(whole, MPI.PROC_NULL, 0, whole, MPI.PROC_NULL)
        comm.Sendrecv(whole[:2], comm.rank, 0, whole[2:], comm.rank)
        assert whole.tolist() == [0, 1, 0, 1]
        comm.Sendrecv(whole, comm.rank, 0, whole, comm.rank)

    (outcome,) = WORLD.run(body, None, 1).outcomes
    assert outcome.message == "Sendrecv: the send and receive buffers must not be aliased"


def test_parts_of_several_datatypes_that_differ_are_told_in_bytes():
    def body(context, _):
        comm, whole = context.comm, np.zeros(2)
        sent, expected = ([2, 0], [1, 0]) if comm.rank == 0 else ([0, 0], [0, 0])
        of_all, kinds = [0, 0], [MPI.DOUBLE] * 2
        comm.Alltoallw([whole, sent, of_all, kinds], [np.zeros(2), expected, of_all, kinds])

    (finding,) = WORLD.run(body, None, 2).findings
    assert "rank 0 sends 16 bytes to itself, and expects 8" in finding.text
