from __future__ import annotations

from collections.abc import Iterator

import pytest

from adjointlab.engine import search
from adjointlab.worlds.launch import open_world
from adjointlab.worlds.world import World


@pytest.fixture(scope="session")
def world() -> Iterator[World]:
    """All processes of mpiexec, or eight simulated ranks."""
    opened = open_world(ranks=8)
    yield opened
    opened.close()


@pytest.fixture(autouse=True)
def _no_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failures are found and made smaller here; what kind of fault they show is scored by `benchmarks/hints.py`."""
    monkeypatch.setattr(
        search, "with_hints_of_retries", lambda run, case, verdict, subject, **options: verdict
    )
