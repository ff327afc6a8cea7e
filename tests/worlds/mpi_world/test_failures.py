"""When a rank fails, or all wait, every rank comes back, and the next run is as good as new.

``mpiexec -n 3 python -m pytest tests/worlds/mpi_world/test_failures.py``
"""

from __future__ import annotations

import random
import time

import numpy as np
import pytest

from adjointlab import MPI
from adjointlab.worlds.launch import is_launched
from adjointlab.worlds.run import Blocked, PeerFailed, Raised, Returned
from tests.worlds.mpi_world.worlds import made, opened

pytestmark = pytest.mark.skipif(
    not is_launched(), reason="processes of MPI are needed: run under mpiexec -n 3"
)

PATIENCE = 0.4  # of the world in which ranks are meant to block


@pytest.fixture(scope="module")
def world():
    with opened(patience=10.0, least=3) as world:
        yield world


@pytest.fixture(scope="module")
def impatient():
    with opened(patience=PATIENCE, least=3) as world:
        yield world


def exchange(context, _):
    """A good run, which would see what an earlier one left behind."""
    comm, rank, size = context.comm, context.rank, context.size
    received, total = np.empty(2), np.empty(1)
    comm.Sendrecv(np.full(2, float(rank)), (rank + 1) % size, 0, received, MPI.ANY_SOURCE, MPI.ANY_TAG)
    comm.Allreduce(np.ones(1), total)
    return received[0], total[0], comm.Split(rank % 2).allgather(rank), comm.Iprobe()


def next_run_is_good(world):
    size = world.ranks
    run = world.run(exchange)
    return run.completed and run.values == tuple(
        ((rank - 1) % size, size, [other for other in range(size) if other % 2 == rank % 2], False)
        for rank in range(size)
    )


def mpi4py_waitall(comm):
    from mpi4py import MPI as mpi4py

    mpi4py.Request.Waitall([comm.Irecv(np.empty(1), source=1)])


def poll(comm):
    while not comm.Iprobe(source=1):
        pass


def test_request(comm):
    request = comm.Irecv(np.empty(1), source=1)
    while not request.Test():
        pass


test_request.__test__ = False

# What the other ranks do while rank 1 fails, and what the call is called.
WAITS = {
    "Recv": (lambda comm: comm.Recv(np.empty(1), source=1), "Recv(source=1, tag=ANY_TAG)"),
    "Ssend": (lambda comm: comm.Ssend(np.empty(1), dest=1, tag=3), "Ssend(dest=1, tag=3)"),
    "Send, large": (lambda comm: comm.Send(np.empty(1 << 18), 1), "Send(dest=1, tag=0)"),
    "Sendrecv": (
        lambda comm: comm.Sendrecv(np.empty(1), 1, 5, np.empty(1), 1, 6),
        "Sendrecv(dest=1, sendtag=5, source=1, recvtag=6)",
    ),
    "Sendrecv_replace": (
        lambda comm: comm.Sendrecv_replace(np.empty(1), 1, source=1),
        "Sendrecv_replace(dest=1, sendtag=0, source=1, recvtag=ANY_TAG)",
    ),
    "Probe": (lambda comm: comm.Probe(source=1), "Probe(source=1, tag=ANY_TAG)"),
    "a loop of Iprobe": (poll, "Iprobe(source=1, tag=ANY_TAG)"),
    "Wait": (lambda comm: comm.Irecv(np.empty(1), source=1).Wait(), "Irecv(source=1, tag=ANY_TAG)"),
    "a loop of Test": (test_request, "Irecv(source=1, tag=ANY_TAG)"),
    "Waitall": (
        lambda comm: MPI.Request.Waitall([comm.Irecv(np.empty(1), source=1)]),
        "Irecv(source=1, tag=ANY_TAG)",
    ),
    "Waitany": (
        lambda comm: MPI.Request.Waitany([comm.Irecv(np.empty(1), source=1)]),
        "Irecv(source=1, tag=ANY_TAG)",
    ),
    "mpi4py's own Waitall": (mpi4py_waitall, "Irecv(source=1, tag=ANY_TAG)"),
    "Barrier": (lambda comm: comm.Barrier(), "Barrier()"),
    "Ibarrier": (lambda comm: comm.Ibarrier().Wait(), "Ibarrier()"),
    "Bcast": (lambda comm: comm.Bcast(np.empty(1), root=1), "Bcast(root=1)"),
    "Allreduce": (lambda comm: comm.Allreduce(np.ones(1), np.empty(1)), "Allreduce()"),
    "recv": (lambda comm: comm.recv(source=1), "recv(source=1, tag=ANY_TAG)"),
    "irecv": (lambda comm: comm.irecv(source=1).wait(), "irecv(source=1, tag=ANY_TAG)"),
    "sendrecv": (
        lambda comm: comm.sendrecv(0, 1, source=1),
        "sendrecv(dest=1, sendtag=0, source=1, recvtag=ANY_TAG)",
    ),
    "bcast": (lambda comm: comm.bcast(None, root=1), "bcast(root=1)"),
    "allgather": (lambda comm: comm.allgather(0), "allgather()"),
    "Split": (lambda comm: comm.Split(0), "Split()"),
    "Create_cart": (lambda comm: comm.Create_cart([comm.size]), "Create_cart()"),
    "Create_group": (lambda comm: comm.Create_group(comm.Get_group()), "Create_group()"),
}


@pytest.mark.parametrize("name", WAITS)
def test_a_failure_calls_the_others_out_of_every_wait(world, name):
    wait, call = WAITS[name]

    def body(context, _):
        if context.rank == 1:
            time.sleep(0.01)
            raise ValueError("rank 1 fails")
        wait(context.comm)

    started = time.perf_counter()
    run = world.run(body)

    assert time.perf_counter() - started < world.patience / 2
    assert [type(outcome) for outcome in run.outcomes] == [
        PeerFailed,
        Raised,
        *[PeerFailed] * (world.ranks - 2),
    ]
    assert (run.outcomes[0].call, run.outcomes[0].peers) == (call, (1,))
    assert run.outcomes[0].where.startswith(__file__)
    assert not run.findings
    assert next_run_is_good(world)


def cyclic_receive(context, _):
    context.comm.Recv(np.empty(1), source=(context.rank + 1) % context.size)


def test_failures_and_deadlocks_in_a_row_each_leave_one_communicator_behind(impatient):
    def fail(context, _):
        if context.rank == context.size - 1:
            raise ValueError
        context.comm.Barrier()

    assert next_run_is_good(impatient)
    for body in (fail, fail, fail, cyclic_receive, cyclic_receive, cyclic_receive):
        leaked = impatient.leaked_communicators
        assert not impatient.run(body).completed
        assert next_run_is_good(impatient)
        assert impatient.leaked_communicators == leaked + 1
    for _ in range(3):
        assert not impatient.run(fail).completed
        assert not impatient.run(cyclic_receive).completed
    assert next_run_is_good(impatient)


def test_a_cycle_of_receives_is_a_deadlock_that_every_rank_reports(impatient):
    run = impatient.run(cyclic_receive)

    for rank, outcome in enumerate(run.outcomes):
        assert isinstance(outcome, Blocked)
        assert outcome.waits_for == ((rank + 1) % impatient.ranks,)
        assert outcome.where.startswith(__file__)
    assert [finding.kind for finding in run.findings] == ["deadlock"]
    text = run.findings[0].text
    for rank in range(impatient.ranks):
        peer = (rank + 1) % impatient.ranks
        assert f"rank {rank} in Recv(source={peer}, tag=ANY_TAG) at {__file__}:" in text
        assert f"waits for rank {peer}" in text
    assert "cycle: rank 0 → rank 1 → rank 2" in text
    assert next_run_is_good(impatient)


def test_waiting_for_a_rank_that_has_returned_is_a_deadlock(impatient):
    def body(context, _):
        if context.rank == 0:
            context.comm.recv(source=2, tag=4)

    run = impatient.run(body)

    assert run.outcomes[0] == Blocked("recv(source=2, tag=4)", run.outcomes[0].where, (2,))
    assert all(isinstance(outcome, Returned) for outcome in run.outcomes[1:])
    assert [finding.kind for finding in run.findings] == ["deadlock"]
    assert next_run_is_good(impatient)


def test_a_rank_that_is_busy_for_long_is_no_deadlock(impatient):
    def body(context, _):
        if context.rank == 1:
            time.sleep(1.5 * PATIENCE)
            context.comm.send("late", 0)
        if context.rank == 0:
            return context.comm.recv(source=1)

    run = impatient.run(body)

    assert [finding.kind for finding in run.findings] == ["blocked"]
    assert "rank 1 was still at work" in run.findings[0].text
    assert next_run_is_good(impatient)


def test_patience_is_not_spent_where_every_rank_returns(world):
    def body(context, _):
        if context.rank == 1:
            time.sleep(0.05)
        context.comm.Barrier()

    started = time.perf_counter()

    assert world.run(body).completed
    assert time.perf_counter() - started < world.patience / 2


def test_ranks_that_only_poll_are_a_livelock(impatient):
    def body(context, _):
        while not context.comm.Iprobe(source=(context.rank + 1) % context.size):
            pass

    run = impatient.run(body)

    assert all(isinstance(outcome, Blocked) for outcome in run.outcomes)
    assert [finding.kind for finding in run.findings] == ["livelock"]


def test_a_cancellation_that_user_code_catches_is_still_reported(world):
    def body(context, _):
        if context.rank == 1:
            raise ValueError
        try:
            context.comm.Barrier()
        except BaseException:
            context.comm.Recv(np.empty(1), source=1)

    run = world.run(body)

    assert [type(outcome) for outcome in run.outcomes[:3]] == [PeerFailed, Raised, PeerFailed]
    assert run.outcomes[0].call == "Barrier()"
    assert next_run_is_good(world)


def test_an_error_that_all_ranks_raise_before_any_message_leaks_no_communicator(world):
    def body(context, _):
        raise ValueError("a bad argument")

    assert next_run_is_good(world)
    leaked = world.leaked_communicators
    run = world.run(body)

    assert {str(outcome) for outcome in run.outcomes} == {"raised ValueError: a bad argument"}
    assert next_run_is_good(world)
    assert world.leaked_communicators == leaked


def leave_message(comm):
    if comm.rank == 0:
        comm.send("stray", dest=1)


def leave_message_on_derived(comm):
    derived = comm.Split(0, -comm.rank)
    if derived.rank == 0:
        derived.Send(np.ones(1), dest=1)


def leave_receive(comm):
    if comm.rank == 0:
        comm.Irecv(np.empty(1), source=1)


def leave_object_receive(comm):
    if comm.rank == 0:
        comm.irecv(source=1)


def leave_large_send(comm):
    if comm.rank == 0:
        comm.Isend(np.ones(1 << 18), dest=1)
    if comm.rank == 1:
        comm.Probe(source=0)


def leave_broadcast(comm):
    if comm.rank == 0:
        comm.Bcast(np.ones(1))


def different_collectives(comm):
    if comm.rank == 0:
        comm.Ibarrier().Wait() if comm.size == 1 else comm.Barrier()
    else:
        comm.Ibarrier().Wait()


@pytest.mark.parametrize(
    ("body", "kind", "expected_text"),
    [
        (leave_message, "message left over", "rank 1 was sent 1 and received 0 (sent by rank 0)"),
        (leave_message_on_derived, "message left over", "was sent 1 and received 0"),
        (leave_receive, "request left open", "rank 0 never completed Irecv(source=1, tag=ANY_TAG) at "),
        (
            leave_object_receive,
            "request left open",
            "rank 0 never completed irecv(source=1, tag=ANY_TAG) at ",
        ),
        (leave_large_send, "request left open", "rank 0 never completed Isend(dest=1, tag=0) at "),
        (leave_broadcast, "mismatched collective", "rank 1 has ended after 0"),
        (different_collectives, "mismatched collective", f"rank 0 calls Barrier() at {__file__}"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_a_run_leaves_behind_is_found_and_does_not_reach_the_next_run(world, body, kind, expected_text):
    run = world.run(lambda context, _: body(context.comm))

    assert all(isinstance(outcome, Returned) for outcome in run.outcomes)
    assert not run.completed
    assert run.findings[0].kind == kind
    assert expected_text in run.findings[0].text
    if " at " in run.findings[0].text:
        assert __file__ in run.findings[0].text
    assert next_run_is_good(world)


def test_a_deadlock_between_different_collectives_is_reported_as_a_mismatch(impatient):
    def body(context, _):
        comm = context.comm
        comm.Allreduce(np.ones(1), np.empty(1)) if context.rank == 0 else comm.bcast(None, root=0)

    run = impatient.run(body)

    assert [finding.kind for finding in run.findings] == ["mismatched collective"]
    assert f"rank 0 calls Allreduce(SUM, 1 of float64) at {__file__}:" in run.findings[0].text
    assert f"rank 1 calls bcast(root=0) at {__file__}:" in run.findings[0].text
    assert next_run_is_good(impatient)


def test_different_ways_to_make_a_communicator_are_told_apart_at_once(world):
    def body(context, _):
        context.comm.Dup() if context.rank == 0 else context.comm.Split(0)

    run = world.run(body)

    assert all(isinstance(outcome, Blocked) for outcome in run.outcomes)
    assert [finding.kind for finding in run.findings] == ["mismatched collective"]
    assert f"rank 0 calls Dup() at {__file__}:" in run.findings[0].text
    assert f"rank 1 calls Split() at {__file__}:" in run.findings[0].text
    assert next_run_is_good(world)


def test_a_truncated_message_raises_on_its_receiver(world):
    def body(context, _):
        if context.rank == 0:
            context.comm.Send(np.ones(10), 1)
        if context.rank == 1:
            context.comm.Recv(np.empty(3), 0)

    run = world.run(body)

    assert isinstance(run.outcomes[1], Raised)
    assert "trunc" in run.outcomes[1].message.lower()
    assert next_run_is_good(world)


def test_a_failure_at_any_moment_leaves_nobody_behind_in_the_making_of_a_communicator(world):
    """The outsider's failure may reach one maker before, and the other after, they have agreed."""

    def body(context, delay):
        if context.rank == context.size - 1:
            time.sleep(delay)
            raise ValueError
        members = context.comm.Create_group(context.comm.Get_group().Excl([context.size - 1]))
        # What a failed run made is not given back, and MPICH has 2,048 in all for this whole session.
        for _ in range(30):
            members = members.Dup()

    delays = random.Random(0)

    def conduct(run):
        for _ in range(25):
            outcome = run(delays.uniform(0, 0.003), world.ranks).outcomes[-1]
            assert isinstance(outcome, Raised)
        return True

    if world.ranks == 3:
        assert world.lead(body, conduct)
        assert next_run_is_good(world)


def test_a_mismatch_that_appears_when_a_rank_has_been_cancelled_disturbs_no_later_run(world):
    """Rank 1 waits for its next command when the token arrives with which its creation turns out not to match."""

    def body(context, _):
        comm = context.comm
        if context.rank >= 2:
            time.sleep(0.1)
            raise ValueError
        pair = comm.Create_group(comm.Get_group().Incl([0, 1]))
        if context.rank == 1:
            pair.Dup()
        time.sleep(0.2)
        try:
            pair.Split(0)
        finally:
            time.sleep(0.1)

    run = world.run(body)

    assert isinstance(run.outcomes[1], PeerFailed)
    assert isinstance(run.outcomes[2], Raised)
    assert next_run_is_good(world)


def test_communicators_made_in_good_runs_are_given_back(world):
    def body(context, _):
        return context.comm.Dup().Split(0).allreduce(1)

    def conduct(run):
        # MPICH has 2,048 in all.
        return all(run(None, 2).completed for _ in range(1100))

    leaked = world.leaked_communicators

    assert world.lead(body, conduct)
    assert world.leaked_communicators == leaked


def test_a_communicator_cannot_be_used_in_a_later_run(world):
    kept = []
    world.run(lambda context, _: kept.append(context.comm.Dup()))
    run = world.run(lambda context, _: kept[0].Barrier())

    assert all("made in an earlier run" in outcome.message for outcome in run.outcomes)


def test_ranks_that_all_raise_after_a_collective_are_all_seen_to_raise(world):
    """Nobody is said to have left a wait that was about to end when another rank raised."""

    def body(context, _):
        total = np.empty(1)
        context.comm.Reduce(np.ones(1), total if context.rank == 0 else None, root=0)
        raise ValueError("as everywhere")

    for _ in range(30):
        assert all(isinstance(outcome, Raised) for outcome in world.run(body).outcomes)
    assert next_run_is_good(world)


def test_what_is_known_of_the_hangs_of_a_subject_shortens_the_waits_for_it_alone(monkeypatch):
    world = made(patience=3.0, least=3)
    waits = []
    monkeypatch.setattr(
        world,
        "_begin_run",
        lambda command, patience, begin=world._begin_run: waits.append(patience) or begin(command, patience),
    )

    def hanging(context, _):
        return context.comm.recv(source=(context.rank + 1) % context.size)

    for body, about in ((hanging, "one"), (exchange, "one"), (exchange, "other"), (exchange, "one")):
        world.lead(body, lambda run: run(None, world.ranks), about)

    assert waits[0] == waits[2] == waits[3] == 3.0
    assert waits[1] < 3.0  # not closed: messages of the run that was ended may be on their way
