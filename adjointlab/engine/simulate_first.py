"""A hang under MPI, tried again with simulated ranks: there it costs milliseconds where MPI costs its whole patience.

So it is made smaller there, by the leader alone while the other processes wait, and the smallest case is then seen once more
under MPI. Where simulation does not show it, it is made smaller under MPI.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from adjointlab.checks.verdict import Verdict
from adjointlab.engine.case import Case
from adjointlab.engine.run_case import body
from adjointlab.engine.subject import Subject
from adjointlab.worlds.simulated.world import SimulatedWorld
from adjointlab.worlds.watchdog import Watchdog
from adjointlab.worlds.world import Run

__all__ = ["SimulateFirst", "is_hang", "simulate_first"]

_HANGS: Final = frozenset({"deadlock", "livelock", "blocked", "mismatched collective"})
_SCHEDULES: Final = 4

SimulateFirst = Callable[[Case], Iterator[tuple[Case, Run]]]


def is_hang(verdict: Verdict) -> bool:
    """Whether ranks waited in vain; not so where one was merely busy, which a simulation would be as well."""
    return verdict.kind in _HANGS and not any("was still at work" in text for _, text in verdict.lines)


def simulate_first(subject: Subject, watchdog: Watchdog) -> SimulateFirst:
    """What makes the runs of a case in simulation: in turn under its own schedule and under a few others.

    What buffers a message, and for how long, is a choice there, on which a hang may depend.
    """
    world = SimulatedWorld(watchdog=watchdog)

    def runs(case: Case) -> Iterator[tuple[Case, Run]]:
        for number in range(_SCHEDULES):
            under = replace(case, schedule=case.schedule + number)
            yield under, world.run(body(subject), under, under.ranks, seed=under.schedule)

    return runs
