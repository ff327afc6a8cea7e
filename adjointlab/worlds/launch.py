"""Telling from the environment how this process was started, and opening the world that fits.

Importing mpi4py initializes MPI, which takes time, and fails where none is installed: so the environment is asked first.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

# No more imports than these: the wrapper of a rank, which cannot import the lab, loads this file by its path.
if TYPE_CHECKING:
    from adjointlab.worlds.watchdog import Watchdog
    from adjointlab.worlds.world import World, WorldName

__all__ = ["LAUNCHERS", "LaunchVariables", "is_launched", "launched_rank", "open_world"]


class LaunchVariables(NamedTuple):
    """Environment variables by which a launcher tells each process its rank, and how many there are."""

    launcher: str
    rank: str
    size: str = ""  # empty: it does not say
    required: str = ""  # one of its own, where other programs set the first two as well
    starts_mpi: bool = True  # it says nothing to processes that are no ranks of an MPI job

    def apply_in(self, environment: Mapping[str, str]) -> bool:
        """Return True if the launcher has started the process whose environment this is."""
        named = self.rank in environment or self.size in environment
        return named and (not self.required or self.required in environment)


LAUNCHERS: Final = (
    LaunchVariables("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    LaunchVariables("PMIx", "PMIX_RANK"),
    LaunchVariables("PMI (MPICH, Intel MPI, Slurm's pmi2)", "PMI_RANK", "PMI_SIZE"),
    LaunchVariables("jsrun", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"),
    LaunchVariables("aprun", "ALPS_APP_PE"),
    LaunchVariables("flux", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", starts_mpi=False),
    # Slurm sets both in a batch script too, which is one process. A step that starts MPI has variables of PMI or PMIx.
    LaunchVariables("srun", "SLURM_PROCID", "SLURM_NTASKS", starts_mpi=False),
    LaunchVariables("torchrun", "RANK", "WORLD_SIZE", required="TORCHELASTIC_RUN_ID", starts_mpi=False),
)
"""The first that applies counts: a batch system starts the launcher of an MPI library, and that the ranks."""


def is_launched(environment: Mapping[str, str] = os.environ) -> bool:
    """Return True if this process was started by a launcher of MPI programs, to judge by the environment."""
    return any(launcher.starts_mpi and launcher.apply_in(environment) for launcher in LAUNCHERS)


def launched_rank(environment: Mapping[str, str] = os.environ) -> int:
    """Rank that the launcher gave this process; 0 if there is no launcher.

    Only for deciding which process prints before MPI is initialized, and for naming the files of a rank.
    """
    given = (environment.get(launcher.rank, "") for launcher in LAUNCHERS if launcher.apply_in(environment))
    return int(next(filter(str.isdigit, given), "0"))


def open_world(
    kind: WorldName | str = "auto", ranks: int = 8, *, strict: bool = False, watchdog: Watchdog | None = None
) -> World:
    """Open the world of that `kind`, with `ranks` ranks if it is simulated; "auto" is the one that fits this process.

    Collective for the MPI world, whose size the launcher decides. `strict` concerns only that one.
    """
    from adjointlab.worlds.world import WorldName

    if kind == "auto":
        kind = WorldName.MPI if is_launched() else WorldName.SIMULATED
    if WorldName(kind) is WorldName.MPI:
        from adjointlab.worlds.mpi.world import MPIWorld

        return MPIWorld(strict=strict, watchdog=watchdog)
    from adjointlab.worlds.simulated.world import SimulatedWorld

    return SimulatedWorld(ranks, watchdog)
