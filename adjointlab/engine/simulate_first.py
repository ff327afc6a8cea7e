"""A hang under MPI, reproduced with simulated ranks.

Under MPI a hang is detected only when the world's patience ends, after 10 s at first, and that for each candidate of the
shrinker. The simulation detects at once that no rank can go on. So the leader shrinks a hanging case in simulation,
while the other processes wait, and the smallest case runs once more under MPI. A hang that the simulation does not reproduce
is shrunk under MPI.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Final

from msgspec import structs

from adjointlab.engine.case import Case
from adjointlab.engine.case_body import body
from adjointlab.engine.run_case import CaseRunner, Judgement, run_and_judge
from adjointlab.engine.subject import Subject
from adjointlab.worlds.simulated.world import SimulatedWorld
from adjointlab.worlds.watchdog import Watchdog

__all__ = ["HangSimulator"]

_SCHEDULES: Final = 4


@dataclass(frozen=True)
class HangSimulator:
    """Reproduces hanging cases of `subject` with simulated ranks in this process."""

    subject: Subject
    watchdog: Watchdog

    def judged(self, case: Case, kind: str = "") -> Judgement | None:
        """Judge `case` under its own schedule and a few others, up to the first hang (of this `kind`, if one is given).

        A hang may depend on whether and how long a message is buffered, which in simulation the schedule decides. Returns
        the last judgement if none hangs, and `None` if the check does not apply to the case.
        """
        judgement = None
        with closing(SimulatedWorld(watchdog=self.watchdog)) as world:
            run = CaseRunner(partial(world.run, body(self.subject)))
            for offset in range(_SCHEDULES):
                variant = structs.replace(case, schedule=case.schedule + offset)
                _, judgement = run_and_judge(run, variant)
                if (
                    judgement is not None
                    and judgement.verdict.is_hang
                    and kind in ("", judgement.verdict.kind)
                ):
                    break
        return judgement
