"""Protocol of worlds: run one SPMD function on P ranks, with one outcome for each rank.

A *body* is a function ``body(context, payload)`` that every rank executes. The *leader* alone decides which
payloads are run (:meth:`World.lead`); the followers execute what they are given, so that all ranks end alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from operator import index
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

from adjointlab.worlds.run import Run
from adjointlab.worlds.schedule import Schedule
from adjointlab.worlds.watchdog import Watchdog

__all__ = [
    "Body",
    "Cancelled",
    "Exhausted",
    "RankContext",
    "Runner",
    "World",
    "WorldName",
    "number_of_ranks",
    "positive_patience",
]

R = TypeVar("R")


def number_of_ranks(ranks: object) -> int:
    """Return the argument `ranks` as an integer. Raises `TypeError` if it is not one, and `ValueError` if it is below 1."""
    try:
        number = index(ranks)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(
            f"ranks: {ranks!r} is not an integer; a world has a number of ranks, such as 4"
        ) from None
    if number < 1:
        raise ValueError(f"ranks must be at least 1, not {number}")
    return number


def positive_patience(patience: object) -> float:
    """Return the argument `patience` as a float. Raises `TypeError` if it is not a number, and `ValueError` if it is not positive."""
    if not isinstance(patience, int | float):
        raise TypeError(f"patience: {patience!r} is not a number of seconds; math.inf means no limit")
    if not patience > 0:
        raise ValueError(f"patience: {patience} s is not positive; math.inf means no limit")
    return float(patience)


class Cancelled(BaseException):
    """Raised in a rank to cancel a call that cannot complete.

    A ``BaseException``, because user code that catches ``Exception`` around a call must not swallow it: the rank would
    continue after its run has been abandoned.
    """


@dataclass(frozen=True)
class RankContext:
    """Argument of a body: the rank, the number of ranks, and the communicator of all of them."""

    rank: int
    size: int
    comm: Any  # has mpi4py's methods; adjointlab.typing.Communicator lists those that the lab itself calls


class Exhausted(RuntimeError):
    """This job has used up MPI's communicators, because failed runs have leaked them: it must be restarted."""


Body = Callable[[RankContext, Any], object]


class Runner(Protocol):
    """Runs the body of the surrounding :meth:`World.lead` once; only the leader has one.

    `seed` seeds the ranks' global random streams, and the schedule if none is given. A world that cannot choose its
    schedule ignores `schedule`.
    """

    def __call__(
        self, payload: Any, ranks: int, *, seed: int = 0, schedule: Schedule | None = None
    ) -> Run: ...


class WorldName(StrEnum):
    """The kinds of world, as options, reports and reproducers name them."""

    SIMULATED = "simulated"
    MPI = "mpi"
    TORCH = "torch"

    @property
    def ranks_run_under(self) -> str:
        """Name, for reports, of the system that ranks run under."""
        return _RANKS_RUN_UNDER[self]

    def launcher(self, ranks: int) -> list[str]:
        """The command-line prefix that starts a command of the lab on so many `ranks`; empty for simulated ranks."""
        return {
            WorldName.SIMULATED: [],
            WorldName.MPI: ["mpiexec", "-n", str(ranks)],
            WorldName.TORCH: ["torchrun", "--nproc-per-node", str(ranks), "-m"],
        }[self]


_RANKS_RUN_UNDER: Final = {
    WorldName.SIMULATED: "simulation",
    WorldName.MPI: "MPI",
    WorldName.TORCH: "torchrun",
}


@runtime_checkable
class World(Protocol):
    """Executes an SPMD body on a number of ranks."""

    @property
    def name(self) -> WorldName:
        """The kind of world."""

    @property
    def can_schedule(self) -> bool:
        """True if a run can be given a :class:`~adjointlab.worlds.schedule.Schedule`."""

    @property
    def can_revoke(self) -> bool:
        """True if ranks are processes whose waits are cancelled after a time-out, so that hangs are found faster in simulation."""

    @property
    def has_communicator(self) -> bool:
        """True if ranks have a communicator with mpi4py's methods; otherwise user code has only torch's process groups."""

    @property
    def ranks(self) -> int:
        """Largest number of ranks of a run: a default in simulation, a limit for processes."""

    @property
    def is_leader(self) -> bool:
        """True in the process that decides and prints."""

    watchdog: Watchdog
    """Ends runs that exceed their time limit."""

    @property
    def is_exhausted(self) -> bool:
        """On the leader: True if communicators are running out, but suffice to finish what was begun without :class:`Exhausted`."""

    def run(
        self,
        body: Body,
        payload: object = None,
        ranks: int | None = None,
        *,
        seed: int = 0,
        schedule: Schedule | None = None,
    ) -> Run:
        """Run `body` once on `ranks` ranks (default: all); see :class:`Runner`. Collective over the world's processes."""

    def lead(self, body: Body, conduct: Callable[[Runner], R], about: str = "") -> R:
        """Execute ``conduct(run)`` on the leader; every process returns its result or raises its exception. Collective.

        Followers execute `body` for each of the leader's runs. During a run on fewer ranks than the world has, the
        other processes wait. The payload of a run is pickled and sent to the followers, so it must be plain data. After a hang, a
        world may shorten its patience; this persists in further calls with the same subject, named by `about`.
        """

    def share(self, value: R) -> R:
        """Return the leader's value on every process. Collective."""

    def close(self) -> None:
        """Release the world's resources. Collective."""
