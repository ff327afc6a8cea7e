"""The transports of device buffers: how they are chosen, when they send, and what they keep."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import adjointlab as al
from adjointlab.core import arrays, transport
from adjointlab.core.arrays.streams import streams_of
from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.core.transport.direct import DirectCommunicator
from adjointlab.core.transport.pinned import PinnedPool
from adjointlab.core.transport.staging import StagedCommunicator
from adjointlab.devices.transport import OVERRIDE, Transport
from adjointlab.primitives import groups
from adjointlab.primitives.halo_exchange import HaloExchange
from adjointlab.primitives.repartition import Repartition
from adjointlab.typing import Communicator
from adjointlab.worlds.run import Raised, Run
from tests.gpu.stand_in.arrays import counts
from tests.gpu.stand_in.streams import Stream
from tests.outcomes import values_of

SIZE = 5


def run(world: al.SimulatedWorld, ranks: int, body: Callable[[Communicator], Any]) -> Run:
    return world.run(lambda context, _: body(context.comm), None, ranks)


def on_device(values: Any) -> Any:
    return arrays.from_numpy(np.asarray(values, np.float64), "float64", "cupy")


# The choice


def test_an_array_of_the_host_goes_by_the_communicator_itself(world: al.SimulatedWorld, cupy: Any) -> None:
    assert values_of(run(world, 1, lambda comm: transport.over(comm, np.zeros(3)) is comm)) == (True,)


def test_simulated_ranks_take_memory_of_a_device(world: al.SimulatedWorld, cupy: Any) -> None:
    def body(comm: Communicator) -> tuple[bool, str]:
        return isinstance(transport.over(comm, on_device([1])), DirectCommunicator), transport.chosen(
            comm
        ).transport

    assert values_of(run(world, 2, body)) == ((True, Transport.CUDA_AWARE_MPI),) * 2


def test_the_choice_can_be_made_by_the_environment_and_in_the_program(
    world: al.SimulatedWorld, cupy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def body(comm: Communicator) -> tuple[type, type]:
        by_environment = type(transport.over(comm, on_device([1])))
        transport.use(comm, "cuda-aware-mpi")
        return by_environment, type(transport.over(comm, on_device([1])))

    monkeypatch.setenv(OVERRIDE, "staging")
    assert values_of(run(world, 1, body)) == ((StagedCommunicator, DirectCommunicator),)


def test_communicators_of_groups_inherit_it(world: al.SimulatedWorld, cupy: Any) -> None:
    def body(comm: Communicator) -> str:
        transport.use(comm, "staging")
        return (
            transport.chosen(groups.communicator(comm, {0, 1})).transport
            if comm.rank < 2
            else Transport.STAGING
        )

    assert set(values_of(run(world, 3, body))) == {Transport.STAGING}


def test_all_ranks_agree_on_a_transport_or_all_raise(world: al.SimulatedWorld, cupy: Any) -> None:
    def agreeing(comm: Communicator) -> str:
        return transport.agree(comm, "staging").transport

    def disagreeing(comm: Communicator) -> str:
        return transport.agree(comm, "staging" if comm.rank else None).transport

    assert values_of(run(world, 2, agreeing)) == (Transport.STAGING,) * 2
    raised = run(world, 2, disagreeing).outcomes
    texts = {str(outcome.exception) for outcome in raised if isinstance(outcome, Raised)}
    assert texts == {"transport: all ranks must ask for the same, but rank 0: the best, rank 1: staging"}

    def all_differ(comm: Communicator) -> str:
        return transport.agree(comm, (None, "staging", "nccl")[comm.rank]).transport

    raised = run(world, 3, all_differ).outcomes
    texts = {str(outcome.exception) for outcome in raised if isinstance(outcome, Raised)}
    assert texts == {
        "transport: all ranks must ask for the same, but rank 0: the best, rank 1: staging, rank 2: nccl"
    }


@pytest.mark.parametrize("wrong", ["carrier pigeon", "none", "nccl"])
def test_a_transport_that_cannot_be_had_is_an_error(world: al.SimulatedWorld, cupy: Any, wrong: str) -> None:
    (outcome,) = run(world, 1, lambda comm: transport.use(comm, wrong)).outcomes
    assert isinstance(outcome, Raised)
    assert str(outcome.exception).startswith("transport: ")


# Staging


class Recorded:
    """A communicator that notes its calls, and how many copies to the host were complete then."""

    def __init__(self, comm: Communicator, log: list[tuple[str, int]]) -> None:
        self._comm, self._log = comm, log

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._comm, name)
        if name in ("Isend", "Irecv"):
            self._log.append((name, sum(stream.begun for stream in Stream.by_pointer.values() if stream.ptr)))
        return found


def test_each_message_is_sent_when_its_own_copy_is_complete(world: al.SimulatedWorld, cupy: Any) -> None:
    """Four messages are copied and sent one by one: when the first is sent, the copies of the others have not been made."""

    def body(comm: Communicator) -> list[tuple[str, int]]:
        log: list[tuple[str, int]] = []
        parts = [on_device(np.full(SIZE, 10.0 * comm.rank + i)) for i in range(4)]
        received = [on_device(np.zeros(SIZE)) for _ in parts]
        staged = StagedCommunicator(Recorded(comm, log), streams_of(parts[0]))  # type: ignore[arg-type]
        other = 1 - comm.rank
        requests = [staged.Irecv(part, other, 0) for part in received]
        requests += [staged.Isend(part, other, 0) for part in parts]
        al.MPI.Request.Waitall(requests)
        assert [arrays.to_numpy(part).tolist() for part in received] == [
            [10.0 * other + i] * SIZE for i in range(4)
        ]
        return log

    (log, _) = values_of(run(world, 2, body))
    names = [name for name, _ in log]
    assert names == ["Irecv"] * 4 + ["Isend"] * 4
    copied = [number for name, number in log if name == "Isend"]
    assert copied == sorted(set(copied)), "the host waited for later copies too"


def test_pinned_memory_is_made_once_and_no_copy_is_made_in_vain(world: al.SimulatedWorld, cupy: Any) -> None:
    def body(comm: Communicator) -> tuple[int, int]:
        staged = StagedCommunicator(comm, streams_of(on_device([1])))
        made: list[int] = []
        pinned = staged.streams.pinned
        staged.pool = PinnedPool(_Counting(staged.streams, made))
        sent, received = on_device(np.ones(SIZE)), on_device(np.zeros(SIZE))
        for _ in range(20):
            requests = [staged.Irecv(received, 1 - comm.rank, 0), staged.Isend(sent, 1 - comm.rank, 0)]
            al.MPI.Request.Waitall(requests)
            streams_of(received).mark().synchronize()
        del pinned
        return len(made), comm.rank

    counts.clear()
    made = values_of(run(world, 2, body))
    assert all(number <= 4 for number, _ in made)
    assert counts["bytes"] == 2 * 20 * 2 * SIZE * 8, (
        "each message is copied once to the host and once to the device"
    )


class _Counting:
    def __init__(self, streams: Any, made: list[int]) -> None:
        self._streams, self._made = streams, made

    def __getattr__(self, name: str) -> Any:
        return getattr(self._streams, name)

    def pinned(self, nbytes: int) -> Any:
        self._made.append(nbytes)
        return self._streams.pinned(nbytes)


def test_a_send_that_waits_for_its_copy_is_sent_before_this_rank_waits(
    world: al.SimulatedWorld, cupy: Any
) -> None:
    """Both ranks send first and then receive: a send that was put off until its own wait would hang both."""

    def body(comm: Communicator) -> float:
        transport.use(comm, "staging")
        mine, theirs = on_device(np.full(SIZE, comm.rank)), on_device(np.zeros(SIZE))
        over = transport.over(comm, mine)
        request = over.Isend(mine, 1 - comm.rank, 0)
        over.Recv(theirs, 1 - comm.rank, 0)
        request.Wait()
        return float(arrays.to_numpy(theirs)[0])

    assert values_of(run(world, 2, body)) == (1.0, 0.0)


@pytest.mark.parametrize("name", ["staging", "cuda-aware-mpi"])
@pytest.mark.parametrize(
    "call", ["Bcast", "Reduce", "Allreduce", "Allgather", "Allgatherv", "Reduce_scatter"]
)
def test_collectives_give_what_they_give_on_the_host(
    world: al.SimulatedWorld, cupy: Any, name: str, call: str
) -> None:
    def body(comm: Communicator) -> list[float]:
        transport.use(comm, name)
        own = np.arange(3.0) + 10 * comm.rank

        def result(place: Callable[[Any], Any], over: Communicator) -> Any:
            sent, wide = place(own), place(np.zeros(3 * comm.size))
            into = place(np.zeros(3))
            match call:
                case "Bcast":
                    over.Bcast(sent, root=1)
                    return sent
                case "Reduce":
                    over.Reduce(sent, into if comm.rank == 1 else None, root=1)
                case "Allreduce":
                    over.Allreduce(sent, into)
                case "Allgather":
                    over.Allgather(sent, wide)
                    return wide
                case "Allgatherv":
                    over.Allgatherv(sent[: comm.rank], [wide, ([0, 1, 2], [0, 4, 6])])
                    return wide
                case "Reduce_scatter":
                    part = place(np.zeros(comm.rank))
                    over.Reduce_scatter(sent, part, recvcounts=[0, 1, 2])
                    return part
            return into

        expected = result(np.array, comm)
        actual = arrays.to_numpy(result(on_device, transport.over(comm, on_device([1]))))
        assert np.array_equal(actual, expected)
        return list(actual)

    values_of(run(world, 3, body))


@pytest.mark.parametrize(
    "call", ["Bcast", "Reduce", "Allreduce", "Allgather", "Allgatherv", "Reduce_scatter"]
)
def test_a_send_that_waits_for_its_copy_is_sent_before_a_collective(
    world: al.SimulatedWorld, cupy: Any, call: str
) -> None:
    """The receiver comes to the collective after the message."""

    def body(comm: Communicator) -> float:
        transport.use(comm, "staging")
        mine, theirs = on_device(np.full(2, comm.rank)), on_device(np.zeros(2))
        over = transport.over(comm, mine)
        if comm.rank:
            request = over.Isend(mine, 0)
        else:
            over.Recv(theirs, 1)
        arguments = {
            "Bcast": (mine,),
            "Reduce": (mine, None if comm.rank else on_device(np.zeros(2))),
            "Allreduce": (mine, on_device(np.zeros(2))),
            "Allgather": (mine, on_device(np.zeros(4))),
            "Allgatherv": (mine, [on_device(np.zeros(4)), ([2, 2], [0, 2])]),
            "Reduce_scatter": (mine, on_device(np.zeros(1)), [1, 1]),
        }
        getattr(over, call)(*arguments[call])
        if comm.rank:
            request.Wait()
        return float(arrays.to_numpy(theirs)[0])

    assert values_of(run(world, 2, body)) == (1.0, 0.0)


# Launches


def launches(
    world: al.SimulatedWorld, call: Callable[[Communicator], Callable[[], object]], ranks: int
) -> int:
    """The kernels that all ranks launch in a call, whose operator is made before."""

    def body(comm: Communicator) -> None:
        called = call(comm)
        comm.Barrier()
        if comm.rank == 0:
            counts.clear()
        comm.Barrier()
        called()

    values_of(run(world, ranks, body))
    return counts["launches"]


@pytest.mark.parametrize("side", [8, 7])
@pytest.mark.parametrize("name", ["staging", "cuda-aware-mpi"])
def test_the_faces_of_a_dimension_are_packed_by_one_launch_and_unpacked_by_one(
    world: al.SimulatedWorld, cupy: Any, name: str, side: int
) -> None:
    """Two faces, which may be copied in words of different widths; with an odd side they begin at odd addresses."""
    grid = Partition((1, 3))
    bulk = Layout((4, 3 * side), grid)
    windows = Layout(
        bulk.shape, grid, (((0, 4),), tuple((side * i - 2, side * i + side + 1) for i in range(3)))
    )

    def called(comm: Communicator, is_forward: bool) -> Callable[[], object]:
        transport.use(comm, name)
        halos = HaloExchange(comm, bulk, windows, periodic=(1,))
        layout, function = (bulk, halos.forward) if is_forward else (windows, halos.adjoint)
        x = on_device(np.ones(layout.local_shape(comm.rank)))
        return lambda: function(x)

    for is_forward in (True, False):
        assert launches(world, lambda comm, way=is_forward: called(comm, way), 3) == 2 * 3  # type: ignore[misc]


def test_the_messages_of_a_repartition_are_packed_by_one_launch_and_unpacked_by_one(
    world: al.SimulatedWorld, cupy: Any
) -> None:
    rows, columns = (Layout((9, 7, 5), Partition(grid)) for grid in ((3, 1, 1), (1, 1, 3)))

    def called(comm: Communicator) -> Callable[[], object]:
        operator = Repartition(comm, rows, columns)
        x = on_device(np.ones(rows.local_shape(comm.rank)))
        return lambda: operator.forward(x)

    assert launches(world, called, 3) <= 2 * 3
