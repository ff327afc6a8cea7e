"""The simulated world: any number of ranks in one process, one at a time, without MPI.

A run is determined by its body, payload, number of ranks, seed and schedule. No run hangs: one in which no rank can go on is
ended and says why. The limit of the simulation is what threads share and processes do not, such as module-level state; a
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

    Raises `TypeError` for a number of ranks that is not an integer and for what is no watchdog, and `ValueError` for one below 1.
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

        Seed 0 runs the ranks in turn and delivers messages at once; any other seed is another order, and other choices where
        the standard leaves one. With a `schedule` the seed is only that of the ranks' random streams, and the run keeps a
        record of its decisions. Raises what the world itself raises for a wrong number of ranks, and `RuntimeError` where the system
        gives no more threads.
        """
        size = self.ranks if ranks is None else number_of_ranks(ranks)
        hold_device_guards()
        # Each rank sees the context variables of the caller (such as Hypothesis's settings) and keeps its changes to itself.
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
                # Of all ranks, for they share the functions, and nobody knows which of them it was.
                return Run((Raised.of(problem),) * size)
            return run

    @contextmanager
    def together(self) -> Iterator[None]:
        """Context for runs of one kind, one after the other, which share what surrounds them but no state of ranks.

        Functions that user code replaces are looked for once, before the first run and after the last, and NumPy's generator of the
        caller is put aside once. Raises :class:`~adjointlab.worlds.shared_functions.FunctionsReplaced` in the end if there are any: then
        none of the runs says anything.
        """
        with self._compared(), self._streams.numpy.put_aside(), thresholds_for_small_runs():
            self._is_together = True
            try:
                yield
            finally:
                self._is_together = False

    @contextmanager
    def _compared(self) -> Iterator[None]:
        """Context at whose ends the shared functions must be there, unless one around it sees to that."""
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
                # A rank has imported it, when its streams, settings and level of dual tensors could not become each rank's own any more.
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
    """Context of runs, for which other threads wait: ranks replace and share what a process has once. A rank may run others within it."""
    if _is_rank.get():
        yield
        return
    with _running:
        yield


def _end_process() -> None:
    os._exit(ExitCode.UNJUDGED)


def _run_rank(simulation: Simulation, task: Task, body: Body, payload: object) -> Outcome:
    """Run `body` as one rank, and return its outcome whatever it raises."""
    _is_rank.set(True)  # in a context of its own
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
            # User code has turned `Cancelled` into an exception of its own, or its clean-up has failed.
            return task.cancelled_as
        return Raised.of(exception)
