"""Calls by NCCL move and combine what those of MPI do, element by element, on devices that a stand-in plays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import adjointlab as al
from adjointlab.core import arrays
from adjointlab.core.arrays.streams import streams_of
from adjointlab.core.transport import nccl as of_devices
from adjointlab.core.transport.nccl import NcclCommunicator
from adjointlab.devices.transport import RankEvidence
from adjointlab.MPI import ANY_SOURCE, PROC_NULL, Op
from adjointlab.typing import Communicator
from tests.gpu.stand_in.nccl import Nccl, Ranks
from tests.outcomes import values_of

RANKS = 3
COUNTS, STARTS = [0, 1, 2], [0, 4, 6]
NCCL = Nccl()


@pytest.fixture(autouse=True)
def nccl(monkeypatch: pytest.MonkeyPatch, cupy: Any) -> Nccl:
    monkeypatch.setattr(of_devices, "_nccl", lambda: NCCL)
    return NCCL


def on_ranks(world: al.SimulatedWorld, body: Callable[[Communicator], Any], ranks: int = RANKS) -> Any:
    return values_of(world.run(lambda context, _: body(context.comm), None, ranks))


def on_device(values: Any) -> Any:
    host = np.asarray(values)
    return arrays.from_numpy(host, host.dtype.name, "cupy")


def by_nccl(comm: Communicator) -> NcclCommunicator:
    return NcclCommunicator(comm, Ranks(comm, NCCL), streams_of(on_device(np.zeros(1))))


def drawn(comm: Communicator, dtype: str) -> Any:
    values = np.arange(1.0, 4) + 10 * comm.rank
    return (values * (1 + 2j) if np.dtype(dtype).kind == "c" else values).astype(dtype)


def result_of(call: str, over: Any, place: Callable[[Any], Any], own: Any, op: Op) -> Any:
    sent, wide, into = place(own), place(np.zeros(9, own.dtype)), place(np.zeros(3, own.dtype))
    match call:
        case "Bcast":
            over.Bcast(sent, root=1)
            return sent
        case "Reduce":
            over.Reduce(sent, into if over.rank == 1 else None, op, root=1)
        case "Allreduce":
            over.Allreduce(sent, into, op)
        case "Allgather":
            over.Allgather(sent, wide)
            return wide
        case "Allgatherv":
            over.Allgatherv(sent[: over.rank], [wide, (COUNTS, STARTS)])
            return wide
        case "Reduce_scatter":
            into = place(np.zeros(over.rank, own.dtype))
            over.Reduce_scatter(sent, into, COUNTS, op)
    return into


COLLECTIVES = ["Bcast", "Reduce", "Allreduce", "Allgather", "Allgatherv", "Reduce_scatter"]


@pytest.mark.parametrize("dtype", ["float64", "float32", "int64", "int32", "complex128", "complex64"])
def test_collectives_give_what_they_give_on_the_host(world: al.SimulatedWorld, dtype: str) -> None:
    def body(comm: Communicator) -> None:
        own, over = drawn(comm, dtype), by_nccl(comm)
        operations = [Op.SUM] if np.dtype(dtype).kind == "c" else [Op.SUM, Op.PROD, Op.MAX, Op.MIN]
        for call in COLLECTIVES:
            for op in operations:
                expected = result_of(call, comm, np.array, own, op)
                assert np.array_equal(arrays.to_numpy(result_of(call, over, on_device, own, op)), expected), (
                    call,
                    op,
                )

    on_ranks(world, body)


@pytest.mark.parametrize("call", ["Reduce", "Allreduce", "Reduce_scatter"])
@pytest.mark.parametrize(
    ("op", "dtype", "why"),
    [
        (Op.LAND, "float64", "op: NCCL has no .*LAND.*, but SUM, PROD, MAX, MIN"),
        (Op.PROD, "complex128", "op: .*PROD.* of complex128: NCCL has only sums of complex numbers"),
        (Op.MAX, "complex64", "op: .*MAX.* of complex64: NCCL has only sums of complex numbers"),
    ],
)
def test_an_operation_that_nccl_does_not_have_is_refused(
    world: al.SimulatedWorld, call: str, op: Op, dtype: str, why: str
) -> None:
    def body(comm: Communicator) -> None:
        with pytest.raises(ValueError, match=why):
            result_of(call, by_nccl(comm), on_device, drawn(comm, dtype), op)

    on_ranks(world, body)


@pytest.mark.parametrize("is_tested", [False, True])
def test_messages_are_started_together_when_one_is_waited_for_or_tested(
    world: al.SimulatedWorld, is_tested: bool
) -> None:
    def body(comm: Communicator) -> None:
        over, before, after = by_nccl(comm), (comm.rank - 1) % RANKS, (comm.rank + 1) % RANKS
        sent = [on_device(drawn(comm, "float64") + number) for number in range(2)]
        received = [on_device(np.zeros(3)) for _ in sent]
        requests = [over.Isend(each, after) for each in sent]
        requests += [over.Irecv(each, before) for each in received]
        assert all(requests)
        assert not any(arrays.to_numpy(each).any() for each in received)
        if is_tested:
            assert requests[0].Test()
        else:
            requests[-1].Wait()
        for number, each in enumerate(received):
            expected = np.arange(1.0, 4) + 10 * before + number
            assert np.array_equal(arrays.to_numpy(each), expected)
        assert al.MPI.Request.Waitall(requests)
        assert al.MPI.Request.waitall(requests) == [None] * 4
        assert not any(requests)

    on_ranks(world, body)


@pytest.mark.parametrize("call", COLLECTIVES)
def test_messages_before_a_collective_are_started_before_it(world: al.SimulatedWorld, call: str) -> None:
    def body(comm: Communicator) -> None:
        over, own = by_nccl(comm), drawn(comm, "float64")
        received = on_device(np.zeros(3))
        over.Isend(on_device(own), (comm.rank + 1) % RANKS)
        over.Irecv(received, (comm.rank - 1) % RANKS)
        result_of(call, over, on_device, own, Op.SUM)
        expected = np.arange(1.0, 4) + 10 * ((comm.rank - 1) % RANKS)
        assert np.array_equal(arrays.to_numpy(received), expected)

    on_ranks(world, body)


@pytest.mark.parametrize("source", [ANY_SOURCE, PROC_NULL, -1])
def test_a_receive_from_any_rank_or_none_is_refused(world: al.SimulatedWorld, source: int) -> None:
    def body(comm: Communicator) -> None:
        told = f"source: {source} is not a rank, and NCCL receives only from a"
        with pytest.raises(ValueError, match=told):
            by_nccl(comm).Irecv(on_device(np.zeros(1)), source)
        with pytest.raises(ValueError, match="source: ANY_SOURCE is not a rank"):
            by_nccl(comm).Irecv(on_device(np.zeros(1)))

    on_ranks(world, body, ranks=1)


def test_ranks_meet_by_the_one_number_that_the_first_has_made(
    world: al.SimulatedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = iter((77, 78, 79))
    monkeypatch.setattr(NCCL, "get_unique_id", lambda: next(numbers))
    made = on_ranks(world, lambda comm: of_devices.ranks_of(comm))

    assert made == tuple((RANKS, 77, rank) for rank in range(RANKS))
    assert next(numbers) == 78, "one rank alone makes a number"


@pytest.mark.parametrize("cuda_aware", [False, True])
def test_the_evidence_for_a_transport_names_the_device_and_the_version(
    cuda_aware: bool, nccl: Nccl, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = of_devices.own_evidence(cuda_aware)
    assert found.device.endswith(" 0000:00:00.0")
    assert (found.cuda_aware, found.nccl) == (cuda_aware, "22703")

    monkeypatch.setattr(Nccl, "available", False)
    assert of_devices.own_evidence(cuda_aware).nccl == ""


def test_without_the_module_there_is_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Any:
        raise ImportError("cupy.cuda.nccl")

    monkeypatch.setattr(of_devices, "_nccl", missing)
    assert of_devices.own_evidence(True).nccl == ""


@pytest.mark.parametrize("cuda_aware", [False, True])
@pytest.mark.parametrize(("installed", "device"), [({"torch-cuda"}, "a device"), (set(), "")])
def test_without_cupy_a_rank_has_a_device_of_torchs_or_none(
    installed: set[str], device: str, cuda_aware: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrays, "installed", installed.__contains__)
    assert of_devices.own_evidence(cuda_aware) == RankEvidence(device, cuda_aware)


def test_the_operations_that_nccl_has_are_named(world: al.SimulatedWorld) -> None:
    def body(comm: Communicator) -> None:
        over, real, complex_ = by_nccl(comm), on_device(np.zeros(1)), on_device(np.zeros(1, complex))
        for call in (over.Allreduce, over.Reduce):
            with pytest.raises(
                ValueError, match=r"^op: NCCL has no <Op.BOR: 'BOR'>, but SUM, PROD, MAX, MIN$"
            ):
                call(real, real, Op.BOR)
            with pytest.raises(
                ValueError, match=r"^op: .* of complex128: NCCL has only sums of complex numbers$"
            ):
                call(complex_, complex_, Op.PROD)

    on_ranks(world, body, ranks=1)
