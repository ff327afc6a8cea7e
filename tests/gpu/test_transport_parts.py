"""The parts of transports: pinned memory that is used again, requests, arguments that are passed on, and the choice for a communicator."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import adjointlab as al
from adjointlab import MPI
from adjointlab.core import arrays, transport
from adjointlab.core.arrays.streams import streams_of
from adjointlab.core.transport import choice, nccl
from adjointlab.core.transport.calls import DeviceCommunicator, DeviceRequest, op_keyword
from adjointlab.core.transport.direct import DirectCommunicator
from adjointlab.core.transport.nccl import NcclCommunicator
from adjointlab.core.transport.pinned import PinnedPool
from adjointlab.core.transport.staging import StagedCommunicator
from adjointlab.devices.transport import OVERRIDE, Choice, RankEvidence, Transport
from adjointlab.typing import Communicator
from tests.gpu.stand_in.arrays import counts
from tests.gpu.stand_in.nccl import Nccl, Ranks
from tests.outcomes import values_of

pytestmark = pytest.mark.mpi_skip


def on_ranks(world: al.SimulatedWorld, ranks: int, body: Callable[[Communicator], Any]) -> Any:
    return values_of(world.run(lambda context, _: body(context.comm), None, ranks))


def on_device(values: Any) -> Any:
    return arrays.from_numpy(np.asarray(values, np.float64), "float64", "cupy")


def read(array: Any) -> list[float]:
    values: list[float] = arrays.to_numpy(array).tolist()
    return values


# Pinned memory


class OfHost:
    """Streams whose marks are reached when they are in a set."""

    def __init__(self) -> None:
        self.reached: set[str] = set()
        self.made: list[int] = []

    def is_reached(self, mark: str) -> bool:
        return mark in self.reached

    def pinned(self, nbytes: int) -> Any:
        self.made.append(nbytes)
        return np.zeros(nbytes, np.uint8)


@pytest.mark.parametrize(
    ("nbytes", "size"),
    [(0, 512), (1, 512), (511, 512), (512, 512), (513, 1024), (1024, 1024), (1025, 2048), (5000, 8192)],
)
def test_a_piece_of_pinned_memory_has_a_power_of_two_of_bytes(nbytes: int, size: int) -> None:
    pool = PinnedPool(OfHost())  # type: ignore[arg-type]
    assert pool.take(nbytes).nbytes == size


def test_a_piece_is_used_again_once_nothing_reads_it() -> None:
    streams = OfHost()
    pool: Any = PinnedPool(streams)  # type: ignore[arg-type]
    first, second, third, large = (pool.take(nbytes) for nbytes in (3, 500, 512, 513))
    assert streams.made == [512, 512, 512, 1024]
    pool.give_back(first, "copy of the first")
    pool.give_back(second, "copy of the second")
    pool.give_back(large)
    assert pool.take(600) is large
    assert not any(pool.take(10) is each for each in (first, second))
    streams.reached.add("copy of the second")
    assert pool.take(10) is second
    pool.give_back(third)
    assert pool.take(10) is third
    streams.reached.add("copy of the first")
    assert pool.take(10) is first
    before = len(streams.made)
    pool.take(10)
    assert len(streams.made) == before + 1


# Requests


class Counted(DeviceRequest):
    """A request that is ready after some looks."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self.looks, self.completed = looks, 0

    def Get_status(self, status: Any = None) -> bool:
        self.looks -= 1
        return self.looks < 0


class _CompletedAtOnce(MPI.RequestBatch):
    def complete_all(self, statuses: Any) -> list[Any]:
        for request in self.requests:
            request.is_active = False  # type: ignore[attr-defined]
            request.completed += 1  # type: ignore[attr-defined]
        return [None] * len(self.requests)


Counted.batch_type = _CompletedAtOnce


@pytest.mark.parametrize("wait", [DeviceRequest.Wait, DeviceRequest.wait], ids=["Wait", "wait"])
def test_a_request_is_completed_once_by_waiting(wait: Callable[..., object]) -> None:
    request = Counted(2)
    assert request
    for _ in range(2):
        assert wait(request) is (True if wait is DeviceRequest.Wait else None)
        assert (bool(request), request.completed) == (False, 1)


def test_a_request_is_completed_by_the_first_test_that_finds_it_ready() -> None:
    request = Counted(2)
    assert [request.Test(), request.test(), bool(request), request.completed] == [
        False,
        (False, None),
        True,
        0,
    ]
    assert [request.Test(), bool(request), request.completed] == [True, False, 1]
    other = Counted(0)
    assert (other.test(), bool(other)) == ((True, None), False)


@pytest.mark.parametrize(("name", "done"), [("Cancel", "cancelled"), ("Free", "freed")])
def test_a_request_of_a_device_is_waited_for(name: str, done: str) -> None:
    with pytest.raises(NotImplementedError) as raised:
        getattr(Counted(0), name)()
    assert str(raised.value) == f"a message from or to device memory cannot be {done}; wait for it"


def test_a_sum_is_the_default_of_a_reduction() -> None:
    assert op_keyword(MPI.SUM) == {}
    assert op_keyword(MPI.MAX) == {"op": MPI.MAX}


@pytest.mark.parametrize(
    ("base", "name"),
    [
        *((DeviceCommunicator, name) for name in ("Isend", "Irecv", "Bcast", "Reduce", "Allreduce")),
        *((DeviceCommunicator, name) for name in ("Allgather", "Allgatherv", "Reduce_scatter")),
        (DeviceRequest, "Get_status"),
    ],
)
def test_a_transport_has_every_call(base: type, name: str) -> None:
    """A class that lacks one cannot be made."""
    calls = {each: lambda *_: None for each in base.__abstractmethods__ - {name}}  # type: ignore[attr-defined]
    lacking = type("Lacking", (base,), calls)
    with pytest.raises(TypeError, match=name):
        lacking()


# Arguments


def made(name: str, comm: Communicator) -> Any:
    streams = streams_of(on_device([0]))
    match name:
        case "direct":
            return DirectCommunicator(comm, streams)
        case "staged":
            return StagedCommunicator(comm, streams)
    return NcclCommunicator(comm, Ranks(comm, NCCL), streams)


NCCL = Nccl()


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl, "_nccl", lambda: NCCL)


@pytest.mark.parametrize("name", ["direct", "staged"])
def test_messages_have_the_tags_and_ranks_that_they_are_given(
    world: al.SimulatedWorld, cupy: Any, name: str
) -> None:
    def body(comm: Communicator) -> list[list[float]]:
        over, received = made(name, comm), [on_device([0]) for _ in range(4)]
        if comm.rank == 0:
            over.Send(on_device([1]), 1)
            over.Send(on_device([2]), 1, 5)
            over.Isend(on_device([3]), 1).Wait()
            over.Isend(on_device([4]), dest=1, tag=6).Wait()
            return []
        over.Recv(received[0], 0, 0)
        over.Recv(received[1], 0, 5)
        over.Irecv(received[2], source=0, tag=0).Wait()
        over.Irecv(received[3]).Wait()
        return [read(each) for each in received]

    assert on_ranks(world, 2, body)[1] == [[1], [2], [3], [4]]


@pytest.mark.parametrize("name", ["direct", "staged", "nccl"])
def test_the_first_rank_is_the_root_unless_another_is_named(
    world: al.SimulatedWorld, cupy: Any, name: str
) -> None:
    def body(comm: Communicator) -> Any:
        over, found = made(name, comm), []
        for keywords in ({}, {"root": 1}):
            root = keywords.get("root", 0)
            sent, summed = on_device([comm.rank + 1]), on_device([-1])
            over.Reduce(sent, summed if comm.rank == root else None, **keywords)
            over.Bcast(sent, **keywords)
            found += [read(sent), read(summed)]
        for op in (MPI.SUM, MPI.MAX):
            total = on_device([0])
            over.Allreduce(on_device([comm.rank + 1]), total, op)
            found.append(read(total))
        return found

    assert on_ranks(world, 3, body) == tuple(
        [[1], [6] if rank == 0 else [-1], [2], [6] if rank == 1 else [-1], [6], [3]] for rank in range(3)
    )


@pytest.mark.parametrize("name", ["direct", "staged", "nccl"])
def test_all_else_is_the_communicators_own(world: al.SimulatedWorld, cupy: Any, name: str) -> None:
    def body(comm: Communicator) -> Any:
        over = made(name, comm)
        return over.Get_rank(), over.size, over.allgather(comm.rank)

    assert on_ranks(world, 2, body) == ((0, 2, [0, 1]), (1, 2, [0, 1]))


@pytest.mark.parametrize(
    ("sizes", "starts", "length", "copies"),
    [([2, 2], [0, 2], 4, 1), ([2, 2], [2, 0], 4, 1), ([2, 1], [0, 2], 4, 2), ([1, 1], [2, 3], 5, 2)],
)
def test_what_lies_between_gathered_blocks_stays_as_it_was(
    world: al.SimulatedWorld, cupy: Any, sizes: list[int], starts: list[int], length: int, copies: int
) -> None:
    """Only what is sent is copied to the host unless there is something between the blocks."""

    def body(comm: Communicator) -> None:
        sent = np.arange(1.0, 1 + sizes[comm.rank]) + 10 * comm.rank
        expected = np.full(length, -1.0)
        comm.Allgatherv(sent, [expected, (sizes, starts)])
        for name in ("direct", "staged", "nccl"):
            wide, own = on_device(np.full(length, -1.0)), on_device(sent)
            comm.Barrier()
            counts.clear()
            comm.Barrier()
            made(name, comm).Allgatherv(own, [wide, (sizes, starts)])
            comm.Barrier()
            assert counts["to_host"] == 2 * copies or name != "staged"
            comm.Barrier()
            assert read(wide) == expected.tolist()

    on_ranks(world, 2, body)


# The choice


def test_a_communicator_has_one_transport_for_each_library_and_device(
    world: al.SimulatedWorld, both: Any
) -> None:
    def body(comm: Communicator) -> None:
        with arrays.rank_context("numpy", 0):  # where torch's stand-in makes tensors
            x, y = on_device([1]), arrays.zeros((1,), "float64", "torch-cuda")
        assert transport.over(comm, x) is transport.over(comm, on_device([2]))
        assert transport.over(comm, x) is not transport.over(comm, y)
        assert transport.over(comm, y) is transport.over(comm, y)
        with both.cuda.Device(1):
            assert transport.over(comm, on_device([1])) is not transport.over(comm, x)

    on_ranks(world, 1, body)


@pytest.mark.parametrize(
    ("asked", "environment", "expected"),
    [
        (None, None, Choice(Transport.CUDA_AWARE_MPI, "simulated ranks copy on the device")),
        (None, "staging", Choice(Transport.STAGING, "asked for")),
        ("staging", "cuda-aware-mpi", Choice(Transport.STAGING, "asked for")),
        (Transport.STAGING, None, Choice(Transport.STAGING, "asked for")),
        ("cuda-aware-mpi", None, Choice(Transport.CUDA_AWARE_MPI, "asked for")),
    ],
)
def test_the_choice_of_a_communicator_comes_with_its_reason(
    world: al.SimulatedWorld,
    cupy: Any,
    asked: Any,
    environment: str | None,
    expected: Choice,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def body(comm: Communicator) -> Choice:
        if asked is not None:
            transport.use(comm, asked)
        return transport.chosen(comm)

    if environment is not None:
        monkeypatch.setenv(OVERRIDE, environment)
    assert on_ranks(world, 1, body) == (expected,)


class Plain:
    """A communicator of one rank, as far as the choice asks: of processes, which do not copy on the device."""

    def __init__(self) -> None:
        self.attributes: dict[Any, Any] = {}

    def Get_attr(self, key: Any) -> Any:
        return self.attributes.get(key)

    def Set_attr(self, key: Any, value: Any) -> None:
        self.attributes[key] = value


@pytest.mark.parametrize(
    ("is_aware", "expected"),
    [
        (True, Choice(Transport.CUDA_AWARE_MPI, "the MPI library takes device buffers")),
        (
            False,
            Choice(
                Transport.STAGING,
                "the MPI library does not take device buffers, and CuPy has no NCCL on ranks 0, 1",
            ),
        ),
    ],
)
def test_processes_choose_by_what_their_library_says(
    is_aware: bool, expected: Choice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "loaded_library", lambda: SimpleNamespace(is_aware=is_aware))
    monkeypatch.delenv(OVERRIDE, raising=False)
    comm: Any = Plain()
    assert transport.chosen(comm) == expected
    assert transport.chosen(comm) is transport.chosen(comm)


def test_nccl_is_begun_by_all_ranks_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    comm: Any = Plain()
    monkeypatch.setenv(OVERRIDE, "nccl")
    with pytest.raises(ValueError, match="transport: nccl is begun by all ranks together; call") as raised:
        transport.chosen(comm)
    assert str(raised.value).endswith(
        "adjointlab.core.transport.agree(comm) on all of them before their first message of arrays on a device"
    )
    for name, message in (
        ("nccl", "nccl needs to know of all ranks; call adjointlab.core.transport.agree(comm)"),
        ("none", "'none' is not one of cuda-aware-mpi, nccl, staging"),
        ("pigeon", "'pigeon' is not one of cuda-aware-mpi, nccl, staging"),
    ):
        with pytest.raises(ValueError, match=r"^transport: ") as raised:
            transport.use(comm, name)
        assert str(raised.value) == f"transport: {message}"


@pytest.mark.parametrize("library_is_aware", [False, True])
def test_ranks_agree_on_nccl_and_groups_of_them_inherit_it(
    world: al.SimulatedWorld, cupy: Any, library_is_aware: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def evidence(cuda_aware: bool) -> RankEvidence:
        return RankEvidence(f"device {next(devices)}", cuda_aware, "22703")

    devices = iter(range(9))
    monkeypatch.setattr(choice, "own_evidence", evidence)
    monkeypatch.setattr(choice, "loaded_library", lambda: SimpleNamespace(is_aware=library_is_aware))

    def body(comm: Communicator) -> Any:
        agreed = transport.agree(comm, "nccl")
        assert transport.chosen(comm) == agreed == Choice(Transport.NCCL, "asked for")
        over = transport.over(comm, on_device([1]))
        assert isinstance(over, NcclCommunicator)
        pair = comm.Split(comm.rank // 2, comm.rank)
        transport.inherit(comm, pair)
        inherited = transport.over(pair, on_device([1]))
        assert isinstance(inherited, NcclCommunicator)
        assert transport.chosen(pair) == agreed
        other = comm.Dup()
        transport.inherit(Plain(), other)  # type: ignore[arg-type]
        by_default = transport.chosen(other).transport
        return over._ranks[0], inherited._ranks[0], inherited._ranks[2], by_default

    assert on_ranks(world, 4, body) == tuple((4, 2, rank % 2, Transport.CUDA_AWARE_MPI) for rank in range(4))


def test_ranks_agree_on_the_best_that_all_have(
    world: al.SimulatedWorld, cupy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert set(on_ranks(world, 2, transport.agree)) == {
        Choice(Transport.CUDA_AWARE_MPI, "the MPI library takes device buffers")
    }
    monkeypatch.setenv(OVERRIDE, "staging")
    assert set(on_ranks(world, 2, transport.agree)) == {Choice(Transport.STAGING, "asked for")}


def test_messages_of_the_host_are_packed_one_by_one_and_those_of_a_device_together(cupy: Any) -> None:
    messages = ["a", "b", "c"]
    assert list(map(list, transport.packed_together(messages, np.zeros(1)))) == [["a"], ["b"], ["c"]]
    assert list(transport.packed_together(messages, on_device([1]))) == [messages]
    assert list(transport.packed_together([], on_device([1]))) == []
    assert list(transport.packed_together([], np.zeros(1))) == []


def test_an_array_of_torch_on_the_host_goes_by_the_communicator_itself(world: al.SimulatedWorld) -> None:
    torch = pytest.importorskip("torch")
    assert on_ranks(world, 1, lambda comm: transport.over(comm, torch.zeros(1)) is comm) == (True,)


# Requests of staged messages


def test_staged_messages_are_complete_when_a_test_says_so(world: al.SimulatedWorld, cupy: Any) -> None:
    def body(comm: Communicator) -> list[float]:
        over = StagedCommunicator(comm, streams_of(on_device([0])))
        buffer = on_device([7, 8] if comm.rank else [0, 0])
        if comm.rank:
            comm.Barrier()
            request = over.Isend(buffer, 0, 3)
        else:
            request = over.Irecv(buffer, 1, 3)
            assert not request.Get_status()
            assert request.test() == (False, None)
            comm.Barrier()
        assert request
        while not request.Test():
            pass
        assert (bool(request), request.Get_status(), request.Test()) == (False, True, True)
        return read(buffer)

    assert on_ranks(world, 2, body) == ([7, 8], [7, 8])


def test_pinned_memory_of_a_message_is_given_back_once(world: al.SimulatedWorld, cupy: Any) -> None:
    def body(comm: Communicator) -> None:
        over = StagedCommunicator(comm, streams_of(on_device([0])))
        other = 1 - comm.rank
        sent, received = [on_device([k]) for k in range(3)], [on_device([-1]) for _ in range(3)]
        requests = [over.Irecv(each, other, tag) for tag, each in enumerate(received)]
        requests += [over.Isend(each, other, tag) for tag, each in enumerate(sent)]
        requests[4].Wait()
        MPI.Request.Waitall(requests[1:3])
        for _ in range(2):
            MPI.Request.Waitall(requests)
        assert not any(requests)
        assert [read(each) for each in received] == [[0], [1], [2]]
        pieces = [over.pool.take(1) for _ in range(9)]
        assert len({piece.ctypes.data for piece in pieces}) == 9

    on_ranks(world, 2, body)
