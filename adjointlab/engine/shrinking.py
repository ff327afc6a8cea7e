"""The state of shrinking a failing case: the first failure, the judgements of smaller cases, and the deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from adjointlab.checks.check import Spaces
from adjointlab.checks.verdict import Verdict, coherent
from adjointlab.engine.case import Case
from adjointlab.engine.run_case import Judgement
from adjointlab.engine.simulate_first import HangSimulator
from adjointlab.worlds.run import Run

__all__ = ["FirstFailure", "Shrinking"]


class FirstFailure(NamedTuple):
    """The case that failed first, its last run, and the spaces of its operator."""

    case: Case
    run: Run
    spaces: Spaces | None


class Shrinking:
    """Shrinking of the `first` failure of a search, with the given `judgement`, until `deadline`.

    With a `simulator`, cases are judged in simulation, where the first failure was reproduced.
    """

    def __init__(
        self,
        first: FirstFailure,
        judgement: Judgement,
        deadline: float,
        simulator: HangSimulator | None = None,
    ) -> None:
        self.first, self.deadline, self.simulator = first, deadline, simulator
        self.is_smallest = False  # no case that is one step smaller fails in the same way
        self._verdict = judgement.verdict
        self._judgements: dict[bytes, Judgement | None] = {first.case.key(): judgement}

    @property
    def kind(self) -> str:
        """The kind of the failure."""
        return self._verdict.kind

    @property
    def seconds_left(self) -> float:
        return max(0.0, self.deadline - time.monotonic())

    def is_failure(self, verdict: Verdict) -> bool:
        """Return True for a failure of the first one's kind.

        A smaller case that fails for another reason does not explain the first failure, so it counts as passing.
        """
        return not verdict.is_coherent and verdict.fails_like(self._verdict)

    def judged(
        self, case: Case, judge: Callable[[Case], Judgement | None], may_run: Callable[[Case], bool]
    ) -> Judgement | None:
        """Judge a case unless it was judged before; one for which `may_run` is false passes.

        The shrinker reaches the same case in many ways, and at its end Hypothesis runs the smallest case once more. Under MPI each
        of these runs may cost a whole time-out.
        """
        key = case.key()
        if key not in self._judgements:
            if not may_run(case):
                # Hypothesis cannot be stopped so that it returns the smallest case so far. But once every new case
                # passes, its shrinker finds nothing smaller and ends with the smallest one remembered as failing.
                return Judgement(coherent(), None)
            self._judgements[key] = judge(case)
        return self._judgements[key]
