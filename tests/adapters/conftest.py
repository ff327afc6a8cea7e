from __future__ import annotations

from collections.abc import Iterator

import pytest

import adjointlab as al
from adjointlab.worlds.launch import is_launched


@pytest.fixture(scope="module")
def world() -> Iterator[al.SimulatedWorld]:
    """Simulated ranks, for what need not be seen over MPI too."""
    if is_launched():
        pytest.skip("simulated ranks need no processes of MPI")
    simulated = al.SimulatedWorld(4)
    yield simulated
    simulated.close()
