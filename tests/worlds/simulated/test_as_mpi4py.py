"""Simulated ranks do as mpi4py does: programs that are right with it come back, and wrong ones are told."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from adjointlab import MPI
from adjointlab.worlds.run import FindingKind, Run
from adjointlab.worlds.schedule import Schedule
from adjointlab.worlds.simulated.world import SimulatedWorld

pytestmark = pytest.mark.mpi_skip

WORLD = SimulatedWorld(3)
SCHEDULES = (Schedule(), *(Schedule("random", seed) for seed in range(1, 30)))


def run_of(body: Callable[[Any], Any], ranks: int = 2, schedule: Schedule | None = None) -> Run:
    return WORLD.run(lambda context, _: body(context.comm), None, ranks, schedule=schedule)


def of_each(comm: Any, dtype: str) -> tuple[Any, list[int], list[int]]:
    return np.arange(comm.size, dtype=dtype), [1] * comm.size, list(range(comm.size))


MIXED: dict[str, Callable[[Any, Any, Any], Any]] = {
    "Gather": lambda comm, one, all_: comm.Gather(one[:1], all_ if comm.rank == 0 else None),
    "Gatherv": lambda comm, one, all_: comm.Gatherv(
        one[:1], [all_, [1] * comm.size] if comm.rank == 0 else None
    ),
    "Scatter": lambda comm, one, all_: comm.Scatter(one if comm.rank == 0 else None, all_[:1]),
    "Scatterv": lambda comm, one, all_: comm.Scatterv(
        [one, [1] * comm.size] if comm.rank == 0 else None, all_[:1]
    ),
    "Allgather": lambda comm, one, all_: comm.Allgather(one[:1], all_),
    "Allgatherv": lambda comm, one, all_: comm.Allgatherv(one[:1], [all_, [1] * comm.size]),
    "Alltoall": lambda comm, one, all_: comm.Alltoall(one, all_),
    "Alltoallv": lambda comm, one, all_: comm.Alltoallv([one, [1] * comm.size], [all_, [1] * comm.size]),
    "Iallgather": lambda comm, one, all_: comm.Iallgather(one[:1], all_).Wait(),
    "Neighbor_allgather": lambda comm, one, all_: comm.Create_cart((comm.size,), [True]).Neighbor_allgather(
        one[:1], all_[:2]
    ),
}


@pytest.mark.parametrize(
    ("sent", "received"), [("float32", "float64"), ("int64", "float64"), ("float64", "int32")]
)
@pytest.mark.parametrize("name", MIXED)
def test_elements_that_are_received_as_another_type_than_they_are_sent_are_a_finding(
    name: str, sent: str, received: str
) -> None:
    def body(comm: Any) -> None:
        MIXED[name](comm, np.arange(3, dtype=sent), np.zeros(3, received))

    run = run_of(body, ranks=3)
    assert not run.completed
    assert any(sent in each.text and received in each.text for each in run.findings), run.findings


@pytest.mark.parametrize("name", MIXED)
def test_and_of_one_type_they_are_none(name: str) -> None:
    run = run_of(lambda comm: MIXED[name](comm, np.arange(3.0), np.zeros(3)), ranks=3)
    assert run.completed, run


@pytest.mark.parametrize("spec", [MPI.INT, "i", None])
def test_names_of_one_type_are_alike_in_a_reduction(spec: Any) -> None:
    def body(comm: Any) -> int:
        x, y = np.ones(1, "int32"), np.zeros(1, "int32")
        comm.Allreduce(x if spec is None else [x, spec], y)
        return int(y[0])

    run = run_of(body)
    assert run.completed, run
    assert run.values == (2, 2) or list(run.values) == [2, 2]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_what_a_probe_or_a_status_has_said_stays_true(schedule: Schedule) -> None:
    def body(comm: Any) -> None:
        if comm.rank == 0:
            comm.Send(np.ones(1), 1)
            comm.Send(np.ones(1), 1)
            return
        comm.Probe(0)
        message = comm.Improbe(0)
        assert message is not None
        message.Recv(np.zeros(1))
        request = comm.Irecv(np.zeros(1), 0)
        while not request.Get_status():
            pass
        assert request.Test()

    run = run_of(body, schedule=schedule)
    assert run.completed, run


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_so_it_does_of_any_of_several_messages_and_requests(schedule: Schedule) -> None:
    def body(comm: Any) -> None:
        if comm.rank:
            comm.Send(np.ones(1), 0)
            comm.Send(np.ones(1), 0)
            return
        comm.Probe()
        assert comm.Iprobe()
        message = comm.Improbe()
        assert message is not None
        status = MPI.Status()
        message.Recv(np.zeros(1), status)
        comm.Recv(np.zeros(1), source=3 - status.Get_source())
        first, second = comm.Irecv(np.zeros(1), 1), comm.Irecv(np.zeros(1), 2)
        while not second.Get_status():
            pass
        assert MPI.Request.Testany([first, second])[1]
        MPI.Request.Waitall([first, second])

    run = run_of(body, ranks=3, schedule=schedule)
    assert run.completed, run


def test_a_message_that_was_matched_and_not_received_is_left_over_under_every_schedule() -> None:
    def body(comm: Any) -> None:
        if comm.rank == 0:
            comm.Send(np.ones(1), 1)
        else:
            comm.Mprobe(0)

    for schedule in SCHEDULES[:8]:
        run = run_of(body, schedule=schedule)
        assert not run.completed
    assert run_of(body).findings[0].kind in (FindingKind.MESSAGE_LEFT_OVER, FindingKind.DEADLOCK)


def test_a_matched_message_is_received_once() -> None:
    def body(comm: Any) -> None:
        comm.Bsend(np.ones(1), comm.rank)
        message = comm.Mprobe()
        message.Recv(np.zeros(1))
        with pytest.raises(MPI.Exception, match="has been received"):
            message.Recv(np.zeros(1))

    assert run_of(body).completed


def test_an_object_may_be_sent_as_the_bytes_of_its_pickle() -> None:
    def body(comm: Any) -> Any:
        if comm.rank == 0:
            comm.Send([pickle.dumps({"a": 1}), MPI.BYTE], 1)
            return {"a": 1}
        return comm.recv(source=0)

    run = run_of(body)
    assert run.completed, run
    assert list(run.values) == [{"a": 1}] * 2


def test_a_communicator_that_has_been_freed_is_null_and_false() -> None:
    def body(comm: Any) -> None:
        own = comm.Dup()
        assert own
        assert own != MPI.COMM_NULL
        own.Free()
        assert not own
        assert own == MPI.COMM_NULL
        assert own == MPI.COMM_NULL

    assert run_of(body).completed


class Owner:
    """Frees its communicator when it is collected, on whichever rank's thread that is."""

    def __init__(self, comm: Any) -> None:
        self.comm, self.circle = comm.Dup(), self

    def __del__(self) -> None:
        self.comm.Free()


def test_a_communicator_may_be_freed_by_a_collection_on_another_ranks_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def body(comm: Any) -> int:
        Owner(comm)
        comm.Barrier()
        if comm.rank == 0:
            gc.collect()
        comm.Barrier()
        return len(comm.unfreed())

    raised: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", raised.append)
    gc.collect()
    gc.disable()
    try:
        run = run_of(body)
    finally:
        gc.enable()
    assert run.completed, run
    assert list(run.values) == [0, 0]
    assert not raised
