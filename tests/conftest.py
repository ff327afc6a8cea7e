from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from adjointlab.checks.check import checks_of
from adjointlab.engine.search import Budget, investigate
from adjointlab.engine.subject import Subject
from adjointlab.worlds.world import World


@pytest.fixture(scope="session")
def alarms(pytestconfig: pytest.Config) -> Callable[[World, Subject, Budget], dict[str, str]]:
    """``alarms(world, subject, budget)``: the verdicts of all checks but the coherent ones; none for a right subject.

    It draws the cases of the budget, or as few as ``--adjointlab-cases`` asks for.
    """
    most = int(pytestconfig.getoption("adjointlab_cases") or Budget().cases)

    def run(world: World, subject: Subject, budget: Budget) -> dict[str, str]:
        smaller = replace(budget, cases=min(budget.cases, most))
        verdicts = {
            check: investigate(world, subject, check, smaller).verdict for check in checks_of(subject)
        }
        return {check: str(verdict) for check, verdict in verdicts.items() if not verdict.is_coherent}

    return run
