"""The nondeterminism that MPI allows occurs under some seeds, and shows which code relies on less of it."""

import numpy as np
import pytest

from adjointlab import MPI
from adjointlab.worlds.simulated.matching import poison
from adjointlab.worlds.simulated.world import SimulatedWorld

WORLD = SimulatedWorld(4)
SEEDS = range(30)


def run(body, ranks=2, seed=0):
    return WORLD.run(lambda context, _: body(context.comm), ranks=ranks, seed=seed)


def results(body, ranks=2):
    """Values that `body` returned, over the seeds; all runs completed."""
    runs = [run(body, ranks, seed) for seed in SEEDS]
    assert all(each.completed for each in runs)
    return {each.values for each in runs}


def misused(body, kind):
    """Values that `body` returned under the seeds with a finding of that misuse of a buffer, and under the others."""
    found, others = set(), set()
    for seed in SEEDS:
        result = run(body, seed=seed)
        assert {finding.kind for finding in result.findings} <= {"buffer misused"}
        is_found = any(kind in finding.text for finding in result.findings)
        (found if is_found else others).add(result.values)
    return found, others


@pytest.mark.parametrize("name", ["Isend", "Issend"])
@pytest.mark.parametrize("changed", [2.0, -1.0, 0.1])
def test_a_send_buffer_changed_before_completion_is_reported_and_arrives_changed_under_some_seed(
    changed, name
):
    def body(comm):
        if comm.rank == 0:
            buffer = np.array([1.0])
            request = getattr(comm, name)(buffer, 1)
            buffer[0] = changed
            request.Wait()
            return None
        received = np.zeros(1)
        comm.Recv(received, 0)
        return float(received[0])

    assert run(body).values[1] == 1.0
    found, others = misused(body, f"rank 0 changed the send buffer of {name}(dest=1, tag=0) at ")
    assert {values[1] for values in found} == {1.0, changed}
    assert not others


@pytest.mark.parametrize("written", [5.0, -1.0, 0.1])
def test_a_receive_buffer_written_before_completion_is_reported_under_some_seed(written):
    def body(comm):
        if comm.rank == 0:
            comm.Send(np.ones(2), 1)
            return None
        buffer = np.zeros(2)
        request = comm.Irecv(buffer, 0)
        buffer[1] = written
        request.Wait()
        return tuple(buffer)

    found, others = misused(body, "rank 1 wrote into the receive buffer of Irecv(source=0, tag=ANY_TAG) at ")
    assert found
    assert others


@pytest.mark.parametrize("written", [5.0, -1.0, 0.1])
@pytest.mark.parametrize("what", ["send", "receive"])
def test_buffers_of_a_non_blocking_collective_changed_before_completion_are_reported(what, written):
    def body(comm):
        mine, total = np.ones(2), np.zeros(2)
        request = comm.Iallreduce(mine, total)
        (mine if what == "send" else total)[0] = written
        request.Wait()

    verb = {"send": "changed the send", "receive": "wrote into the receive"}[what]
    found, others = misused(body, f"rank 0 {verb} buffer of Iallreduce(op=SUM) at ")
    assert found
    assert bool(others) is (what == "receive")


def test_a_buffer_that_is_sent_and_received_into_at_once_is_reported_under_every_seed():
    def body(comm):
        buffer = np.full(1, float(comm.rank))
        request = comm.Isend(buffer, 1 - comm.rank)
        comm.Recv(buffer, 1 - comm.rank)
        request.Wait()

    for seed in SEEDS:
        result = run(body, seed=seed)
        assert "buffer misused" in {finding.kind for finding in result.findings} or not result.completed
        assert not result.completed


def test_a_send_buffer_changed_after_completion_never_arrives_changed():
    def body(comm):
        if comm.rank == 0:
            for send in (comm.Send, lambda *a: comm.Isend(*a).Wait(), lambda *a: comm.Issend(*a).Wait()):
                buffer = np.array([1.0])
                send(buffer, 1)
                buffer[0] = 2.0
            return None
        received = np.zeros((3, 1))
        requests = [comm.Irecv(row, 0) for row in received]
        MPI.Request.Waitall(requests)
        return received.ravel().tolist()

    for seed in SEEDS:
        assert run(body, seed=seed).values[1] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("dtype", ["f8", "f4", "f2", "c16", "i8", "u1", "?"])
def test_a_receive_buffer_read_before_completion_is_poisoned_under_some_seed(dtype):
    def body(comm):
        if comm.rank == 0:
            comm.Send(np.ones(2, dtype), 1)
            return None
        buffer = np.ones(2, dtype)
        request = comm.Irecv(buffer, 0)
        early = buffer.copy()
        request.Wait()
        assert (buffer == 1).all()
        return bool((early == 1).all())

    assert run(body).values[1]
    assert {values[1] for values in results(body)} == {True, False}


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("f4", np.nan),
        ("c16", np.nan),
        ("i1", 127),
        ("i2", 0x7F7F),
        ("u1", 254),
        ("u4", 0xFEFEFEFE),
        ("?", False),
    ],
)
def test_what_is_read_too_early_is_conspicuous(dtype, expected):
    array = np.ones(3, dtype)
    poison(array)
    assert np.array_equal(array, np.full(3, expected, dtype), equal_nan=dtype in ("f4", "c16"))
    if dtype == "c16":
        assert np.isnan(array.real).all()
        assert np.isnan(array.imag).all()


def test_results_of_a_non_blocking_collective_come_late_and_contributions_are_read_late_under_some_seed():
    def body(comm):
        mine, total = np.array([1.0]), np.array([5.0])
        request = comm.Iallreduce(mine, total)
        early = float(total[0])
        mine[0] = 10.0
        request.Wait()
        return str(early), float(total[0])

    found, others = misused(body, "changed the send buffer of Iallreduce")
    assert not others
    results = {value for values in found for value in values}
    assert any(early == "nan" for early, _ in results)
    assert {2.0, 20.0} <= {total for _, total in results}
    assert run(body).values[0][1] == 2.0


def test_gaps_between_received_blocks_are_not_touched_while_the_result_is_awaited():
    def body(comm):
        buffer = np.arange(5.0)
        request = comm.Iallgatherv(np.full(1, 7.0 + comm.rank), [buffer, [1, 1], [1, 3], "d"])
        buffer[2] = -1.0  # legal: it is nobody's block
        request.Wait()
        return tuple(buffer.tolist())

    assert results(body) == {((0.0, 7.0, -1.0, 8.0, 4.0),) * 2}


def test_a_probe_may_overlook_a_message_of_another_rank_once():
    def probing(comm):
        send = comm.Isend(np.ones(1), (comm.rank + 1) % comm.size, 3)
        comm.Barrier()
        vain = 0
        while not comm.Iprobe(MPI.ANY_SOURCE, 3):
            vain += 1
        comm.Recv(np.empty(1), MPI.ANY_SOURCE, 3)
        send.Wait()
        return vain

    assert results(probing) == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert results(probing, 1) == {(0,)}


def test_a_test_may_fail_once_though_the_message_is_there():
    def body(comm):
        if comm.rank == 0:
            request = comm.Isend(np.ones(1), 1)
            comm.Barrier()
            request.Wait()
            return None
        comm.Barrier()
        request = comm.Irecv(np.ones(1), 0)
        tests = 1
        while not request.Test():
            tests += 1
        return tests

    assert {values[1] for values in results(body)} == {1, 2}


def test_the_same_seed_gives_the_same_run():
    def body(comm):
        log = []
        if comm.rank == 0:
            for _ in range(6):
                status = MPI.Status()
                comm.recv(source=MPI.ANY_SOURCE, status=status)
                log.append(status.Get_source())
        else:
            for _ in range(2):
                comm.isend(None, 0).wait()
        return tuple(log)

    for seed in range(10):
        assert run(body, 4, seed) == run(body, 4, seed)
