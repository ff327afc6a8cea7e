from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from adjointlab.worlds.world import World

_LAUNCHERS = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE")


@pytest.fixture(scope="session")
def world() -> Iterator[World]:
    """All processes of mpiexec, or eight simulated ranks."""
    if any(int(os.environ.get(name, "0")) > 1 for name in _LAUNCHERS):
        from adjointlab.worlds.mpi import MPIWorld as Here
    else:
        from adjointlab.worlds.simulated import SimulatedWorld

        def Here() -> SimulatedWorld:
            return SimulatedWorld(8)

    opened = Here()
    yield opened
    opened.close()
