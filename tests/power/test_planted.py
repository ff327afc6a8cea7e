"""Every planted bug is found, and shrunk until it can be read."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from adjointlab.checks.verdict import Status
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget
from adjointlab.engine.subject import Subject
from adjointlab.worlds.world import World
from tests.planted.bug import PlantedBug
from tests.planted.reductions import PLANTED, RIGHT

SEED = 20


@pytest.mark.parametrize("planted", PLANTED, ids=[planted.bug for planted in PLANTED])
def test_a_planted_bug_is_found_and_shrunk_to_three_ranks_and_four_elements(
    world: World, planted: PlantedBug
) -> None:
    if world.ranks < planted.least_ranks:
        pytest.skip(f"shows on {planted.least_ranks} ranks at least")
    report = investigate(world, planted.subject, planted.check, Budget(seed=SEED))
    # Where wrong ranks meet in a collective, their shapes may differ: then the run does not come to an end.
    assert report.status is not Status.COHERENT
    assert report.case is not None, report.verdict
    assert report.case.ranks <= 3
    assert math.prod(report.case.parameters["shape"]) <= 4


@pytest.mark.parametrize("subject", RIGHT, ids=[subject.name for subject in RIGHT])
def test_the_operator_without_the_bug_passes_every_check(
    world: World, subject: Subject, alarms: Callable[..., dict[str, str]]
) -> None:
    assert alarms(world, subject, Budget(20, seed=SEED)) == {}
