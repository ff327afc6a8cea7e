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
    """`ranks` as an integer; `TypeError` for what is none, and `ValueError` below 1, for the argument of that name."""
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
    """`patience` as a number of seconds; `TypeError` for what is none, and `ValueError` where a call could not wait at all."""
    if not isinstance(patience, int | float):
        raise TypeError(f"patience: {patience!r} is not a number of seconds; math.inf means no limit")
    if not patience > 0:
        raise ValueError(f"patience: {patience} s is not positive; math.inf means no limit")
    return float(patience)


class Cancelled(BaseException):
    """Raised in a rank to take it out of a call that cannot complete.

    A ``BaseException``, because user code that catches ``Exception`` around a call must not swallow it: the rank would
    go on after its run has been given up.
    """


@dataclass(frozen=True)
class RankContext:
    """Argument of a body: the rank, the number of ranks, and the communicator of all of them."""

    rank: int
    size: int
    comm: Any  # mpi4py's names; see adjointlab.typing.Communicator for what the lab itself calls


class Exhausted(RuntimeError):
    """This job has used up MPI's communicators, those left behind in runs that failed: it must be started again."""


Body = Callable[[RankContext, Any], object]


class Runner(Protocol):
    """Runs the body of the surrounding :meth:`World.lead` once; only the leader has one.

    `seed` is that of the ranks' global random streams, and of the schedule where none is given. A world that cannot
    choose its schedule ignores the one given.
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
        """Name of the system that ranks run under, in the words of a report."""
        return _RANKS_RUN_UNDER[self]

    def launcher(self, ranks: int) -> list[str]:
        """The words that come before a command of the lab to start it on so many `ranks`; none where they are simulated."""
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
    """A place where an SPMD body runs."""

    @property
    def name(self) -> WorldName:
        """The kind of world."""

    @property
    def can_schedule(self) -> bool:
        """True if a run can be given a :class:`~adjointlab.worlds.schedule.Schedule`."""

    @property
    def can_revoke(self) -> bool:
        """True if ranks are processes whose waits are cancelled after a time, so that a hang is better simulated first."""

    @property
    def has_communicator(self) -> bool:
        """True if ranks have a communicator under mpi4py's names; else user code has torch's process groups alone."""

    @property
    def ranks(self) -> int:
        """Largest number of ranks that a run has by default, or (for processes) can have."""

    @property
    def is_leader(self) -> bool:
        """True in the process that decides and prints."""

    watchdog: Watchdog
    """Ends a run that nothing else ends."""

    @property
    def is_exhausted(self) -> bool:
        """On the leader: True if there is just enough left to finish what was begun, before :class:`Exhausted`."""

    def run(
        self,
        body: Body,
        payload: object = None,
        ranks: int | None = None,
        *,
        seed: int = 0,
        schedule: Schedule | None = None,
    ) -> Run:
        """Collective over the world's processes: run `body` once on `ranks` ranks (default: all); see :class:`Runner`."""

    def lead(self, body: Body, conduct: Callable[[Runner], R], about: str = "") -> R:
        """Collective: the leader executes ``conduct(run)``; every process returns (or raises) what it did.

        Followers execute `body` for each of the leader's runs. A run on fewer ranks than the world has leaves the
        other processes waiting. `payload` is pickled and sent to them, so it is plain data. What a world has learnt of the
        hangs of a subject holds in the following calls `about` the same one.
        """

    def share(self, value: R) -> R:
        """Collective: the leader's value, on every process."""

    def close(self) -> None:
        """Collective: release what the world holds."""
