"""The answers of a request, and of several at once, in every form: before there is a message, with one, and once they are complete."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from adjointlab import MPI
from adjointlab.worlds.run import Run
from adjointlab.worlds.schedule import Schedule
from adjointlab.worlds.simulated.world import SimulatedWorld

pytestmark = pytest.mark.mpi_skip

WORLD = SimulatedWorld(2)
NOBODYS = (MPI.ANY_SOURCE, MPI.ANY_TAG, 0, False)


def run(body: Callable[[Any], Any], ranks: int = 1, seed: int = 0) -> Run:
    run = WORLD.run(lambda context, _: body(context.comm), ranks=ranks, seed=seed)
    assert run.completed, (run.findings, run.outcomes)
    return run


def told(status: MPI.Status) -> tuple[int, int, int, bool]:
    return status.source, status.tag, status.nbytes, status.cancelled


def again(test: Callable[[], Any], is_true: Callable[[Any], bool] = bool) -> Any:
    while not is_true(answer := test()):
        pass
    return answer


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("complete", "answer"),
    [
        (lambda request, status: request.Wait(status), True),
        (lambda request, status: request.wait(status), "text"),
        (lambda request, status: again(lambda: request.Test(status)), True),
        (lambda request, status: again(lambda: request.test(status), lambda found: found[0]), (True, "text")),
        (lambda request, status: MPI.Request.Waitall([request], [status]), True),
        (lambda request, status: MPI.Request.waitall([request], [status]), ["text"]),
        (lambda request, status: MPI.Request.waitany([request], status), (0, "text")),
    ],
)
def test_a_request_is_active_until_it_is_complete_and_then_answers_at_once_with_an_empty_status(
    complete: Callable[..., Any], answer: Any, seed: int
) -> None:
    def body(comm: Any) -> None:
        request, status = comm.irecv(source=0, tag=4), MPI.Status()
        assert request
        assert request.Get_status(status) is False
        assert request.Test(status) is False
        assert request.test(status) == (False, None)
        assert told(status) == NOBODYS
        comm.bsend("text", 0, 4)
        assert again(lambda: request.Get_status(status)) is True
        assert request
        source, tag, nbytes, is_cancelled = told(status)
        assert (source, tag, nbytes > 4, is_cancelled) == (0, 4, True, False)
        own = MPI.Status()
        assert complete(request, own) == answer
        assert told(own) == told(status)
        assert not request
        for inactive, expected in (
            (request.Wait, True),
            (request.wait, None),
            (request.Test, True),
            (request.test, (True, None)),
            (request.Get_status, True),
        ):
            again_told = MPI.Status()
            again_told.source, again_told.tag, again_told.nbytes = 7, 8, 9
            assert inactive(again_told) == expected
            assert told(again_told) == NOBODYS
        request.Cancel(), request.Free()

    run(body, seed=seed)


def test_the_status_of_a_send_is_empty() -> None:
    def body(comm: Any) -> None:
        request, status = comm.Isend(np.ones(2), 0, 3), MPI.Status()
        status.source, status.tag, status.nbytes = 7, 8, 9
        assert request.Get_status(status)
        assert told(status) == NOBODYS
        comm.Recv(np.ones(2))
        assert request.Wait()

    run(body)


def test_a_receive_without_a_message_is_cancelled_and_says_so_and_no_other_request_is() -> None:
    def body(comm: Any) -> None:
        sent = comm.isend("text", 0, 1)
        received, empty = comm.irecv(source=0, tag=1), comm.irecv(source=0, tag=2)
        statuses = [MPI.Status() for _ in range(3)]
        for request in (sent, received, empty, empty):
            request.Cancel()
        assert empty.Get_status()
        assert MPI.Request.waitall([sent, received, empty], statuses) == [None, "text", None]
        assert [status.cancelled for status in statuses] == [False, False, True]

    run(body)


def test_of_several_requests_those_that_are_ready_are_told_by_their_numbers() -> None:
    def body(comm: Any) -> None:
        requests = [comm.irecv(source=0, tag=tag) for tag in range(5)]
        assert MPI.Request.Testany(requests) == (MPI.UNDEFINED, False)
        assert MPI.Request.Testsome(requests) == []
        assert MPI.Request.testall(requests) == (False, None)
        for tag in (0, 4, 2):
            comm.bsend(f"number {tag}", 0, tag)
        assert requests[0].wait() == "number 0"
        status = MPI.Status()
        assert MPI.Request.testany(requests, status) == (2, True, "number 2")
        assert status.tag == 2
        assert MPI.Request.waitany(requests, status) == (4, "number 4")
        assert status.tag == 4
        for tag in (3, 1):
            comm.bsend(f"number {tag}", 0, tag)
        assert MPI.Request.waitsome(requests) == ([1, 3], ["number 1", "number 3"])
        assert MPI.Request.testall(requests) == (True, [None] * 5)
        assert MPI.Request.waitany(requests) == (MPI.UNDEFINED, None)

    run(body)


def test_which_of_several_requests_is_told_is_free_and_noted_beside_its_call() -> None:
    def body(comm: Any) -> tuple[int, int]:
        requests = [comm.irecv(source=0, tag=tag) for tag in range(3)]
        for tag in range(3):
            comm.bsend("text", 0, tag)
        first = MPI.Request.Waitany(requests[:2])
        second = MPI.Request.Waitany(requests[1:])
        MPI.Request.Waitall(requests)
        return first, second

    chosen = {}
    for seed in range(12):
        found = run(body, seed=seed)
        (chosen[seed],) = found.values
        for matched, number in zip(found.matched, chosen[seed], strict=True):
            assert (matched.rank, matched.what) == (0, f"is told of request {number}")
            assert str(matched.call) == "Waitany(requests=2)"
    assert chosen[0] == (0, 0)
    assert len(set(chosen.values())) > 2


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("test", ["Test", "Get_status", "Testall", "Testany"])
def test_a_test_of_a_ready_request_fails_once_at_most_and_never_for_a_message_from_nobody(
    test: str, count: int
) -> None:
    def tested(*requests: Any) -> bool:
        if test in ("Test", "Get_status"):
            return all(getattr(request, test)() for request in requests)
        answer = getattr(MPI.Request, test)(requests)
        return bool(answer if test == "Testall" else answer[1])

    def body(comm: Any) -> tuple[list[bool], list[bool]]:
        received = [comm.Irecv(np.ones(1), 0) for _ in range(count)]
        for _ in received:
            comm.Bsend(np.ones(1), 0)
        answers = [tested(comm.Isend(np.ones(1), MPI.PROC_NULL)), tested(comm.Irecv(None, MPI.PROC_NULL))]
        found = [tested(*received) for _ in range(4)]
        MPI.Request.Waitall(received)
        return answers, found

    def under(schedule: Schedule) -> Any:
        return WORLD.run(lambda context, _: body(context.comm), ranks=1, schedule=schedule).values[0]

    assert under(Schedule("round-robin")) == ([True, True], [True] * 4)
    found = [under(Schedule("random", seed)) for seed in range(1, 20)]
    assert all(of_nobody == [True, True] for of_nobody, _ in found)
    failures = {answers.count(False) for _, answers in found}
    most = 1 if test == "Testall" else count
    assert {0, 1} <= failures <= set(range(most + 1))


@pytest.mark.parametrize(
    "complete",
    [
        lambda request, status: request.Wait(status),
        lambda request, status: request.Test(status),
        lambda request, status: request.Get_status(status),
        lambda request, status: MPI.Request.Waitany([request], status) == MPI.UNDEFINED,
        lambda request, status: MPI.Request.Testany([request], status) == (MPI.UNDEFINED, True),
    ],
)
def test_the_status_of_an_inactive_request_tells_of_no_message(
    complete: Callable[[Any, MPI.Status], Any],
) -> None:
    def body(comm: Any) -> tuple[Any, ...]:
        request, status = comm.Recv_init(np.zeros(1), 0), MPI.Status()
        request.Start()
        comm.Send(np.ones(1), 0, 7)
        request.Wait(status)
        before = told(status)
        assert complete(request, status)
        return before, told(status)

    assert run(body).values == (((0, 7, 8, False), NOBODYS),)


@pytest.mark.parametrize(
    ("name", "answer"), [("Wait", True), ("wait", "text"), ("Test", True), ("test", (True, "text"))]
)
def test_a_method_of_mpi4pys_class_completes_the_request_that_it_is_given(name: str, answer: Any) -> None:
    mpi4py: Any = pytest.importorskip("mpi4py.MPI")

    def body(comm: Any) -> Any:
        comm.send("text", 0)
        (answered,) = map(getattr(mpi4py.Request, name), [comm.irecv(source=0)])
        return answered

    assert run(body).values == (answer,)


def test_a_method_of_mpi4pys_class_starts_and_ends_a_persistent_request() -> None:
    mpi4py: Any = pytest.importorskip("mpi4py.MPI")

    def body(comm: Any) -> float:
        requests = comm.Recv_init(received := np.zeros(1), 0), comm.Send_init(np.ones(1), 0)
        for step in (mpi4py.Prequest.Start, mpi4py.Request.Wait, mpi4py.Prequest.Free):
            for request in requests:
                step(request)
        return float(received[0])

    assert run(body).values == (1.0,)


def test_a_method_of_mpi4pys_class_is_its_own_for_its_own_requests() -> None:
    mpi4py: Any = pytest.importorskip("mpi4py.MPI")
    assert run(lambda _: mpi4py.Request.Wait(mpi4py.REQUEST_NULL)).values == (True,)


@pytest.mark.parametrize("name", ["Waitall", "waitall", "Testall", "Waitany", "Waitsome"])
def test_requests_are_completed_by_a_class_that_was_imported_by_itself(name: str) -> None:
    pytest.importorskip("mpi4py.MPI")
    from mpi4py.MPI import Request

    def body(comm: Any) -> float:
        requests = [comm.Irecv(received := np.zeros(1), 0), comm.Isend(np.ones(1), 0)]
        while any(requests):
            getattr(Request, name)(requests)
        return float(received[0])

    assert run(body).values == (1.0,)


@pytest.mark.parametrize("name", ["Wait", "wait", "Test"])
def test_a_request_is_completed_by_a_method_of_a_class_that_was_imported_by_itself(name: str) -> None:
    pytest.importorskip("mpi4py.MPI")
    from mpi4py.MPI import Request

    def body(comm: Any) -> float:
        requests = [comm.Irecv(received := np.zeros(1), 0), comm.Isend(np.ones(1), 0)]
        while any(requests):
            for request in requests:
                getattr(Request, name)(request)
        return float(received[0])

    assert run(body).values == (1.0,)
