"""The envelopes of messages: statuses, tags and ranks, and the partners of wildcards that a run notes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from adjointlab import MPI
from adjointlab.worlds.local_calls import LARGEST_TAG
from adjointlab.worlds.run import Raised, Run
from adjointlab.worlds.simulated.world import SimulatedWorld

pytestmark = pytest.mark.mpi_skip

WORLD = SimulatedWorld(4)


def run(body: Callable[[Any], Any], ranks: int = 2, seed: int = 0) -> Run:
    result = WORLD.run(lambda context, _: body(context.comm), ranks=ranks, seed=seed)
    assert result.completed, (result.findings, result.outcomes)
    return result


def told(call: Callable[[Any], Any]) -> tuple[int, int, int, bool]:
    """Source, tag and bytes of the status that a call has filled, and if it was cancelled."""
    status = MPI.Status()
    call(status)
    return status.Get_source(), status.Get_tag(), status.Get_count(MPI.BYTE), status.Is_cancelled()


NOTHING = (MPI.ANY_SOURCE, MPI.ANY_TAG, 0, False)
FROM_NOBODY = (MPI.PROC_NULL, MPI.ANY_TAG, 0, False)
SENT = (0, 4, 16, False)

RECEIVED: dict[str, Callable[[Any, Any], Any]] = {
    "Recv": lambda comm, status: comm.Recv(np.ones(3), status=status),
    "Irecv": lambda comm, status: comm.Irecv(np.ones(3)).Wait(status),
    "Sendrecv": lambda comm, status: comm.Sendrecv(
        np.ones(1), MPI.PROC_NULL, recvbuf=np.ones(3), status=status
    ),
    "Sendrecv_replace": lambda comm, status: comm.Sendrecv_replace(np.ones(3), MPI.PROC_NULL, status=status),
    "Mprobe": lambda comm, status: comm.Mprobe(status=status).Recv(np.ones(3)),
    "Mprobe, Recv": lambda comm, status: comm.Mprobe().Recv(np.ones(3), status),
    "Mprobe, Irecv": lambda comm, status: comm.Mprobe().Irecv(np.ones(3)).Wait(status),
    "Improbe": lambda comm, status: comm.Improbe(status=status).Recv(np.ones(3)),
    "Probe": lambda comm, status: (comm.Probe(status=status), comm.Recv(np.ones(3))),
    "Iprobe": lambda comm, status: (comm.Iprobe(status=status), comm.Recv(np.ones(3))),
    "Recv_init": lambda comm, status: _started(comm.Recv_init(np.ones(3))).Wait(status),
}


def _started(request: Any) -> Any:
    request.Start()
    return request


@pytest.mark.parametrize("name", RECEIVED)
def test_a_status_tells_of_the_message_that_was_received(name: str) -> None:
    def body(comm: Any) -> Any:
        if comm.rank == 0:
            return comm.Send(np.ones(2), 1, 4)
        return told(lambda status: RECEIVED[name](comm, status))

    result = run(body)
    assert result.values[1] == SENT
    assert result.communicating == {0, 1}


@pytest.mark.parametrize("name", ["Probe", "Iprobe", "Mprobe", "Improbe", "Recv", "Irecv", "recv", "irecv"])
def test_a_run_notes_whom_a_wildcard_matched_and_says_nothing_of_a_source_that_is_named(name: str) -> None:
    def body(comm: Any, source: int) -> None:
        if comm.rank == 2:
            comm.send(1, 1) if name.islower() else comm.Send(np.ones(1), 1)
        comm.barrier()
        if comm.rank != 1:
            return
        if name in ("recv", "irecv"):
            found = getattr(comm, name)(source=source)
        elif name in ("Recv", "Irecv"):
            found = getattr(comm, name)(np.ones(1), source)
        else:
            found = getattr(comm, name)(source)
            if found is True:
                comm.Recv(np.ones(1), 2)
        if name in ("Irecv", "irecv"):
            found.wait()
        if name in ("Mprobe", "Improbe"):
            found.Recv(np.ones(1))

    (matched,) = run(lambda comm: body(comm, MPI.ANY_SOURCE), 3).matched
    assert (
        re.sub(r" at \S+", "", str(matched))
        == f"rank 1 in {name}(source=ANY_SOURCE, tag=ANY_TAG) receives from rank 2"
    )
    assert run(lambda comm: body(comm, 2), 3).matched == ()


@pytest.mark.parametrize(
    "name", ["Recv", "Irecv", "Probe", "Iprobe", "Mprobe", "Improbe", "Sendrecv_replace"]
)
def test_a_message_from_nobody_is_there_at_once_and_empty(name: str) -> None:
    def body(comm: Any) -> Any:
        arguments = () if "probe" in name.lower() else (np.full(2, 7.0),)
        keywords: dict[str, Any] = {"dest": MPI.PROC_NULL} if name.startswith("Send") else {}
        if name == "Irecv":
            request = comm.Irecv(*arguments, MPI.PROC_NULL)
            assert request.Test()
            request = comm.Irecv(*arguments, MPI.PROC_NULL)
            found = told(request.Wait)
        else:
            found = told(
                lambda status: getattr(comm, name)(
                    *arguments, source=MPI.PROC_NULL, status=status, **keywords
                )
            )
        assert all((each == 7).all() for each in arguments)
        return found

    for seed in range(3):
        result = run(body, seed=seed)
        assert result.values == (FROM_NOBODY,) * 2
        assert result.matched == ()
        assert result.communicating == set()


def test_a_request_tells_of_its_message_as_long_as_it_is_active_and_then_of_nothing() -> None:
    def body(comm: Any) -> Any:
        if comm.rank == 1:
            comm.Barrier()
            comm.Send(np.ones(2), 0, 4)
            return comm.Barrier()
        request, found = comm.Irecv(np.ones(2), 1), []
        assert not request.Get_status()
        comm.Barrier()
        comm.Barrier()
        assert request.Get_status()
        assert request
        found += [told(request.Get_status), told(request.Get_status), told(request.Test)]
        assert not request
        assert request.Test()
        assert request.test() == (True, None)
        found += [told(request.Test), told(request.Get_status), told(request.Wait)]
        return found

    sent = (1, 4, 16, False)
    assert run(body).values[0] == [sent, sent, sent, NOTHING, NOTHING, NOTHING]


def test_a_receive_is_cancelled_unless_it_has_its_message_and_a_send_never() -> None:
    def body(comm: Any) -> Any:
        found = []
        receive = comm.Irecv(np.ones(2), 1 - comm.rank, 9)
        receive.Cancel()
        found.append(told(receive.Wait))
        comm.Send(np.ones(2), 1 - comm.rank, 4)
        comm.Barrier()
        receive, buffer = comm.Irecv(buffer := np.zeros(2), 1 - comm.rank, 4), buffer
        receive.Cancel()
        found.append(told(receive.Wait)[1:])
        send = comm.Issend(np.ones(2), comm.rank)
        send.Cancel()
        assert not send.Test()
        comm.Recv(np.ones(2), comm.rank)
        send.Wait()
        receive.Cancel()  # is complete: nothing happens
        return *found, buffer.tolist()

    for seed in range(3):
        expected = ((MPI.ANY_SOURCE, MPI.ANY_TAG, 0, True), SENT[1:], [1.0, 1.0])
        assert run(body, seed=seed).values == (expected, expected)


def test_the_first_request_of_several_and_the_others_are_told_with_their_places() -> None:
    def body(comm: Any) -> Any:
        if comm.rank:
            for turn in range(1, 4):
                comm.barrier()
                if comm.rank == turn:
                    comm.Send(np.ones(turn), 0, turn)
            return comm.barrier()
        requests = [comm.Irecv(np.ones(3), source) for source in (1, 2, 3)]
        assert MPI.Request.Testany(requests) == (MPI.UNDEFINED, False)
        assert MPI.Request.Testsome(requests) == []
        assert not MPI.Request.Testall(requests)
        for _ in range(4):
            comm.barrier()
        status = MPI.Status()
        first = MPI.Request.Waitany(requests, status)
        rest = MPI.Request.Waitsome(requests)
        return first, status.Get_count(MPI.DOUBLE), rest, MPI.Request.Testany(requests)

    result = run(body, 4)
    assert result.values[0] == (0, 1, [1, 2], (MPI.UNDEFINED, True))
    assert [re.sub(r" at \S+", "", str(each)) for each in result.matched] == [
        "rank 0 in Waitany(requests=3) is told of request 0"
    ]


def refused(call: Callable[[], Any]) -> str:
    with pytest.raises(MPI.Exception) as caught:
        call()
    names = {MPI.ERR_RANK: "rank", MPI.ERR_TAG: "tag", MPI.ERR_ROOT: "root"}
    return f"{names.get(caught.value.Get_error_class())}: {caught.value}"


SENDS = ["Send", "Ssend", "Bsend", "Isend", "Issend", "Send_init", "Ssend_init"]
SENDS_OF_OBJECTS = ["send", "ssend", "bsend", "isend", "issend"]
RECEIVES = ["Recv", "Irecv", "Recv_init"]
PROBES = ["Probe", "Iprobe", "Mprobe", "Improbe"]


@pytest.mark.parametrize("name", [*SENDS, *SENDS_OF_OBJECTS, *RECEIVES, *PROBES])
def test_ranks_and_tags_that_there_are_not_are_refused(name: str) -> None:
    is_send = name in SENDS or name in SENDS_OF_OBJECTS

    def body(comm: Any) -> None:
        given = () if name in PROBES else (np.ones(1),)
        for rank in (-5, 2, 3):
            assert refused(lambda rank=rank: getattr(comm, name)(*given, rank)) == (  # type: ignore[misc]
                f"rank: Invalid rank {rank}: must be nonnegative and less than 2"
            )
        legal = f"from 0 to {LARGEST_TAG}" + ("" if is_send else ", or ANY_TAG")
        for tag in (-5, -2, *([-1] if is_send else []), LARGEST_TAG + 1, LARGEST_TAG + 2):
            assert refused(lambda tag=tag: getattr(comm, name)(*given, 1, tag)) == (  # type: ignore[misc]
                f"tag: Invalid tag {tag}: must be {legal}"
            )
        for arguments in (("1",), (1, "2")):
            with pytest.raises(TypeError, match=r"^an integer is required, not '[12]'$"):
                getattr(comm, name)(*given, *arguments)
        for arguments in ((2**33,), (1, 2**33)):
            with pytest.raises(OverflowError, match="too large for an int of C"):
                getattr(comm, name)(*given, *arguments)
        if is_send:
            assert refused(lambda: getattr(comm, name)(*given, 1, MPI.ANY_TAG)).startswith("tag: Invalid tag")
            if "init" not in name:
                assert refused(lambda: getattr(comm, name)(*given, MPI.ANY_SOURCE)).startswith("rank: ")

    run(body)


@pytest.mark.parametrize("tag", [0, 1, LARGEST_TAG])
def test_the_least_and_the_largest_tag_arrive(tag: int) -> None:
    def body(comm: Any) -> Any:
        comm.send("text", 1 - comm.rank, tag)
        return comm.recv(source=1 - comm.rank, tag=tag)

    assert run(body).values == ("text", "text")


def test_messages_to_oneself_and_calls_on_a_part_of_one_rank_are_no_communication() -> None:
    def body(comm: Any) -> None:
        comm.Isend(np.ones(1), comm.rank).Wait()
        comm.Recv(np.ones(1), comm.rank)
        if comm.rank == 1:
            own = comm.Create_group(comm.group.Incl([1]))
            own.Barrier()
            own.Free()

    assert run(body).communicating == set()


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_function_that_a_rank_replaces_is_the_failure_of_all(ranks: int) -> None:
    original = np.array_equal

    def body(context: Any, _: Any) -> None:
        np.array_equal = lambda *_: True

    world = SimulatedWorld(ranks)
    with world.together():  # which looks for it once in the end, for its own runs alone
        assert world.run(lambda *_: 1).values == (1,) * ranks
    for each in (world, SimulatedWorld(ranks)):
        result = each.run(body)
        assert np.array_equal is original
        assert len(result.outcomes) == ranks
        for outcome in result.outcomes:
            assert isinstance(outcome, Raised)
            assert "numpy.array_equal had been replaced in the run" in outcome.message


@pytest.mark.parametrize(("sender", "receiver"), [(0, 2), (2, 0), (1, 2), (2, 1)])
def test_a_message_in_either_direction_is_communication_of_its_two_ranks(sender: int, receiver: int) -> None:
    def body(comm: Any) -> None:
        if comm.rank == sender:
            comm.Send(np.ones(1), receiver)
        if comm.rank == receiver:
            comm.Recv(np.ones(1), sender)

    assert run(body, 3).communicating == {sender, receiver}
