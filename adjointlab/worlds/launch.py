"""Detects from the environment how this process was started, and opens the matching world.

Importing mpi4py initializes MPI, which takes time, and fails if no MPI library is installed: so the environment is consulted first. Under
torchrun, mpi4py is not imported at all.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

# No imports of the lab at module level: the wrapper of a rank, which cannot import the lab, loads this file by its path.
if TYPE_CHECKING:
    from adjointlab.worlds.polling import Channel
    from adjointlab.worlds.watchdog import Watchdog
    from adjointlab.worlds.world import World, WorldName

__all__ = [
    "LAUNCHERS",
    "LaunchVariables",
    "NoPartners",
    "check_partners",
    "is_launched",
    "launched_rank",
    "launched_world",
    "open_channel",
    "open_world",
]


class NoPartners(RuntimeError):
    """Not all processes that the launcher claims to have started can be reached; the message gives advice."""


class LaunchVariables(NamedTuple):
    """Environment variables by which a launcher passes each process its rank and the number of ranks."""

    launcher: str
    rank: str
    size: str = ""  # empty if the launcher does not set the number of ranks
    required: str = ""  # a variable that only this launcher sets, if other programs set the first two as well
    starts: Literal["mpi", "torch", ""] = "mpi"  # the world of the processes; empty: independent processes

    def apply_in(self, environment: Mapping[str, str]) -> bool:
        """Return True if `environment` is that of a process started by this launcher."""
        return self.rank in environment and (not self.required or self.required in environment)

    def processes(self, environment: Mapping[str, str]) -> int | None:
        """Number of processes according to the launcher; None if it does not set one."""
        size = environment.get(self.size, "")
        return int(size) if size.isdigit() else None


_TORCHRUN: Final = LaunchVariables(
    "torchrun", "RANK", "WORLD_SIZE", required="TORCHELASTIC_RUN_ID", starts="torch"
)

LAUNCHERS: Final = (
    _TORCHRUN,
    LaunchVariables("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    LaunchVariables("PMIx", "PMIX_RANK", "SLURM_STEP_NUM_TASKS"),  # the size is set only by srun
    LaunchVariables("PMI (MPICH, Intel MPI, Slurm's pmi2)", "PMI_RANK", "PMI_SIZE"),
    LaunchVariables("jsrun", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"),
    LaunchVariables("aprun", "ALPS_APP_PE"),
    LaunchVariables("flux", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", starts=""),
    # Slurm sets both in a batch script too, which is one process. A step that starts MPI has variables of PMI or PMIx.
    LaunchVariables("srun", "SLURM_PROCID", "SLURM_NTASKS", starts=""),
)
"""The first that applies counts: a batch system may start the launcher of an MPI library, or torchrun, which starts the ranks."""


def launched_world(environment: Mapping[str, str] = os.environ) -> Literal["mpi", "torch", ""]:
    """The world of the processes that a launcher has started with this one, according to the environment; empty if it is alone."""
    # Even if torchrun's other variables are missing or wrong: check_partners reports that.
    if _TORCHRUN.required in environment:
        return "torch"
    started = (launcher.starts for launcher in LAUNCHERS if launcher.apply_in(environment))
    return next(filter(None, started), "")


def is_launched() -> bool:
    """Return True if this process was started as a rank by a launcher of MPI programs or by torchrun."""
    return bool(launched_world())


def launched_rank(environment: Mapping[str, str] = os.environ) -> int:
    """Rank that the launcher gave this process; 0 if there is no launcher.

    Use it only to decide which process prints before MPI is initialized, and to name the files of a rank.
    """
    given = (environment.get(launcher.rank, "") for launcher in LAUNCHERS if launcher.apply_in(environment))
    return int(next(filter(str.isdigit, given), "0"))


def check_partners(environment: Mapping[str, str] = os.environ) -> None:
    """Raise :class:`NoPartners` if ranks that the launcher has started are missing, in MPI or under torchrun. Initializes MPI.

    If the launcher belongs to another library than mpi4py's, each of its processes is alone in its ``COMM_WORLD``, and detects
    that by itself. So does a process that has inherited the variables of an unrelated launcher.
    """
    if (world := launched_world(environment)) == "torch":
        _check_torchrun(environment)
    if world != "mpi":
        return
    launchers = [each for each in LAUNCHERS if each.starts == "mpi" and each.apply_in(environment)]
    first = launchers[0]
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as problem:  # RuntimeError where mpi4py finds no MPI library
        raise NoPartners(
            f"{first.rank} is set, as by a launcher of MPI programs ({first.launcher}), but mpi4py cannot be imported: "
            f"{str(problem).partition(chr(10))[0]}. Install it (pip install mpi4py mpich), or unset {first.rank} to run on simulated ranks"
        ) from problem
    from adjointlab.worlds.comm_world import own_handle

    size = own_handle(MPI.COMM_WORLD).Get_size()
    stated = {each.size: count for each in launchers if (count := each.processes(environment)) is not None}
    if size == 1:
        # A size of 1 is the symptom of a mismatch too, so it is accepted only if every launcher states it.
        fits = bool(stated) and set(stated.values()) == {1}
    else:
        # One launcher may have started another; then the environment has the variables of both.
        fits = not stated or size in stated.values()
    if not fits:
        said = ", ".join(f"{name}={count}" for name, count in stated.items()) or f"{first.rank} is set"
        library = " ".join(MPI.Get_library_version().split()[:3]).rstrip(",")
        raise NoPartners(
            f"the launcher ({first.launcher}) and MPI disagree: {said}, but MPI.COMM_WORLD has {size} "
            f"process{'' if size == 1 else 'es'}. Most likely mpiexec belongs to another MPI library than mpi4py's ({library}): "
            "compare mpiexec --version with "
            'python -c "from mpi4py import MPI; print(MPI.Get_library_version())", and use the mpiexec of that library. '
            f"If no launcher has started this process, unset {first.rank} to run on simulated ranks"
        )


def _check_torchrun(environment: Mapping[str, str]) -> None:
    """Raise :class:`NoPartners` if torchrun's variables or the installed torch do not allow process groups."""
    wanted = {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0, "MASTER_PORT": 1}
    wrong = [
        f"{name} is {environment[name]!r}" if name in environment else f"{name} is missing"
        for name, least in wanted.items()
        if not (environment.get(name, "").isdigit() and int(environment[name]) >= least)
    ]
    if not environment.get("MASTER_ADDR"):
        wrong.append("MASTER_ADDR is missing")
    if not wrong and int(environment["RANK"]) >= int(environment["WORLD_SIZE"]):
        wrong = [f"RANK is {environment['RANK']}, and WORLD_SIZE {environment['WORLD_SIZE']}"]
    if wrong:
        raise NoPartners(
            f"TORCHELASTIC_RUN_ID is set, as by torchrun, but {', '.join(wrong)}: start the command with torchrun "
            "--nproc-per-node N -m adjointlab ..., or unset TORCHELASTIC_RUN_ID to run on simulated ranks"
        )
    from adjointlab.worlds.torch.requirements import MissingTorch, check_gloo

    try:
        check_gloo()
    except MissingTorch as problem:
        raise NoPartners(f"torchrun has started this process, but {problem}") from problem


def open_channel(purpose: str) -> Channel:
    """Connect the processes that the launcher has started, for messages of one `purpose`. Collective."""
    if launched_world() == "torch":
        from adjointlab.worlds.torch.channel import StoreChannel

        return StoreChannel.of_torchrun(purpose)
    from mpi4py import MPI

    from adjointlab.worlds.mpi.polling import ObjectChannel

    return ObjectChannel(MPI.COMM_WORLD)


def open_world(
    kind: WorldName | str = "auto",
    ranks: int = 8,
    *,
    strict: bool = False,
    watchdog: Watchdog | None = None,
    patience: float = 10.0,
) -> World:
    """Open the world of that `kind`, with `ranks` ranks if it is simulated; "auto" chooses by how this process was started.

    Collective for worlds of processes, whose size the launcher decides. `strict` applies to MPI only. Raises :class:`NoPartners` on
    every process if some processes that the launcher has started cannot be reached.

    `patience` is how many seconds a call may wait for other processes before it counts as blocked. Unless `watchdog` has another
    limit, a rank is ended if it makes no call for three times as long, or if its run takes twelve times as long. ``math.inf`` means no limit,
    for training rather than for checks: then a deadlock of simulated ranks is still detected, but not one of real ranks.

    Raises `ValueError` for a number of ranks below 1 or a patience that is not positive, and `TypeError` if either is not a number.
    """
    from adjointlab.worlds.watchdog import Watchdog
    from adjointlab.worlds.world import WorldName, number_of_ranks, positive_patience

    number_of_ranks(ranks)
    positive_patience(patience)
    watchdog = watchdog or Watchdog.of_patience(patience)
    if kind == "auto":
        kind = launched_world() or WorldName.SIMULATED
    if WorldName(kind) is WorldName.MPI:
        check_partners()
        from adjointlab.worlds.mpi.world import MPIWorld

        return MPIWorld(patience=patience, strict=strict, watchdog=watchdog)
    if WorldName(kind) is WorldName.TORCH:
        check_partners()
        from adjointlab.worlds.torch.world import TorchWorld

        return TorchWorld(patience, watchdog)
    from adjointlab.worlds.simulated.world import SimulatedWorld

    return SimulatedWorld(ranks, watchdog)
