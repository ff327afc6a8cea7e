"""Each mode of sending and each way of receiving delivers; those that wait for the other side do so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from adjointlab import MPI
from adjointlab.worlds.simulated.world import SimulatedWorld
from adjointlab.worlds.world import RankContext

WORLD = SimulatedWorld(2)
SEEDS = range(4)


def values(body: Any, seed: int = 0) -> Any:
    run = WORLD.run(lambda context, _: body(context.comm), ranks=2, seed=seed)
    assert run.completed, (run.findings, run.outcomes)
    return run.values


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "name", ["Send", "Ssend", "Bsend", "Isend", "Issend", "send", "ssend", "bsend", "isend", "issend"]
)
def test_a_message_of_any_mode_arrives(name: str, seed: int) -> None:
    def body(comm: Any) -> Any:
        if comm.rank == 0:
            content = np.array([4.0, 5.0])
            request = getattr(comm, name)(content if name[0].isupper() else "text", 1, 3)
            if request is not None:
                request.wait()
            return None
        if name[0].islower():
            return comm.recv(source=0, tag=3)
        buffer = np.zeros(2)
        comm.Recv(buffer, 0, 3)
        return buffer.tolist()

    assert values(body, seed)[1] == ([4.0, 5.0] if name[0].isupper() else "text")


@pytest.mark.parametrize("name", ["Ssend", "ssend", "Issend", "issend"])
def test_a_synchronous_send_waits_for_its_receive_and_a_buffered_one_never(name: str) -> None:
    """Both ranks send before they receive: a deadlock where sends wait."""

    def body(comm: Any, name: str) -> Any:
        content = np.array([comm.rank]) if name[0].isupper() else comm.rank
        request = getattr(comm, name)(content, 1 - comm.rank)
        if request is not None:
            request.wait()
        if name[0].islower():
            return comm.recv()
        buffer = np.zeros(1, int)
        comm.Recv(buffer)
        return int(buffer[0])

    for seed in SEEDS:
        run = WORLD.run(lambda context, _: body(context.comm, name), ranks=2, seed=seed)
        assert [finding.kind for finding in run.findings] == ["deadlock"]
    buffered = "Bsend" if name[0].isupper() else "bsend"
    for seed in range(20):
        assert values(lambda comm: body(comm, buffered), seed) == (1, 0)


@pytest.mark.parametrize("name", ["Recv", "Irecv", "recv", "irecv"])
def test_a_matched_message_is_received_in_any_way(name: str) -> None:
    def body(comm: Any) -> Any:
        if comm.rank == 0:
            if name[0].isupper():
                comm.Send(np.array([7.0]), 1, 2)
            else:
                comm.send(7.0, 1, 2)
            return None
        status, buffer = MPI.Status(), np.zeros(1)
        message = comm.Mprobe(0, 2, status)
        got = getattr(message, name)(*([buffer] if name[0].isupper() else []))
        if name in ("Irecv", "irecv"):
            got = got.wait()
        return status.Get_tag(), float(buffer[0]) if name[0].isupper() else got

    assert values(body)[1] == (2, 7.0)


def test_a_message_from_nobody_is_matched_and_received_at_once() -> None:
    def body(comm: Any) -> Any:
        found = []
        for probe in (comm.Mprobe, comm.Improbe):
            status, buffer = MPI.Status(), np.full(1, 3.0)
            message = probe(MPI.PROC_NULL, status=status)
            message.Recv(buffer)
            found.append((status.Get_source() == MPI.PROC_NULL, message.recv(), buffer[0]))
        found.append(comm.Iprobe(MPI.PROC_NULL))
        return found

    assert values(body) == ([(True, None, 3.0), (True, None, 3.0), True],) * 2


def test_a_request_that_is_freed_is_no_leak_and_cannot_be_waited_for() -> None:
    def body(comm: Any) -> Any:
        if comm.rank == 0:
            request = comm.isend("text", 1)
            request.Free()
            request.Free()
            assert not request
            return request.wait()
        return comm.recv()

    assert values(body) == (None, "text")


def test_each_rank_attaches_and_detaches_a_buffer_of_its_own_and_those_of_a_run_end_with_it() -> None:
    mpi4py = pytest.importorskip("mpi4py.MPI")

    def body(context: RankContext, detaches: bool) -> bool:
        comm, buffer, received = context.comm, bytearray(64), np.empty(1)
        mpi4py.Attach_buffer(buffer)
        with pytest.raises(MPI.Exception, match="attached already"):
            mpi4py.Attach_buffer(buffer)
        comm.Bsend(np.ones(1), (comm.rank + 1) % comm.size)
        comm.Recv(received, (comm.rank - 1) % comm.size)
        if not detaches:
            return True
        is_the_same = mpi4py.Detach_buffer() is buffer
        with pytest.raises(MPI.Exception, match="no buffer"):
            mpi4py.Detach_buffer()
        return is_the_same

    world, before = SimulatedWorld(3), mpi4py.Attach_buffer
    for detaches in (False, True):
        assert world.run(body, detaches).values == (True,) * 3
    assert mpi4py.Attach_buffer is before
