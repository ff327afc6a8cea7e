"""Every planted bug of halo exchanges and repartitions is found and shrunk; most of them pass the customary dot test."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from adjointlab.checks.check import checks_of
from adjointlab.engine.search_result import Budget, SearchResult
from adjointlab.engine.subject import Subject
from adjointlab.worlds.world import World
from tests.planted.bug import PlantedBug
from tests.planted.halos import PLANTED, RIGHT, customary_dot_test
from tests.small_failures import first_small_failure

BUDGET = Budget(seed=1, shrinking=30.0)
"""A 2 x 2 grid does not shrink to a torus of one rank: cases are drawn on fewer ranks until one fails."""


@pytest.fixture(autouse=True)
def _simulated(world: World) -> None:
    if world.name != "simulated":
        pytest.skip("what a late communicator does, and eight ranks, are simulated")


@pytest.mark.parametrize("planted", PLANTED, ids=[planted.bug for planted in PLANTED])
def test_a_planted_bug_is_found_and_shrunk_to_three_ranks(world: World, planted: PlantedBug) -> None:
    report = _first_failure(world, planted)
    # Incoherent, or, where ranks crash or hang, not to be judged; in both cases with the case that shows it.
    assert not report.verdict.is_coherent
    assert report.case is not None, report.verdict
    assert report.case.ranks <= 3


def _first_failure(world: World, planted: PlantedBug) -> SearchResult:
    """The first failure that all checks of the subject find together, as a run of the command would; the likeliest comes first."""
    for check in dict.fromkeys((planted.check, *checks_of(planted.subject))):
        report = first_small_failure(world, planted.subject, check, BUDGET, 3)
        if not report.verdict.is_coherent:
            break
    return report


@pytest.mark.parametrize("subject", RIGHT, ids=[subject.name for subject in RIGHT])
def test_the_operator_without_the_bug_passes_every_check(
    world: World, subject: Subject, alarms: Callable[..., dict[str, str]]
) -> None:
    assert alarms(world, subject, Budget(15, seed=1)) == {}


def test_the_customary_dot_test_does_not_see_at_least_half_of_the_bugs(world: World) -> None:
    unseen = [planted.bug for planted in PLANTED if not customary_dot_test(planted.subject, world)]
    assert 2 * len(unseen) >= len(PLANTED) >= 18


def test_the_customary_dot_test_sees_a_wrong_adjoint_and_passes_a_right_one(world: World) -> None:
    seen = {planted.bug for planted in PLANTED if customary_dot_test(planted.subject, world)}
    assert seen >= {"adjoint assigns for adding", "adjoint crops, and gives nothing back"}
    assert [subject.name for subject in RIGHT if customary_dot_test(subject, world)] == []
