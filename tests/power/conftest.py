from __future__ import annotations

from collections.abc import Iterator

import pytest

from adjointlab.worlds.launch import open_world
from adjointlab.worlds.world import World


@pytest.fixture(scope="session")
def world() -> Iterator[World]:
    """All processes of mpiexec, or eight simulated ranks."""
    opened = open_world(ranks=8)
    yield opened
    opened.close()
