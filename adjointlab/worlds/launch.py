"""Telling from the environment whether mpiexec has started this process, and opening the world that fits.

Importing mpi4py initializes MPI, which takes time, and fails where none is installed: so the environment is asked first.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from adjointlab.worlds.watchdog import Watchdog
    from adjointlab.worlds.world import World

__all__ = ["is_launched", "launched_rank", "open_world"]

_RANKS = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


def is_launched(environment: Mapping[str, str] = os.environ) -> bool:
    """Return True if this process was started by a launcher of MPI programs, to judge by the environment."""
    return any(name in environment for name in (*_RANKS, *_SIZES))


def launched_rank(environment: Mapping[str, str] = os.environ) -> int:
    """Rank that the launcher gave this process; 0 if there is no launcher.

    Only for deciding which process prints before MPI is initialized.
    """
    given = (environment[name] for name in _RANKS if environment.get(name, "").isdigit())
    return int(next(given, "0"))


def open_world(
    kind: str = "auto", ranks: int = 8, *, strict: bool = False, watchdog: Watchdog | None = None
) -> World:
    """Open the world called `kind`: "simulated" with `ranks` ranks, "mpi", or "auto" for the one that fits this process.

    Collective for the MPI world, whose size the launcher decides. `strict` concerns only that one.
    """
    if kind == "mpi" or (kind == "auto" and is_launched()):
        from adjointlab.worlds.mpi.world import MPIWorld

        return MPIWorld(strict=strict, watchdog=watchdog)
    from adjointlab.worlds.simulated.world import SimulatedWorld

    return SimulatedWorld(ranks, watchdog)
