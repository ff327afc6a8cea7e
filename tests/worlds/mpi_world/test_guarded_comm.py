"""The guarded communicator does what mpi4py's does, and no wait of it is MPI's own.

``mpiexec -n 3 python -m pytest tests/worlds/mpi_world/test_guarded_comm.py``
"""

from __future__ import annotations

import gc
import os
import signal
import weakref
from typing import Any

import numpy as np
import pytest

from adjointlab import MPI
from adjointlab.worlds.launch import is_launched
from adjointlab.worlds.run import Raised
from tests.worlds.mpi_world.worlds import opened

pytestmark = pytest.mark.skipif(
    not is_launched(), reason="processes of MPI are needed: run under mpiexec -n 3"
)

if is_launched():
    from mpi4py import MPI as MPI4PY


@pytest.fixture(scope="module")
def world():
    with opened(patience=5.0) as world:
        yield world


@pytest.fixture(scope="module")
def plain():
    comm = MPI4PY.COMM_WORLD.Dup()
    yield comm
    comm.Free()


def ramp(comm, count):
    return 10.0 * comm.rank + np.arange(count)


def counts(comm):
    return [rank + 1 for rank in range(comm.size)]


def gatherv(comm, mpi):
    received = np.zeros(sum(counts(comm))) if comm.rank == 1 else None
    comm.Gatherv(ramp(comm, comm.rank + 1), [received, counts(comm), None, mpi.DOUBLE], root=1)
    return received


def scatterv(comm, mpi):
    sent = [np.arange(float(sum(counts(comm)))), counts(comm)] if comm.rank == 0 else None
    received = np.zeros(comm.rank + 1)
    comm.Scatterv(sent, received)
    return received


def allgatherv(comm, mpi):
    received = np.zeros(sum(counts(comm)))
    comm.Allgatherv([ramp(comm, comm.rank + 1), mpi.DOUBLE], [received, counts(comm)])
    return received


def alltoallv(comm, mpi):
    received = np.zeros(comm.size * (comm.rank + 1))
    comm.Alltoallv([ramp(comm, sum(counts(comm))), counts(comm)], [received, [comm.rank + 1] * comm.size])
    return received


def into(shape, call, dtype=float):
    """Call with a receive buffer, and return that."""
    received = np.zeros(shape, dtype)
    call(received)
    return received


def in_place(comm, mpi):
    both = ramp(comm, 3)
    comm.Allreduce(mpi.IN_PLACE, both, op=mpi.MAX)
    return both


def reduce_scatter(comm, mpi):
    return into(
        comm.rank + 1,
        lambda received: comm.Reduce_scatter(ramp(comm, sum(counts(comm))), received, counts(comm), mpi.SUM),
    )


def started(name):
    def call(comm, mpi):
        received = np.zeros(2)
        getattr(comm, name)(ramp(comm, 2), received, op=mpi.SUM).Wait()
        return received

    return call


def ring(comm, mpi):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    first, second = np.zeros(2), np.zeros(2)
    requests = [
        comm.Irecv(second, source=left, tag=2),
        comm.Irecv(first, source=left, tag=1),
        comm.Isend(ramp(comm, 2), dest=right, tag=1),
        comm.Issend([ramp(comm, 4), 2, mpi.DOUBLE], dest=right, tag=2),
    ]
    mpi.Request.Waitall(requests)
    replaced = ramp(comm, 2)
    comm.Sendrecv_replace(replaced, right, source=left)
    return first, second, replaced


def nobody(comm, mpi):
    """Messages to and from nobody."""
    received = ramp(comm, 2)
    comm.Send(received, mpi.PROC_NULL)
    comm.Recv(received, mpi.PROC_NULL)
    comm.Sendrecv(received, mpi.PROC_NULL, 0, received, mpi.PROC_NULL)
    return received


def status(comm, mpi):
    found, probed, object_found = mpi.Status(), mpi.Status(), mpi.Status()
    right = (comm.rank + 1) % comm.size
    request = comm.Isend(ramp(comm, 3), right, tag=7)
    comm.Probe(mpi.ANY_SOURCE, mpi.ANY_TAG, probed)
    comm.Recv(np.zeros(5), mpi.ANY_SOURCE, mpi.ANY_TAG, found)
    request.Wait()
    request = comm.isend("text", right, tag=8)
    comm.recv(source=mpi.ANY_SOURCE, tag=mpi.ANY_TAG, status=object_found)
    request.wait()
    return [(each.Get_source(), each.Get_tag(), each.Get_count(mpi.DOUBLE)) for each in (found, probed)], (
        object_found.Get_source(),
        object_found.Get_tag(),
    )


def some_requests(comm, mpi):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    received = [np.zeros(1) for _ in range(3)]
    requests = [comm.Irecv(each, left, tag) for tag, each in enumerate(received)]
    for tag in (2, 0, 1):
        comm.Send(ramp(comm, 1) + tag, right, tag)
    finished = {mpi.Request.Waitany(requests)}
    while (some := mpi.Request.Waitsome(requests)) is not None:
        finished.update(some)
    return sorted(finished), received, mpi.Request.Testall(requests)


def derived(comm, mpi):
    halves = comm.Split(comm.rank % 2, key=-comm.rank)
    some = comm.Split(mpi.UNDEFINED if comm.rank else 0)
    node = comm.Split_type(mpi.COMM_TYPE_SHARED, key=-comm.rank)
    group = comm.Get_group().Incl([1, 0])
    pair = comm.Create_group(group) if comm.rank < 2 else comm.Dup().Split(5)
    if comm.rank < 2:
        comm.Dup().Split(4)
    created = comm.Create(group)
    answer = (
        halves.allgather(comm.rank),
        bool(some),
        pair.allgather(comm.rank) if comm.rank < 2 else None,
        created.rank if comm.rank < 2 else bool(created),
        node.allgather(comm.rank),
        bool(comm.Split_type(mpi.UNDEFINED)),
    )
    halves.Free()
    node.Free()
    return answer


def grid(comm, mpi):
    cart = comm.Create_cart([comm.size, 1], periods=[False, True])
    lines = cart.Sub([True, False])
    up, down = cart.Shift(0, 1)
    return (
        list(cart.Get_coords(cart.rank)),
        cart.Get_cart_rank([0, 0]),
        [up == mpi.PROC_NULL, down == mpi.PROC_NULL],
        list(map(list, cart.Get_topo())),
        (cart.Get_dim(), lines.size, lines.allreduce(1)),
        tuple(cart.Shift(1, 1)),
    )


def objects(comm, mpi):
    right, left, size = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size, comm.size
    mine = {"rank": comm.rank, "data": "x" * 10000 * comm.rank}
    requests = [comm.irecv(source=left, tag=3), comm.irecv(source=left, tag=3)]
    comm.isend("first", right, tag=3).wait()
    comm.send(mine, right, tag=3)
    second, first = requests[1].wait(), requests[0].wait()
    assert first == "first"
    return (
        second,
        comm.sendrecv(mine, right, source=left),
        comm.bcast(mine if comm.rank == 1 else None, root=1),
        comm.gather(mine, root=1),
        comm.scatter([mine] * size if comm.rank == 0 else None),
        comm.allgather(mine),
        comm.alltoall([(comm.rank, to) for to in range(size)]),
        comm.reduce(comm.rank, op=mpi.MAX, root=1),
        comm.allreduce([comm.rank]),
        comm.scan(comm.rank),
        comm.exscan(comm.rank),
        comm.barrier(),
    )


CALLS = {
    "Barrier": lambda comm, mpi: comm.Barrier(),
    "Bcast": lambda comm, mpi: into(2, lambda both: (both.__iadd__(comm.rank), comm.Bcast(both, root=1))),
    "Gather": lambda comm, mpi: into(
        (comm.size, 2),
        lambda received: comm.Gather(ramp(comm, 2), received if comm.rank == 1 else None, root=1),
    ),
    "Gatherv": gatherv,
    "Scatter": lambda comm, mpi: into(
        2, lambda received: comm.Scatter(ramp(comm, 2 * comm.size) if comm.rank == 0 else None, received)
    ),
    "Scatterv": scatterv,
    "Allgather": lambda comm, mpi: into(
        2 * comm.size, lambda received: comm.Allgather(ramp(comm, 2), received)
    ),
    "Allgatherv": allgatherv,
    "Alltoall": lambda comm, mpi: into(
        comm.size, lambda received: comm.Alltoall(ramp(comm, comm.size), received)
    ),
    "Alltoallv": alltoallv,
    "Reduce": lambda comm, mpi: into(2, lambda received: comm.Reduce(ramp(comm, 2), received, mpi.MIN, 1)),
    "Allreduce": lambda comm, mpi: into(
        2, lambda received: comm.Allreduce(ramp(comm, 2), received, op=mpi.PROD)
    ),
    "Allreduce, in place": in_place,
    "Reduce_scatter": reduce_scatter,
    "Reduce_scatter_block": lambda comm, mpi: into(
        2, lambda received: comm.Reduce_scatter_block(ramp(comm, 2 * comm.size), received)
    ),
    "Scan": lambda comm, mpi: into(2, lambda received: comm.Scan(ramp(comm, 2), received)),
    "Exscan": lambda comm, mpi: into(2, lambda received: comm.Exscan(ramp(comm, 2), received)),
    "Iallreduce": started("Iallreduce"),
    "Iscan": started("Iscan"),
    "a ring of messages": ring,
    "messages to nobody": nobody,
    "statuses": status,
    "several requests": some_requests,
    "derived communicators": derived,
    "a grid": grid,
    "objects": objects,
}


@pytest.mark.parametrize("constants", ["adjointlab", "mpi4py"])
@pytest.mark.parametrize("name", CALLS)
def test_a_call_does_what_mpi4py_does(world, plain, name, constants):
    if plain.size < 2:
        pytest.skip("two processes are needed")
    call = CALLS[name]
    run = world.run(lambda context, _: call(context.comm, MPI if constants == "adjointlab" else MPI4PY))
    expected = plain.allgather(call(plain, MPI4PY))

    assert run.completed, run
    # Printed, they are equal only if they are equal entry by entry, nested as they may be.
    assert repr(run.values) == repr(tuple(expected))


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("Reduce", lambda comm: comm.Reduce(MPI.IN_PLACE, np.ones(1), root=1)),
        ("Gather", lambda comm: comm.Gather(sendbuf=MPI4PY.IN_PLACE, recvbuf=None, root=1)),
        ("Scatterv", lambda comm: comm.Iscatterv(None, MPI.IN_PLACE, 1).Wait()),
    ],
)
def test_the_root_alone_may_give_in_place(world, name, call):
    if world.ranks < 2:
        pytest.skip("two processes are needed")
    run = world.run(lambda context, _: context.rank == 0 and call(context.comm))

    assert run.outcomes[0].message == f"{name}: only the root may give IN_PLACE"


def test_a_grid_with_too_few_periods_is_refused_before_the_ranks_agree_on_it(world):
    def body(context, _):
        context.comm.Create_cart([world.ranks, 1], [True] if context.rank == 0 else [True, True])

    assert world.run(body).outcomes[0].message == "expecting 2 items, got 1"


def test_torch_tensors_are_buffers(world):
    torch = pytest.importorskip("torch")

    def body(context, _):
        total = torch.empty(3, dtype=torch.float32)
        context.comm.Allreduce(torch.full((3,), float(context.rank + 1)), total)
        return total.tolist()

    expected = [float(sum(range(1, world.ranks + 1)))] * 3
    assert world.run(body).values == (expected,) * world.ranks


def test_a_name_that_is_not_there_says_what_to_use(world):
    run = world.run(lambda context, _: context.comm.Bsend)

    for outcome in run.outcomes:
        assert isinstance(outcome, Raised)
        assert outcome.kind == "AttributeError"
        assert outcome.message.endswith(
            "no 'Bsend', but that of the simulated world has: use Isend (or isend), which needs no buffer that is attached"
        )


def test_a_misspelt_name_is_answered_with_those_that_it_resembles_and_none_of_the_labs(world):
    internal = ("inner", "log_call", "retire")
    names = ("Allredcue", *(f"{name}s" for name in internal))
    run = world.run(lambda context, _: [_refusal(context.comm, name) for name in names])

    for misspelt, *of_internal in run.values:
        assert "it has Allreduce" in misspelt
        for text in of_internal:
            assert not set(internal) & set(text.partition("; it has ")[2].split(", "))


def _refusal(comm: Any, name: str) -> str:
    with pytest.raises(AttributeError) as caught:
        getattr(comm, name)
    return str(caught.value)


def test_what_only_one_world_has_is_as_the_messages_say(world):
    from mpi4py import MPI as theirs

    from adjointlab.worlds.mpi.communicator import GuardedCartcomm
    from adjointlab.worlds.refused_calls import ONLY_SIMULATED
    from adjointlab.worlds.simulated.communicator import CartesianCommunicator

    of_mpi = set(dir(theirs.Cartcomm))
    simulated = {*dir(CartesianCommunicator), "rank", "size"} & of_mpi
    guarded = GuardedCartcomm.offered() & of_mpi
    assert {name for name in simulated - guarded if name[0] != "_"} == ONLY_SIMULATED
    assert {name for name in guarded - simulated if name[0] != "_"} == set()


def test_a_cancelled_receive_is_not_left_open(world):
    def body(context, _):
        requests = [context.comm.Irecv(np.empty(1), source=0, tag=99), context.comm.irecv(source=0, tag=99)]
        for request in requests:
            request.Cancel()
            request.Wait()

    assert world.run(body).completed


def test_the_buffer_of_a_request_that_is_freed_before_it_is_complete_stays_alive(world):
    def body(context, _):
        # It cannot have come: the other rank sends it after the barrier.
        buffer = np.zeros(3)
        context.comm.Irecv(buffer, (context.rank - 1) % context.size, 9).Free()
        alive = weakref.ref(buffer)
        del buffer
        gc.collect()
        is_alive = alive() is not None
        context.comm.Barrier()
        context.comm.Send(np.ones(3), (context.rank + 1) % context.size, 9)
        return is_alive

    assert all(world.run(body).values)


def test_the_worlds_communicator_cannot_be_freed(world):
    assert all(
        "cannot be freed" in outcome.message for outcome in world.run(lambda c, _: c.comm.Free()).outcomes
    )


def test_a_freed_communicator_cannot_be_used(world):
    def body(context, _):
        derived = context.comm.Dup()
        derived.Free()
        derived.Barrier()

    assert all("has been freed" in outcome.message for outcome in world.run(body).outcomes)


def test_a_communicator_that_is_freed_twice_ends_its_run_alone(world):
    def body(context, _):
        derived = context.comm.Dup()
        derived.Free()
        derived.Free()

    assert all("has been freed" in outcome.message for outcome in world.run(body).outcomes)
    assert world.run(lambda context, _: context.comm.allreduce(1)).completed


def test_a_child_process_has_no_part_in_what_its_parent_has_begun(world):
    def refused_in_child(calls):
        child = os.fork()
        if child:
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        signal.alarm(3)  # ends a child that waits
        refused = 0
        for call in calls:
            try:
                call()
            except BaseException as exception:
                refused += "this is a child process" in str(exception)
        os._exit(refused)

    def body(context, _):
        comm = context.comm
        found, after = np.zeros(1), (comm.rank + 1) % comm.size
        requests = [comm.Irecv(found, tag=1), comm.irecv(tag=2)]
        calls = [
            *(lambda each=each: each.Wait() for each in requests),
            *(lambda each=each: each.Test() for each in requests),
            lambda: MPI.Request.Waitall(requests),
            lambda: comm.Barrier(),
            lambda: comm.Dup(),
            lambda: comm.Split(0),
        ]
        refused = refused_in_child(calls) if comm.rank == 0 else len(calls)
        comm.Barrier()  # nothing can have come before
        comm.Send(np.ones(1), after, 1)
        comm.send("object", after, 2)
        requests[0].Wait()
        return refused - len(calls), found[0], requests[1].wait()

    run = world.run(body)
    assert run.values == ((0, 1.0, "object"),) * world.ranks, run
