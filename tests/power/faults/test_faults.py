"""Documented faults are found by drawing general conditions, and conventions are not taken for faults."""

from __future__ import annotations

import pytest

from adjointlab.engine.run_case import checks_of
from adjointlab.engine.search import Budget, investigate
from adjointlab.engine.subject import Subject
from adjointlab.worlds.world import World

from ..negatives import NEGATIVES
from .fault import Fault
from .table import FAULTS, RIGHT

SEED = 35


@pytest.fixture(autouse=True)
def _simulated(world: World) -> None:
    if world.name != "simulated":
        pytest.skip("documented faults are counted on eight simulated ranks")


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.key for fault in FAULTS])
def test_a_documented_fault_is_found_within_the_default_budget(world: World, fault: Fault) -> None:
    report = investigate(world, fault.subject, fault.check, Budget(seed=SEED, shrinking=0.0))
    # Incoherent, or, where ranks crash or hang, not to be judged; in both cases with the case that shows it.
    assert not report.verdict.is_coherent
    assert report.case is not None, report.verdict


def test_at_least_twenty_documented_faults_are_recreated() -> None:
    assert len({fault.key for fault in FAULTS}) >= 20


@pytest.mark.parametrize("subject", RIGHT, ids=[subject.name for subject in RIGHT])
def test_the_operator_without_the_fault_passes_every_check(world: World, subject: Subject) -> None:
    verdicts = {
        check: investigate(world, subject, check, Budget(cases=10, seed=SEED)).verdict
        for check in checks_of(subject)
    }
    assert {check: str(verdict) for check, verdict in verdicts.items() if not verdict.is_coherent} == {}


@pytest.mark.parametrize(
    ("convention", "subject"), NEGATIVES, ids=[convention for convention, _ in NEGATIVES]
)
def test_a_declared_convention_raises_no_alarm(world: World, convention: str, subject: Subject) -> None:
    verdicts = {
        check: investigate(world, subject, check, Budget(cases=10, seed=SEED)).verdict
        for check in checks_of(subject)
    }
    assert {check: str(verdict) for check, verdict in verdicts.items() if not verdict.is_coherent} == {}
