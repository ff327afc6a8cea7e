"""The MPI world: real processes, and a communicator whose waits end.

Runs follow :mod:`adjointlab.worlds.process_world`, on a guarded communicator of exactly the ranks asked for. If a run was
clean, its communicator is reused for the next one. If not, messages may still be in transit on it: it is leaked, that is, never used
or freed again, and counted, because MPI has a limited number.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from mpi4py import MPI

from adjointlab.cores import are_crowded, own_cores
from adjointlab.exit_codes import ExitCode
from adjointlab.worlds.comm_world import own_handle
from adjointlab.worlds.current_run import CurrentRun, NotedRefusals
from adjointlab.worlds.exception_text import causes
from adjointlab.worlds.exit_of_c import allow_exit_of_c
from adjointlab.worlds.mpi.agreement import Agreements
from adjointlab.worlds.mpi.call_log import RunStatistics
from adjointlab.worlds.mpi.communicator import GuardedComm
from adjointlab.worlds.mpi.communicator_base import CommunicatorRegistry
from adjointlab.worlds.mpi.control_channel import CREATION, ControlChannel
from adjointlab.worlds.mpi.diagnosis import communicating, conclude
from adjointlab.worlds.mpi.guard import Guard
from adjointlab.worlds.polling import keep_alive
from adjointlab.worlds.process_world import Command, Conclusion, ProcessWorld, any_raised
from adjointlab.worlds.run import Outcome, Raised, Run
from adjointlab.worlds.watchdog import Overdue, Watchdog, Watched
from adjointlab.worlds.world import Exhausted, RankContext, WorldName, positive_patience

__all__ = ["MPIWorld"]

_RESERVE: Final = 128
"""Number of communicators left when the world counts as exhausted: enough to finish what was begun."""

_SECONDS_FOR_STACKS: Final = 1.0
_SECONDS_FOR_ABORT: Final = 5.0


class _Statistics(NamedTuple):
    """Statistics of one rank on a run, reported with its outcome."""

    of_run: RunStatistics
    leaked_communicators: int


class _CurrentRun(NotedRefusals):
    """The current run, for the replacements of mpi4py's and torch's names."""

    def __init__(self, comm: GuardedComm, guard: Guard) -> None:
        super().__init__(guard.refused)
        self._comm = comm

    def communicator(self) -> GuardedComm:
        return self._comm


class MPIWorld(ProcessWorld):
    """The processes of an MPI communicator (default: ``COMM_WORLD``). The constructor is collective.

    `patience` is how many seconds a call may wait, with no rank failing meanwhile, before it counts as blocked. Once
    a run has hung, patience is reduced to a hundred times the slowest good run so far, but at least two seconds: then
    shrinking a hang takes a bearable time. In a `strict` world the ranks compare every blocking collective before it is
    executed: a mismatch is reported at once, before the library can fail on it, at the price of more
    messages. `communicators` is how many communicators MPI can have at a time; the default depends on the library.
    """

    name = WorldName.MPI

    def __init__(
        self,
        comm: MPI.Intracomm | None = None,
        patience: float = 10.0,
        *,
        strict: bool = False,
        watchdog: Watchdog | None = None,
        communicators: int | None = None,
    ) -> None:
        self.leaked_communicators = 0  # by this process
        self._most_leaked = 0  # by any process, on the leader
        self._max_communicators = _max_communicators() if communicators is None else communicators
        if comm is not None and not isinstance(comm, MPI.Comm):
            raise TypeError(
                f"comm: {comm!r} is not a communicator of mpi4py's; leave it out for MPI.COMM_WORLD"
            )
        patience = positive_patience(patience)
        given: object = strict
        if not isinstance(given, bool):
            raise TypeError(f"strict: {strict!r} is neither True nor False")
        self._control = ControlChannel(MPI.COMM_WORLD if comm is None else comm)
        is_crowded = are_crowded(self._control.comm.allgather(own_cores()))
        self._guard = Guard(self._control, patience, strict=strict, is_crowded=is_crowded)
        self._agreements = Agreements(self._control, self._guard)
        self._registry = CommunicatorRegistry(self._guard, self._agreements)
        self._communicators: dict[int, GuardedComm] = {}  # clean ones for runs, by number of ranks
        super().__init__(self._control, self._control.comm.allgather, patience, watchdog, self._guard.expire)

    @property
    def is_exhausted(self) -> bool:
        return self._most_leaked > self._max_communicators - _RESERVE

    def close(self) -> None:
        """Free the clean communicators. Collective."""
        for comm in self._communicators.values():
            comm.inner.Free()
            comm.retire("its world is closed")
        self._communicators.clear()
        self._watchdog_thread.close()
        self._control.close()

    # The leader

    def _refuse_if_exhausted(self) -> None:
        # A caller that checks is_exhausted has stopped by now; a quarter of the reserve is left for communicators of good runs.
        if self._most_leaked > self._max_communicators - _RESERVE // 4:
            raise self._exhausted()

    def _exhausted(self) -> Exhausted:
        return Exhausted(
            f"MPI has hardly any communicators left: failed cases have leaked {self._most_leaked}. Restart the job, or let "
            "`adjointlab run` do so"
        )

    def _conclude(self, outcomes: tuple[Outcome, ...], statistics: Sequence[_Statistics]) -> Conclusion:
        self._most_leaked = max(self._most_leaked, *(each.leaked_communicators for each in statistics))
        of_ranks = [each.of_run for each in statistics]
        findings, is_clean = conclude(outcomes, of_ranks)
        if any_raised(outcomes, Exhausted) and not any_raised(outcomes, KeyboardInterrupt):
            self._last_was_clean = is_clean
            raise self._exhausted()
        backward = tuple(each.backward for each in of_ranks)
        run = Run(outcomes, findings, communicating=communicating(of_ranks), backward=backward)
        return Conclusion(run, is_clean)

    # Every rank

    def _cut_off(self) -> None:
        reason = "this is a child process, which a rank has forked"
        self._control.retire(reason)
        for comm in (*self._communicators.values(), *self._registry.derived):
            comm.retire(reason)
        for request in self._guard.open_requests.values():
            request.retire(reason)

    def _begin_run(self, command: Command, patience: float) -> None:
        guard = self._guard
        guard.patience = patience
        guard.start_run(command.run, command.ranks)
        guard.has_leaked_many = self.leaked_communicators > self._max_communicators // 4
        self._agreements.start_run()
        self._registry.start_run()

    def _enter_run(self, command: Command) -> tuple[RankContext, CurrentRun]:
        comm = self._communicator_of(command.ranks)
        return RankContext(self._control.rank, command.ranks, comm), _CurrentRun(comm, self._guard)

    def _progress(self) -> object:
        return self._guard.progress()

    def _note_raised(self, exception: BaseException) -> None:
        self._guard.saw_mpi_error = any(isinstance(each, MPI.Exception) for each in causes(exception))
        if isinstance(exception, KeyboardInterrupt | Overdue):
            # These may be raised between any two bytecode instructions, such as after the start of a request but before the guard
            # has registered it. The frames of the traceback keep its buffers alive, so the exception is kept.
            self._guard.has_abandoned = True
            keep_alive(exception)

    def _end_run(self, outcome: Outcome, watched: Watched | None) -> tuple[Outcome, _Statistics]:
        guard = self._guard
        if watched is not None and watched.has_fired:
            guard.has_abandoned = True
        if guard.cancelled_as is not None:
            # Even if user code has caught Cancelled, and returned or raised something else.
            outcome = guard.cancelled_as
        elif isinstance(outcome, Raised):
            guard.notify_failure()
        return outcome, _Statistics(guard.finish_run(), self.leaked_communicators)

    def _notify_failure(self) -> None:
        self._guard.notify_failure()

    def _look_around(self) -> None:
        self._agreements.join_pending()
        if (asker := self._control.poll_stacks_request()) is not None:
            self.watchdog.show_stacks(f"rank {self._control.rank}, asked by rank {asker}:")

    def _end_job(self) -> None:
        """End the job, from any thread of any rank."""
        # MPI_Abort may block if another thread is inside MPI, or fail after MPI_Finalize. Then the exit of this process makes the
        # launcher end the job.
        last_resort = threading.Timer(
            _SECONDS_FOR_STACKS + _SECONDS_FOR_ABORT, os._exit, (ExitCode.UNJUDGED,)
        )
        last_resort.daemon = True
        last_resort.start()
        with suppress(MPI.Exception):
            self._control.request_stacks()
        time.sleep(_SECONDS_FOR_STACKS)
        allow_exit_of_c()
        own_handle(MPI.COMM_WORLD).Abort(ExitCode.UNJUDGED)

    def _communicator_of(self, ranks: int) -> GuardedComm:
        """Return the communicator of the first `ranks` processes; collective over these."""
        comm = self._communicators.get(ranks)
        if comm is not None:
            comm.start_run()
            return comm
        everyone = self._control.comm.Get_group()
        group = everyone.Incl(list(range(ranks)))
        try:
            # Create_group rather than Split, so that the other processes need not take part.
            inner = self._control.comm.Create_group(group, CREATION + ranks)
        except MPI.Exception as problem:
            raise Exhausted(str(problem)) from problem
        finally:
            group.Free()
            everyone.Free()
        comm = self._communicators[ranks] = GuardedComm(inner, tuple(range(ranks)), self._registry)
        return comm

    def _finish_last_run(self, was_clean: bool) -> None:
        """Free the communicators made in the last run; if it was not clean, leak all that it has used."""
        # All ranks have reported, so none is in a call on one of these.
        ranks, self._ranks_of_last_run = self._ranks_of_last_run, 0
        if self._control.rank >= ranks:
            # This process is not a member, but leaks of the run's communicator are counted on all ranks.
            self.leaked_communicators += 0 if was_clean or not ranks else 1
            return
        # In order of creation, which is the same on all members, because freeing may wait for them.
        for comm in self._registry.derived:
            inner = comm.freed or comm.inner
            comm.retire("it was made in an earlier run; make communicators in each run")
            if was_clean:
                inner.Free()
            else:
                self._leak(inner)
        self._registry.derived = []
        if not was_clean and (own := self._communicators.pop(ranks, None)) is not None:
            self._leak(own.inner)
            own.retire("it was left behind in a run that failed")

    def _leak(self, inner: MPI.Intracomm) -> None:
        # Not freed: freeing a communicator with requests that never complete may wait for ever, and MPI could reuse its
        # identifier for a new one, which would then receive stray messages.
        keep_alive(inner)
        self.leaked_communicators += 1


def _max_communicators() -> int:
    """Number of communicators that the MPI library supports at a time."""
    # MPICH has 2,048 context identifiers for each process ("Too many communicators (0/2048 free on this process)"), and
    # uses some itself: 5.0.2 makes 2,045 copies of COMM_WORLD. Running out may also hang (pmodels/mpich issue 1768).
    # Open MPI has no such limit in practice.
    return 2000 if "MPICH" in MPI.Get_library_version().upper() else 30_000
