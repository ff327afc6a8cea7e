"""The search for a planted bug, as the command makes it."""

from __future__ import annotations

from adjointlab.checks.check import checks_of
from adjointlab.engine.search import Budget, SearchResult, investigate
from adjointlab.worlds.world import World
from tests.planted.bug import PlantedBug


def first_failure(world: World, planted: PlantedBug, budget: Budget) -> SearchResult:
    """The first failure that all checks of the subject find together, as a run of the command would; the likeliest comes first."""
    for check in dict.fromkeys((planted.check, *checks_of(planted.subject))):
        report = investigate(world, planted.subject, check, budget)
        if not report.verdict.is_coherent:
            break
    return report
