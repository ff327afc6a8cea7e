"""Every planted bug of distributed layers is found by a default check, and shrunk; the right layers pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from adjointlab.engine.search_result import Budget
from adjointlab.engine.subject import Subject
from adjointlab.worlds.world import World
from tests.planted import layers, parallel_layers
from tests.planted.bug import PlantedBug
from tests.planted.layers import RIGHT
from tests.small_failures import first_small_failure

PLANTED = (*layers.PLANTED, *parallel_layers.PLANTED)

BUDGETS = (Budget(seed=1, shrinking=30.0), Budget(seed=2, shrinking=30.0))
"""Another search is made where one stops at many ranks."""

HANG = (
    "no backward where the input requires no gradient",
    "idle worker leaves the graph",
    "quotient on the root alone",
)
"""A rank stays away from the backward pass: the report says on what the others wait."""


@pytest.fixture(autouse=True)
def _simulated(world: World) -> None:
    if world.name != "simulated":
        pytest.skip("eight ranks are simulated, and bugs that hang would end a job")


@pytest.mark.parametrize("planted", PLANTED, ids=[planted.bug for planted in PLANTED])
def test_a_planted_bug_is_found_and_shrunk_to_three_ranks_or_as_few_as_show_it(
    world: World, planted: PlantedBug
) -> None:
    most, ranks = max(3, planted.least_ranks), []
    for budget in BUDGETS:
        report = first_small_failure(world, planted.subject, planted.check, budget, most)
        # Incoherent, or, where a rank stays away, not to be judged; in both cases with the case that shows it.
        assert not report.verdict.is_coherent
        assert report.case is not None, report.verdict
        assert "TypeError" not in report.verdict.headline  # that would be a slip in the plant
        if planted.bug in HANG:
            assert report.verdict.kind in ("deadlock", "mismatched collective")
        ranks.append(report.case.ranks)
        if ranks[-1] <= most:
            return
    pytest.fail(f"shrunk to {ranks} ranks")


@pytest.mark.parametrize("subject", RIGHT, ids=[subject.name for subject in RIGHT])
def test_the_layer_without_the_bug_passes_every_check(
    world: World, subject: Subject, alarms: Callable[..., dict[str, str]]
) -> None:
    assert alarms(world, subject, Budget(4, seed=1)) == {}
