"""Threads that user code starts: they may communicate for their rank while it does not, and are named where both do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from adjointlab.worlds.run import FindingKind, Run
from adjointlab.worlds.simulated.scheduler import IN_ANOTHER_THREAD
from adjointlab.worlds.simulated.world import SimulatedWorld
from adjointlab.worlds.world import RankContext

pytestmark = [
    pytest.mark.mpi_skip,
    # What the thread is refused is raised in it too, and shown by pytest.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
]


def run(body: Callable[[Any], Any], ranks: int, seed: int) -> Run:
    return SimulatedWorld(ranks).run(lambda context, _: body(context.comm), ranks=ranks, seed=seed)


def sent_in_a_thread(comm: Any, *, before: float = 0.0) -> float:
    """Send to the next rank in a thread, and receive from the one before."""
    received = np.empty(1)

    def send() -> None:
        time.sleep(before)
        comm.Send(np.full(1, float(comm.rank)), (comm.rank + 1) % comm.size)

    thread = threading.Thread(target=send)
    thread.start()
    comm.Recv(received, (comm.rank - 1) % comm.size)
    thread.join()
    return float(received[0])


@pytest.mark.parametrize("before", [0.0, 0.05])
@pytest.mark.parametrize("seed", range(4))
def test_a_thread_that_communicates_while_its_rank_waits_is_named_and_no_deadlock(
    before: float, seed: int
) -> None:
    ended = run(lambda comm: sent_in_a_thread(comm, before=before), 1, seed)
    # Without a delay the thread may be through before its rank waits.
    assert IN_ANOTHER_THREAD in str(ended) or (not before and ended.completed)
    assert not {FindingKind.DEADLOCK, FindingKind.LIVELOCK} & {finding.kind for finding in ended.findings}


@pytest.mark.parametrize("seed", range(4))
def test_a_thread_that_communicates_while_its_rank_does_not_is_the_rank(seed: int) -> None:
    def body(comm: Any) -> list[int]:
        found: list[int] = []
        thread = threading.Thread(target=lambda: found.append(comm.allreduce(1)))
        thread.start()
        thread.join()
        return found

    assert run(body, 3, seed).values == ([3],) * 3


def test_a_deadlock_beside_a_thread_that_does_not_communicate_is_one() -> None:
    ends = threading.Event()

    def body(context: RankContext, _: None) -> None:
        threading.Thread(target=ends.wait, daemon=True).start()
        context.comm.recv(source=context.rank)

    try:
        (finding,) = SimulatedWorld(2).run(body).findings
        assert finding.kind == FindingKind.DEADLOCK
    finally:
        ends.set()


def test_runs_of_several_threads_follow_one_another() -> None:
    """As in a notebook, or where tests run in threads: two at once would share what a process has once."""
    inside: list[int] = []
    most: list[int] = []
    other_has_begun = threading.Event()

    def body(comm: Any) -> None:
        inside.append(comm.rank)
        most.append(len(inside))
        if most[1:]:
            other_has_begun.set()
        other_has_begun.wait(0.5)
        inside.pop()

    threads = [threading.Thread(target=run, args=(body, 1, 0)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1, 1]


@pytest.mark.parametrize("imports_mpi4py", [False, True])
def test_a_rank_may_run_another_world_meanwhile(imports_mpi4py: bool) -> None:
    if imports_mpi4py:
        pytest.importorskip("mpi4py.MPI")

    def body(comm: Any) -> object:
        inner = SimulatedWorld(2)
        led = inner.lead(
            lambda context, _: context.comm.allgather(context.rank), lambda run_on: run_on(None, 2)
        )
        return comm.allreduce(1), led.values[0]

    found = run(body, 2, 0)
    assert found.values == ((2, [0, 1]),) * 2, found.outcomes
