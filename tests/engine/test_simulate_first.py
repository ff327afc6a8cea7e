"""A hang is looked for under the case's own schedule and three others, up to the first of the wanted kind."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from adjointlab.checks.context import InputSetting
from adjointlab.checks.verdict import coherent, unjudged
from adjointlab.engine import run_case, simulate_first
from adjointlab.engine.case import Case
from adjointlab.engine.run_case import Judgement
from adjointlab.engine.simulate_first import HangSimulator
from adjointlab.worlds.run import Run
from adjointlab.worlds.watchdog import Watchdog
from tests.samples import right

pytestmark = pytest.mark.mpi_skip

CASE = Case("RingShift", "adjoint", 3, {}, InputSetting(4), 5)
RIGHT = Judgement(coherent(), None)
RAISED = Judgement(unjudged("raised", kind="deadlock"), None)
DEADLOCK, LIVELOCK = (Judgement(unjudged(kind, is_hang=True), None) for kind in ("deadlock", "livelock"))


@pytest.mark.parametrize(
    ("answers", "kind", "runs"),
    [
        ([RIGHT, RIGHT, None, RIGHT], "", 4),
        ([RIGHT, RIGHT, RIGHT, None], "", 4),
        ([RAISED, RAISED, RAISED, RAISED], "deadlock", 4),
        ([DEADLOCK], "", 1),
        ([RIGHT, LIVELOCK], "", 2),
        ([LIVELOCK, RIGHT, None, DEADLOCK], "deadlock", 4),
        ([LIVELOCK, DEADLOCK], "deadlock", 2),
        ([LIVELOCK, DEADLOCK], "livelock", 1),
        ([DEADLOCK, LIVELOCK], "livelock", 2),
        ([DEADLOCK, DEADLOCK, DEADLOCK, LIVELOCK], "another", 4),
    ],
)
def test_a_case_is_run_under_four_schedules_up_to_a_hang_of_the_kind(
    answers: list[Judgement | None], kind: str, runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[Any] = []

    def run(body: Any, case: Case, ranks: int, *, seed: int, schedule: object) -> Run:
        assert schedule is None
        ran.append((case, ranks, seed))
        return Run((), decisions=str(seed))

    def judgement_of(case: Case, run: Run) -> Judgement | None:
        assert run.decisions == str(case.schedule)
        return answers[len(ran) - 1]

    watched: list[Watchdog] = []
    closed: list[int] = []

    def world(watchdog: Watchdog) -> Any:
        watched.append(watchdog)
        return SimpleNamespace(run=run, close=lambda: closed.append(len(ran)))

    watchdog = Watchdog()
    monkeypatch.setattr(simulate_first, "SimulatedWorld", world)
    monkeypatch.setattr(run_case, "judgement_of", judgement_of)
    assert HangSimulator(right, watchdog).judged(CASE, kind) is answers[runs - 1]
    # The simulation is watched as the world is, and ends with the last run.
    assert (watched, closed) == ([watchdog], [runs])
    under = [Case("RingShift", "adjoint", 3, {}, InputSetting(4), number) for number in (5, 6, 7, 8)]
    assert ran == [(case, 3, case.schedule) for case in under[:runs]]
