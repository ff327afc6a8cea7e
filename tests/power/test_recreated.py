"""Documented faults are found by drawing general conditions, and conventions are not taken for faults."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget
from adjointlab.engine.subject import Subject
from adjointlab.worlds.world import World
from tests.planted.bug import PlantedBug
from tests.planted.conventions import CONVENTIONS
from tests.planted.recreated.table import FAULTS, RIGHT

SEED = 35


@pytest.fixture(autouse=True)
def _simulated(world: World) -> None:
    if world.name != "simulated":
        pytest.skip("documented faults are counted on eight simulated ranks")


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.source for fault in FAULTS])
def test_a_documented_fault_is_found_within_the_default_budget(world: World, fault: PlantedBug) -> None:
    report = investigate(world, fault.subject, fault.check, Budget(seed=SEED, shrinking=0.0))
    # Incoherent, or, where ranks crash or hang, not to be judged; in both cases with the case that shows it.
    assert not report.verdict.is_coherent
    assert report.case is not None, report.verdict


def test_twenty_documented_faults_are_told_at_least() -> None:
    assert len({fault.source for fault in FAULTS}) >= 20


@pytest.mark.parametrize("subject", RIGHT, ids=[subject.name for subject in RIGHT])
def test_the_operator_without_the_fault_passes_every_check(
    world: World, subject: Subject, alarms: Callable[..., dict[str, str]]
) -> None:
    assert alarms(world, subject, Budget(5, seed=SEED)) == {}


@pytest.mark.parametrize(
    ("convention", "subject"), CONVENTIONS, ids=[convention for convention, _ in CONVENTIONS]
)
def test_a_declared_convention_raises_no_alarm(
    world: World, convention: str, subject: Subject, alarms: Callable[..., dict[str, str]]
) -> None:
    assert alarms(world, subject, Budget(5, seed=SEED)) == {}
