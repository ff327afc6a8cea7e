"""The simulated world: any number of ranks in one process, one at a time, without MPI.

A run is determined by its body, payload, number of ranks, seed and schedule. No run hangs: if no rank can proceed, the run is
ended with a diagnosis. The simulation is limited by state that threads share and processes do not, such as module-level variables; a
communicator that reaches another rank in that way is refused.
"""

from __future__ import annotations

import contextvars
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, TypeVar

from adjointlab.exit_codes import ExitCode
from adjointlab.worlds.collection_thresholds import thresholds_for, thresholds_for_small_runs
from adjointlab.worlds.forks import forks_ended
from adjointlab.worlds.interrupts import RepeatedInterrupt
from adjointlab.worlds.randomness import global_streams
from adjointlab.worlds.run import Dead, Outcome, Raised, Returned, Run
from adjointlab.worlds.schedule import Schedule
from adjointlab.worlds.shared_functions import BEFORE, DURING, FunctionsReplaced, refuse_replaced
from adjointlab.worlds.simulated.communicator import Communicator
from adjointlab.worlds.simulated.device_guards import hold_device_guards
from adjointlab.worlds.simulated.frozen_objects import FrozenObjects
from adjointlab.worlds.simulated.scheduler import Task
from adjointlab.worlds.simulated.simulation import Simulation
from adjointlab.worlds.simulated.simulation_watchdog import SimulationWatchdog
from adjointlab.worlds.simulated.workers import WorkerPool
from adjointlab.worlds.watchdog import RaisingWatchdog, Watchdog, own_or_new
from adjointlab.worlds.world import Body, Cancelled, RankContext, Runner, WorldName, number_of_ranks

__all__ = ["SimulatedWorld"]

R = TypeVar("R")

_running: Final = threading.RLock()
_is_rank: Final = ContextVar("is_rank", default=False)


class SimulatedWorld:
    """Up to `ranks` simulated ranks; a run may ask for more, at the price of more threads.

    Raises `TypeError` if `ranks` is not an integer or `watchdog` not a Watchdog, and `ValueError` if `ranks` is below 1.
    """

    name = WorldName.SIMULATED
    can_schedule = True
    can_revoke = False
    has_communicator = True
    is_leader = True
    is_exhausted = False

    def __init__(self, ranks: int = 8, watchdog: Watchdog | None = None) -> None:
        self.ranks = number_of_ranks(ranks)
        self.watchdog = own_or_new(watchdog)
        self._pool = WorkerPool()
        self._streams = global_streams()
        self._is_together = False

    def run(
        self,
        body: Body,
        payload: object = None,
        ranks: int | None = None,
        *,
        seed: int = 0,
        schedule: Schedule | None = None,
    ) -> Run:
        """Run ``body(context, payload)`` once on `ranks` ranks (default: all).

        Seed 0 runs the ranks in turn and delivers messages at once; any other seed gives another order, and other choices where
        the standard allows them. With a `schedule`, the seed only seeds the ranks' random streams, and the run records
        its decisions. A wrong number of ranks raises as in the constructor. Raises `RuntimeError` if the system cannot start
        enough threads.
        """
        size = self.ranks if ranks is None else number_of_ranks(ranks)
        hold_device_guards()
        # Each rank gets a copy of the caller's context variables (such as Hypothesis's settings), so its changes are private.
        caller = contextvars.copy_context()

        def rank_main(simulation: Simulation, task: Task) -> Outcome:
            return caller.copy().run(_run_rank, simulation, task, body, payload)

        simulation = Simulation(size, seed, schedule, self._pool, self._streams, rank_main)
        simulation.scheduler.while_waiting = SimulationWatchdog(
            self.watchdog, simulation.scheduler, payload
        ).look
        with _one_at_a_time(), self.watchdog.during_run(), thresholds_for(size):
            try:
                with self._compared():
                    run = simulation.run()
            except FunctionsReplaced as problem:
                # For all ranks, because they share the functions, and it is unknown which rank has replaced them.
                return Run((Raised.of(problem),) * size)
            return run

    @contextmanager
    def together(self) -> Iterator[None]:
        """Context for several consecutive runs, which do set-up and clean-up only once but share no state of ranks.

        The check for functions replaced by user code is made only before the first run and after the last, and the caller's NumPy
        generator is saved once. Raises :class:`~adjointlab.worlds.shared_functions.FunctionsReplaced` at the end if functions were
        replaced: then none of the runs is valid.
        """
        with self._compared(), self._streams.numpy.put_aside(), thresholds_for_small_runs():
            self._is_together = True
            try:
                yield
            finally:
                self._is_together = False

    @contextmanager
    def _compared(self) -> Iterator[None]:
        """Context that checks for replaced functions on entry and exit, unless an outer :meth:`together` does."""
        if self._is_together:
            yield
            return
        refuse_replaced(BEFORE)
        yield
        refuse_replaced(DURING)

    def lead(self, body: Body, conduct: Callable[[Runner], R], about: str = "") -> R:
        """Return ``conduct(run)``: there are no followers."""

        def run(payload: object, ranks: int, *, seed: int = 0, schedule: Schedule | None = None) -> Run:
            RepeatedInterrupt.check()
            is_torch_known = "torch" in sys.modules
            result = self.run(body, payload, ranks, seed=seed, schedule=schedule)
            if not is_torch_known and "torch" in sys.modules:
                # A rank has imported torch during the run, too late for its streams, settings and dual level to be separate for each rank.
                result = self.run(body, payload, ranks, seed=seed, schedule=schedule)
            collections.begin()
            return result

        raising, collections = RaisingWatchdog(self.watchdog, end=_end_process), FrozenObjects()
        try:
            with (
                _one_at_a_time(),
                RepeatedInterrupt(),
                collections,
                raising.signal_handler(),
                self.watchdog.drawing(raising),
            ):
                return conduct(run)
        finally:
            raising.close()

    def share(self, value: R) -> R:
        """Return `value`: there is no other process."""
        return value

    def close(self) -> None:
        """End the idle threads."""
        self._pool.close()


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Lock for runs, because ranks modify process-wide state. A rank may start runs of its own within it."""
    if _is_rank.get():
        yield
        return
    with _running:
        yield


def _end_process() -> None:
    os._exit(ExitCode.UNJUDGED)


def _run_rank(simulation: Simulation, task: Task, body: Body, payload: object) -> Outcome:
    """Run `body` as one rank, and return its outcome whatever it raises."""
    _is_rank.set(True)  # only in this rank's copy of the context
    if (cancelled_as := task.cancelled_as) is not None:
        return cancelled_as  # before it has started
    torch = sys.modules.get("torch")
    if hasattr(torch, "set_grad_enabled"):
        # torch keeps the mode by thread, and an earlier rank on this thread may have switched it off.
        torch.set_grad_enabled(True)  # type: ignore[union-attr]
    comm = Communicator(simulation, task, simulation.everyone, task.rank)
    simulation.communicators[task.rank] = comm
    try:
        with forks_ended(f"rank {task.rank}"):
            return Returned(body(RankContext(task.rank, comm.size, comm), payload))
    except Cancelled:
        return task.cancelled_as or Dead("cancelled")
    except BaseException as exception:
        if task.cancelled_as is not None:
            # User code has converted `Cancelled` into another exception, or its clean-up has failed.
            return task.cancelled_as
        return Raised.of(exception)
