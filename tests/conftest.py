from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from unittest.mock import patch

import pytest

import adjointlab as al
from adjointlab.checks.check import checks_of
from adjointlab.engine import confirming
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget
from adjointlab.engine.subject import Subject
from adjointlab.worlds.forward_mode import dual_level
from adjointlab.worlds.launch import is_launched
from adjointlab.worlds.world import World
from tests.running import LAUNCHER, ROOT


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what starts processes of MPI where none can be started."""
    if LAUNCHER is None and item.get_closest_marker("starts_mpiexec"):
        pytest.skip("needs mpiexec: install the extra `mpi`")


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


_WITHOUT_RETRIES = tuple(
    f"tests/{folder}/"
    for folder in ("adapters", "faults", "gpu", "power", "primitives", "subjects", "torch_distributed")
)


@pytest.fixture(autouse=True)
def _no_retries(request: pytest.FixtureRequest) -> Iterator[None]:
    """Spend no time on the kind of fault that a failure shows, in tests that find failures and make them smaller.

    Hints have tests in `tests/checks`, and `benchmarks/hints.py` scores them.
    """
    if not request.path.relative_to(ROOT).as_posix().startswith(_WITHOUT_RETRIES):
        yield
        return
    # Not by pytest's `monkeypatch`: other fixtures and tests would share it, and find theirs undone in another order.
    with patch.object(
        confirming, "with_hints_of_retries", lambda run, case, verdict, subject, **options: verdict
    ):
        yield


@pytest.fixture(scope="module")
def world() -> Iterator[al.SimulatedWorld]:
    """Simulated ranks, for what need not be seen over MPI too."""
    if is_launched():
        pytest.skip("simulated ranks need no processes of MPI")
    simulated = al.SimulatedWorld(4)
    yield simulated
    simulated.close()


@pytest.fixture(scope="session")
def forward_mode() -> None:
    """torch's forward mode, with what it compiles, and warns of, on the first dual tensor."""
    with dual_level():
        pass
