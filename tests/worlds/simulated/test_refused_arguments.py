"""Arguments that fit no call are refused on the rank that gives them, with their values and with those that would fit."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from adjointlab import MPI
from adjointlab.worlds.simulated.world import SimulatedWorld

WORLD = SimulatedWorld(2)


def _shared(comm: Any, name: str) -> tuple[Any, Any]:
    """Arguments of which the last element that is sent is the first that is received."""
    whole = np.ones(8)
    counts = {"Gather": (2, 4), "Allgather": (2, 4), "Allgatherv": (2, 4)}.get(name, (4, 4))
    send, receive = whole[: counts[0]], whole[counts[0] - 1 :][: counts[1]]
    if name == "Allgatherv":
        return send, [receive, [2, 2]]
    if name == "Alltoallv":
        return [send, [2, 2]], [receive, [2, 2]]
    return send, receive


REFUSED: list[tuple[Callable[[Any], Any], type[Exception], str]] = [
    (lambda comm: comm.Reduce_scatter(MPI.IN_PLACE, np.zeros(3)), TypeError, "in place needs recvcounts"),
    (
        lambda comm: comm.Reduce_scatter(np.ones(3), np.zeros(1), [1, 1, 1]),
        ValueError,
        "expecting 2 items, got 3",
    ),
    (
        lambda comm: comm.Reduce_scatter(np.ones(3), np.zeros(2), [2, 2]),
        ValueError,
        r"mismatch in send count 3 and sum\(counts\) 4",
    ),
    (
        lambda comm: comm.Reduce_scatter(MPI.IN_PLACE, np.ones(3), [2, 2]),
        ValueError,
        r"mismatch in receive count 3 and sum\(counts\) 4",
    ),
    (
        lambda comm: comm.Reduce_scatter(np.ones(3), np.zeros(3), [2, 1]),
        ValueError,
        r"mismatch in receive count 3 and counts\[0\] 2",
    ),
    (
        lambda comm: comm.Reduce_scatter_block(np.ones(6), np.zeros(4)),
        ValueError,
        "mismatch in send count 3 and receive count 4",
    ),
    (lambda comm: comm.Reduce_scatter(np.ones(3), np.zeros(1), [3]), ValueError, "expecting 2 items, got 1"),
    (
        lambda comm: comm.Reduce_scatter(np.ones(5), np.zeros(2), [2, 2]),
        ValueError,
        r"mismatch in send count 5 and sum\(counts\) 4",
    ),
    (
        lambda comm: comm.Reduce_scatter(np.ones(3), np.zeros(1), [2, 1]),
        ValueError,
        r"mismatch in receive count 1 and counts\[0\] 2",
    ),
    (
        lambda comm: comm.Reduce_scatter_block(np.ones(6), np.zeros(2)),
        ValueError,
        "mismatch in send count 3 and receive count 2",
    ),
    (lambda comm: comm.Reduce_scatter_block(MPI.IN_PLACE, np.zeros(3)), ValueError, "not a multiple"),
    *(
        (
            lambda comm, name=name, sizes=sizes: getattr(comm, name)(np.ones(sizes[0]), np.ones(sizes[1])),
            ValueError,
            f"^mismatch in send count {sizes[0]} and receive count {sizes[1]}$",
        )
        for name in ("Reduce", "Allreduce", "Scan", "Exscan")
        for sizes in ((3, 4), (4, 3))
    ),
    *(
        (
            lambda comm, name=name, size=size: getattr(comm, name)(np.ones(2), np.ones(2 // size, "f4")),
            ValueError,
            "^mismatch in send and receive MPI datatypes$",
        )
        for name, size in {
            "Reduce": 1,
            "Allreduce": 1,
            "Scan": 1,
            "Exscan": 1,
            "Reduce_scatter": 2,
            "Reduce_scatter_block": 2,
        }.items()
    ),
    *(
        (
            lambda comm, name=name: getattr(comm, name)(*_shared(comm, name)),
            MPI.Exception,
            f"^{name}: the send and receive buffers must not be aliased$",
        )
        for name in ("Allreduce", "Scan", "Gather", "Allgather", "Allgatherv", "Alltoall", "Alltoallv")
    ),
    *(
        (
            lambda comm, color=color: comm.Split(color),
            MPI.Exception,
            f"^Invalid color {color}: must be nonnegative or UNDEFINED$",
        )
        for color in (-1, -2, -5)
    ),
    (lambda comm: comm.Create_cart([2, 1], [True]), ValueError, "expecting 2 items, got 1"),
    (lambda comm: comm.Create_cart([2], [True, False]), ValueError, "expecting 1 items, got 2"),
    (
        lambda comm: comm.Create_cart([3]),
        MPI.Exception,
        r"the communicator has 2 ranks, and the grid \(3,\) 3",
    ),
    (lambda comm: comm.Create_cart([-1, -1]), MPI.Exception, r"and the grid \(-1, -1\) 1"),
    (lambda comm: comm.Create_cart([1, -2, 0]), MPI.Exception, r"and the grid \(1, -2, 0\) 0"),
    (lambda comm: comm.group.Excl([1, 1]), MPI.Exception, r"Invalid ranks \[1, 1\]: one is there twice"),
    (lambda comm: comm.scatter([1, 2, 3]), ValueError, "expecting 2 items, got 3"),
    (lambda comm: comm.scatter([1]), ValueError, "expecting 2 items, got 1"),
    (lambda comm: comm.alltoall([1, 2, 3]), ValueError, "expecting 2 items, got 3"),
    (lambda comm: comm.alltoall(iter([1])), ValueError, "expecting 2 items, got 1"),
    (
        lambda comm: comm.Bcast(np.ones(1), root=2),
        MPI.Exception,
        "Invalid root 2: must be nonnegative and less than 2",
    ),
    (lambda comm: comm.gather(1, 3), MPI.Exception, "^Invalid root 3: must be nonnegative and less than 2$"),
    (
        lambda comm: comm.bcast(1, root=-1),
        MPI.Exception,
        "Invalid root -1: must be nonnegative and less than 2",
    ),
    (lambda comm: comm.Bcast(np.ones(1), root="0"), TypeError, "an integer is required, not '0'"),
    (lambda comm: comm.Bcast(np.ones(1), root=2**33), OverflowError, "too large for an int of C"),
    (lambda comm: comm.Free(), RuntimeError, "the run's own communicator belongs to the world"),
]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    REFUSED,
    ids=[f"{number} {message}" for number, (_, _, message) in enumerate(REFUSED)],
)
def test_what_does_not_fit_is_refused(
    call: Callable[[Any], Any], error: type[Exception], message: str
) -> None:
    def body(context: Any, _: Any) -> None:
        if context.comm.rank == 0:
            with pytest.raises(error, match=message):
                call(context.comm)

    run = WORLD.run(body, ranks=2)
    assert run.completed, (run.findings, run.outcomes)


OFF_ROOT = {
    "Reduce": lambda comm: comm.Reduce(MPI.IN_PLACE, np.ones(1), root=1),
    "Gather": lambda comm: comm.Gather(MPI.IN_PLACE, np.ones(2), root=1),
    "Gatherv": lambda comm: comm.Gatherv(MPI.IN_PLACE, [np.ones(2), [1, 1]], root=1),
    "Scatter": lambda comm: comm.Scatter(np.ones(2), MPI.IN_PLACE, root=1),
    "Scatterv": lambda comm: comm.Scatterv([np.ones(2), [1, 1]], MPI.IN_PLACE, root=1),
}


@pytest.mark.parametrize("name", OFF_ROOT)
def test_the_root_alone_may_give_in_place(name: str) -> None:
    run = WORLD.run(lambda context, _: OFF_ROOT[name](context.comm), ranks=2)
    assert run.outcomes[0].message == f"{name}: only the root may give IN_PLACE"


def test_a_grid_is_kept_along_as_many_dimensions_as_it_has() -> None:
    def body(context: Any, _: Any) -> Any:
        grid = context.comm.Create_cart([2, 1], [True, False])
        for kept in ([True], [True, False, True]):
            with pytest.raises(ValueError, match=f"^expecting 2 items, got {len(kept)}$"):
                grid.Sub(kept)
        lines = [grid.Sub(kept) for kept in ([True, False], [False, True], [True, True])]
        shapes = [(line.dims, line.periods, line.coords) for line in lines]
        for each in (grid, *lines):
            each.Free()
        return shapes

    run = WORLD.run(body, ranks=2)
    assert run.completed, (run.findings, run.outcomes)
    for rank, shapes in enumerate(run.values):
        assert shapes == [([2], [1], [rank]), ([1], [0], [0]), ([2, 1], [1, 0], [rank, 0])]


def test_ranks_split_by_the_memory_that_they_share_are_together() -> None:
    theirs = pytest.importorskip("mpi4py.MPI")

    def body(context: Any, _: Any) -> Any:
        comm = context.comm
        node = comm.Split_type(theirs.COMM_TYPE_SHARED, key=-comm.rank)
        assert comm.Split_type(theirs.UNDEFINED) == MPI.COMM_NULL
        found = node.size, node.rank
        node.Free()
        return found

    assert WORLD.run(body, ranks=2).values == ((2, 1), (2, 0))


def test_blocks_of_one_array_may_be_sent_and_received_at_once_if_they_share_no_element() -> None:
    def body(context: Any, _: Any) -> Any:
        comm, whole = context.comm, np.arange(8.0) + 10 * context.comm.rank
        comm.Alltoallv([whole, [1, 1], [0, 4], "d"], [whole, [1, 1], [1, 3], "d"])
        for at in (0, 4):
            with pytest.raises(MPI.Exception, match="must not be aliased"):
                comm.Alltoallv([whole, [1, 1], [0, 4], "d"], [whole, [1, 1], [6, at], "d"])
        return whole.tolist()

    first, second = WORLD.run(body, ranks=2).values
    assert first == [0, 0, 2, 10, 4, 5, 6, 7]
    assert second == [10, 4, 12, 14, 14, 15, 16, 17]


@pytest.mark.parametrize("size", [1, 3, 5])
def test_parts_of_a_reduction_have_any_number_of_elements(size: int) -> None:
    def body(context: Any, _: Any) -> Any:
        part = np.zeros(size)
        context.comm.Reduce_scatter_block(np.arange(2.0 * size), part)
        return part.tolist()

    expected = [2.0 * element for element in range(2 * size)]
    assert WORLD.run(body, ranks=2).values == (expected[:size], expected[size:])


def test_nobody_gets_a_communicator_of_a_grid_without_ranks() -> None:
    def body(context: Any, _: Any) -> Any:
        return bool(context.comm.Create_cart([0])), bool(context.comm.Create_cart([2, 0]))

    assert WORLD.run(body, ranks=2).values == ((False, False),) * 2


def constant(*, is_constant: bool, count: int) -> Any:
    array = np.ones(count)
    array.flags.writeable = not is_constant
    return array


def moving(
    comm: Any, send: Callable[[int], Any], receive: Callable[[int], Any]
) -> dict[str, tuple[Any, ...]]:
    """Arguments of each call, with so many elements of a buffer to send and of one to receive into."""
    bytes_apart = ([1, 1], [0, 8]), [MPI.DOUBLE] * 2
    return {
        "Bcast": (receive(1) if comm.rank else send(1),),
        "Reduce": (send(2), None if comm.rank else receive(2)),
        "Allreduce": (send(2), receive(2)),
        "Scan": (send(2), receive(2)),
        "Exscan": (send(2), receive(2)),
        "Reduce_scatter": (send(2), receive(1), [1, 1]),
        "Reduce_scatter_block": (send(2), receive(1)),
        "Gather": (send(1), None if comm.rank else receive(2)),
        "Gatherv": (send(1), None if comm.rank else [receive(2), [1, 1]]),
        "Scatter": (None if comm.rank else send(2), receive(1)),
        "Scatterv": (None if comm.rank else [send(2), [1, 1]], receive(1)),
        "Allgather": (send(1), receive(2)),
        "Allgatherv": (send(1), [receive(2), [1, 1]]),
        "Alltoall": (send(2), receive(2)),
        "Alltoallv": ([send(2), [1, 1]], [receive(2), [1, 1]]),
        "Alltoallw": ([send(2), *bytes_apart], [receive(2), *bytes_apart]),
        "Sendrecv": (send(1), 1 - comm.rank, 0, receive(1), 1 - comm.rank),
    }


CALLS = list(moving(SimpleNamespace(rank=0), str, str))


@pytest.mark.parametrize("is_blocking", [True, False])
@pytest.mark.parametrize("name", CALLS)
def test_a_buffer_to_receive_into_is_writable_and_one_to_send_need_not_be(
    name: str, is_blocking: bool
) -> None:
    called = name if is_blocking or name == "Sendrecv" else f"I{name.lower()}"

    def body(context: Any, _: Any) -> None:
        comm = context.comm

        def arguments(*, is_sent: bool, is_received: bool) -> tuple[Any, ...]:
            return moving(
                comm,
                lambda count: constant(is_constant=is_sent, count=count),
                lambda count: constant(is_constant=is_received, count=count),
            )[name]

        receives = not (name in ("Reduce", "Gather", "Gatherv") and comm.rank)
        if receives and not (name == "Bcast" and comm.rank == 0):
            with pytest.raises(BufferError, match="not writable"):
                getattr(comm, called)(*arguments(is_sent=False, is_received=True))
        request = getattr(comm, called)(*arguments(is_sent=True, is_received=False))
        if request is not None:
            request.Wait()

    run = WORLD.run(body, ranks=2)
    assert run.completed, (run.findings, run.outcomes)


RECEIVING: dict[str, Callable[[Any, Any], Any]] = {
    "Recv": lambda comm, buffer: comm.Recv(buffer),
    "Irecv": lambda comm, buffer: comm.Irecv(buffer),
    "Sendrecv_replace": lambda comm, buffer: comm.Sendrecv_replace(buffer, comm.rank),
    "Allreduce in place": lambda comm, buffer: comm.Allreduce(MPI.IN_PLACE, buffer),
}


@pytest.mark.parametrize("name", RECEIVING)
def test_a_message_is_received_into_a_buffer_that_is_writable(name: str) -> None:
    def body(context: Any, _: Any) -> None:
        comm, buffer = context.comm, constant(is_constant=True, count=1)
        comm.Bsend(buffer, comm.rank)
        with pytest.raises(BufferError, match="not writable"):
            RECEIVING[name](comm, buffer)
        comm.Recv(np.ones(1))

    run = WORLD.run(body, ranks=2)
    assert run.completed, (run.findings, run.outcomes)


@pytest.mark.parametrize("name", ["Recv", "Irecv"])
def test_a_message_that_was_matched_is_still_there_after_a_receive_that_is_refused(name: str) -> None:
    def body(context: Any, _: Any) -> None:
        comm = context.comm
        comm.Bsend(np.ones(1), comm.rank)
        message = comm.Mprobe()
        with pytest.raises(BufferError, match="not writable"):
            getattr(message, name)(constant(is_constant=True, count=1))
        message.Recv(np.ones(1))

    run = WORLD.run(body, ranks=2)
    assert run.completed, (run.findings, run.outcomes)


def test_where_mpi4py_is_not_imported_a_number_below_zero_is_no_rank_and_no_tag(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else -1 may be one of its constants."""

    def body(context: Any, _: Any) -> None:
        comm, one = context.comm, np.ones(1)
        with monkeypatch.context() as patched:
            patched.delitem(sys.modules, "mpi4py.MPI", raising=False)
            for number, call in product((-1, -2), (comm.Send, comm.Recv, comm.Irecv)):
                with pytest.raises(MPI.Exception, match=f"^Invalid rank {number}: must be nonnegative"):
                    call(one, number)
                with pytest.raises(MPI.Exception, match=f"^Invalid tag {number}: must be from 0 to"):
                    call(one, 0, number)

    run = WORLD.run(body, ranks=1)
    assert run.completed, (run.findings, run.outcomes)


@pytest.mark.parametrize(
    "refused",
    [
        lambda comm: comm.Sendrecv(np.ones(1), dest=7, recvbuf=np.zeros(1), source=1),
        lambda comm: comm.Sendrecv(np.ones(1), dest=MPI.ANY_SOURCE, recvbuf=np.zeros(1), source=1),
        lambda comm: comm.Sendrecv(np.ones(1), dest=1, sendtag=-5, recvbuf=np.zeros(1), source=1),
        lambda comm: comm.Sendrecv(object(), dest=1, recvbuf=np.zeros(1), source=1),
        lambda comm: comm.sendrecv(1.0, dest=7, source=1),
        lambda comm: comm.sendrecv(1.0, dest=1, sendtag=-5, source=1),
        lambda comm: comm.sendrecv(lambda: 1, dest=1, source=1),
    ],
)
def test_a_call_that_is_refused_takes_no_later_message(refused: Callable[[Any], Any]) -> None:
    def body(context: Any, _: object) -> float:
        comm, got = context.comm, np.zeros(1)
        if comm.rank == 1:
            comm.Send(np.full(1, 5.0), dest=0)
            return 5.0
        with pytest.raises((MPI.Exception, TypeError, AttributeError, ValueError, pickle.PicklingError)):
            refused(comm)
        comm.Recv(got, source=1)
        return float(got[0])

    assert WORLD.run(body, None, 2).values == (5.0, 5.0)
