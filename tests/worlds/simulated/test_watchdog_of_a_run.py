"""A rank that is overdue gets an exception once, and its process is ended when it has not come back after the grace period."""

from __future__ import annotations

import itertools
import os
import threading
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from adjointlab.exit_codes import ExitCode
from adjointlab.worlds.run import Dead
from adjointlab.worlds.simulated.scheduler import Scheduler, Task
from adjointlab.worlds.simulated.simulation_watchdog import SimulationWatchdog
from adjointlab.worlds.simulated.world import SimulatedWorld
from adjointlab.worlds.watchdog import Overdue, Watchdog
from adjointlab.worlds.world import RankContext


class Ended(BaseException):
    pass


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    seen: list[Any] = []

    def end(code: int) -> None:
        seen.append(code)
        raise Ended

    monkeypatch.setattr(os, "_exit", end)
    return seen


def test_the_process_is_ended_after_the_grace_period_alone(seen: list[Any]) -> None:
    thread = threading.current_thread()
    running = SimpleNamespace(rank=1, worker=SimpleNamespace(thread=thread))
    scheduler = SimpleNamespace(
        current=running,
        progress=0,
        raise_in=lambda task, kind, outcome: seen.append((task, kind, outcome.kind)),
    )
    stated: Any = SimpleNamespace(
        seconds_in_simulation=8.0,
        grace=Watchdog.grace,
        has_fired=False,
        report_overdue=lambda *told: seen.append(told),
    )
    looked: list[Any] = []
    elapsed = SimpleNamespace(
        total=1.0,
        look=lambda thread, progress: looked.append((thread, progress)),
        exceeded=lambda limit, thread: 0.0,
    )
    watchdog = SimulationWatchdog(stated, scheduler, "the case")  # type: ignore[arg-type]
    watchdog._elapsed = elapsed  # type: ignore[assignment]

    watchdog.look()
    assert not seen
    assert not stated.has_fired
    assert looked == [(thread.native_id, 0)]

    elapsed.exceeded = lambda limit, of: limit if of == thread.ident else 0.0
    watchdog.look()
    (raised,) = seen
    assert raised[0] is running
    assert issubclass(raised[1], Overdue)
    assert "8 s" in str(raised[1]())
    assert stated.has_fired

    for elapsed.total in (1.5, 3.0):  # the grace period is a quarter of the limit
        watchdog.look()
    assert len(seen) == 1

    # What the next rank does is not the time of the one that was overdue.
    scheduler.current = SimpleNamespace(rank=2, worker=SimpleNamespace(thread=thread))
    for elapsed.total in (4.0, 6.0):
        watchdog.look()
    assert len(seen) == 1

    elapsed.total = 6.1
    with pytest.raises(Ended):
        watchdog.look()
    assert seen[1:] == [("rank 2", 8.0, "the case", thread.ident), ExitCode.UNJUDGED]


def test_a_run_whose_rank_has_no_thread_yet_is_not_looked_at(seen: list[Any]) -> None:
    scheduler: Any = SimpleNamespace(current=SimpleNamespace(worker=None), progress=0)
    SimulationWatchdog(Watchdog(1.0), scheduler, None).look()
    assert not seen


def exchanging(context: RankContext, payload: object) -> None:
    for number in range(6):
        context.comm.sendrecv(number, (context.rank + 1) % context.size)
        context.comm.barrier()


@pytest.mark.parametrize("taken", [False, True])
@pytest.mark.parametrize("number", range(0, 18, 3))
def test_an_exception_in_the_middle_of_a_hand_over_leaves_no_rank_behind(
    number: int, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes as rank 1 takes the next rank out of those that can run: just before, or when it is in no list any more."""
    original, calls = Scheduler._next, itertools.count()

    def interrupted(self: Scheduler) -> Task:
        rank = self.current
        following = original(self) if taken or rank.rank != 1 else None
        if rank.rank == 1 and rank.worker is not None and next(calls) == number:
            rank.worker.is_spent, rank.cancelled_as = True, Dead("overdue")
            raise Overdue("did not return within 1 s, at ring.py:7")
        return following or original(self)

    def hangs() -> None:
        pytest.fail("nobody runs any more")

    monkeypatch.setattr(Scheduler, "_next", interrupted)
    monkeypatch.setattr(SimulationWatchdog, "look", lambda self: hangs())
    with closing(SimulatedWorld(3)) as world:
        outcomes = world.run(exchanging, seed=7).outcomes
    assert outcomes[1] == Dead("overdue")
    assert len(outcomes) == 3
