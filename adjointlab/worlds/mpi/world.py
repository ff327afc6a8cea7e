"""The MPI world: real processes, and a communicator whose waits end.

The leader (rank 0) commands, the others follow: each run goes out as data on the control communicator, every rank
taking part runs the body on a guarded communicator of exactly the size asked for, and reports its outcome and its
books. When the run was clean the communicator serves the next one; otherwise it is left, never freed, and counted.
"""

from __future__ import annotations

import os
import pickle
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from mpi4py import MPI

from adjointlab.worlds.interrupts import Interrupts
from adjointlab.worlds.mpi.agreement import Agreements
from adjointlab.worlds.mpi.communicator import Family, GuardedComm
from adjointlab.worlds.mpi.control_channel import COMMAND, CREATION, INTERRUPT, REPORT, STACKS, Control
from adjointlab.worlds.mpi.diagnosis import conclude
from adjointlab.worlds.mpi.guard import Books, Guard
from adjointlab.worlds.mpi.keepalive import keep_alive
from adjointlab.worlds.mpi.pickling import open_exception, open_outcome, pack_exception, pack_outcome
from adjointlab.worlds.randomness import GlobalStreams, RandomStreams
from adjointlab.worlds.requests import Interposition
from adjointlab.worlds.schedule import Schedule
from adjointlab.worlds.watchdog import EXIT_CODE, Overdue, RaisingWatchdog, Watchdog
from adjointlab.worlds.world import (
    Blocked,
    Body,
    Cancelled,
    Exhausted,
    Outcome,
    Raised,
    RankContext,
    Returned,
    Run,
    Runner,
)

__all__ = ["MPIWorld"]

R = TypeVar("R")

_LEADER: Final = 0
_LEAST_PATIENCE: Final = 2.0
_RESERVE: Final = 128  # communicators for finishing what was begun
_SHOWING: Final = 1.0  # seconds that the ranks have to show their stacks


class _Command(NamedTuple):
    """Run this; `clean` is the verdict on the run before."""

    run: int
    ranks: int
    seed: int
    clean: bool
    patience: float
    payload: bytes  # empty for those who do not take part


class _Done(NamedTuple):
    """The leader has finished, with a result or an exception; `clean` is the verdict on the last run."""

    clean: bool
    result: bytes
    exception: Any


class _Report(NamedTuple):
    """What one rank tells the leader of run `run`."""

    run: int
    outcome: bytes
    books: Books
    spoilt: int


class MPIWorld:
    """The processes of an MPI communicator (default: ``COMM_WORLD``). Making one is collective.

    `patience` is how many seconds a call may wait, with no rank failing meanwhile, before it counts as blocked. Once
    a run has hung, it is measured by the slowest good run so far: a hundred times that, and two seconds at least, so that
    a hang is shrunk in bearable time. In a `strict` world the ranks compare every blocking collective before it is
    carried out: one that does not match is told at once, before the library can go wrong on it, and for more messages.
    """

    can_schedule = False
    can_revoke = True

    def __init__(
        self,
        comm: MPI.Intracomm | None = None,
        patience: float = 10.0,
        *,
        strict: bool = False,
        watchdog: Watchdog | None = None,
        communicators: int | None = None,
    ) -> None:
        self.patience = patience
        self._limit = _communicators() if communicators is None else communicators
        self.watchdog = watchdog or Watchdog()
        self._control = Control(MPI.COMM_WORLD if comm is None else comm)
        self._patience = patience  # as adapted
        self._slowest = 0.0  # seconds of the slowest good run
        self._guard = Guard(self._control, patience, strict=strict)
        self._agreements = Agreements(self._control, self._guard)
        self._family = Family(self._guard, self._agreements)
        self._teams: dict[int, GuardedComm] = {}
        self._streams = GlobalStreams()
        self._lead = 0  # how many there have been
        self._run = 0
        self._ranks_of_run = 0  # of the last run
        self._clean = True  # the last run was
        self._payload: Any = None  # of the last run, on the leader
        self._leading = False
        self._interrupts = Interrupts()
        self._watchdog_thread = RaisingWatchdog(
            self.watchdog, self._control.rank, self._guard.expire, self._end
        )
        self.spoilt = 0  # communicators that this process has left for good
        self._most_spoilt = 0  # by any process, on the leader

    @property
    def name(self) -> str:
        return "mpi"

    @property
    def ranks(self) -> int:
        return self._control.size

    @property
    def is_leader(self) -> bool:
        return self._control.rank == _LEADER

    @property
    def is_exhausted(self) -> bool:
        return self._most_spoilt > self._limit - _RESERVE

    def run(
        self,
        body: Body,
        payload: Any = None,
        ranks: int | None = None,
        *,
        seed: int = 0,
        schedule: Schedule | None = None,
    ) -> Run:
        """Collective: every process has its own `body` and `payload`, and gets the outcomes of all ranks."""
        count = self.ranks if ranks is None else ranks
        return self.lead(lambda context, _: body(context, payload), lambda run: run(None, count, seed=seed))

    def lead(self, body: Body, conduct: Callable[[Runner], R]) -> R:
        """Collective: the leader executes ``conduct(run)``; every process returns, or raises, what it did."""
        if self._leading:
            raise RuntimeError(
                "lead and run cannot be called from within a run or a conduct of the same world"
            )
        self._leading = True
        self._lead += 1
        try:
            with Interrupts() as self._interrupts, self._watchdog_thread.on_duty():
                return self._conduct(body, conduct) if self.is_leader else self._follow(body)
        finally:
            self._leading = False

    def share(self, value: Sequence[Any] | Any) -> Any:
        """Collective: the leader's value, on every process."""
        return self.lead(lambda context, _: None, lambda run: value)

    def close(self) -> None:
        """Collective: free the communicators that are clean."""
        for team in self._teams.values():
            team.inner.Free()
            team.retire("its world is closed")
        self._teams.clear()
        self._control.close()

    # The leader

    def _conduct(self, body: Body, conduct: Callable[[Runner], R]) -> R:
        def run(payload: Any, ranks: int, *, seed: int = 0, schedule: Schedule | None = None) -> Run:
            self._interrupts.hold()
            try:
                return self._command(body, payload, ranks, seed)
            finally:
                self._interrupts.allow()

        try:
            try:
                self._interrupts.allow()
                result = conduct(run)
            finally:
                self._interrupts.hold()
            if self._was_interrupted():
                raise KeyboardInterrupt
            parcel = pickle.dumps(result, pickle.HIGHEST_PROTOCOL) if self.ranks > 1 else b""
            done = _Done(self._clean, parcel, None)
        except BaseException as exception:
            self._interrupts.hold()  # also where one has come just before
            self._interrupts.pending = False
            self._tell_all(_Done(self._clean, b"", pack_exception(exception)))
            self._settle(self._clean)
            raise
        self._tell_all(done)
        self._settle(self._clean)
        return result

    def _command(self, body: Body, payload: Any, ranks: int, seed: int) -> Run:
        if not 1 <= ranks <= self.ranks:
            raise ValueError(f"ranks is {ranks}; this world has processes for 1 to {self.ranks}")
        if self._was_interrupted():
            raise KeyboardInterrupt
        if self._most_spoilt > self._limit - _RESERVE // 4:
            raise self._exhausted()
        parcel = pickle.dumps(payload, pickle.HIGHEST_PROTOCOL)
        self._payload = payload
        run, clean = self._run + 1, self._clean
        command = _Command(run, ranks, seed, clean, self._patience, parcel)
        for rank in range(1, self.ranks):
            self._control.send(command if rank < ranks else command._replace(payload=b""), rank, COMMAND)
        self._settle(clean)
        self._clean = False  # unless it ends well
        started = time.monotonic()
        mine, books = self._take_part(command, body)
        reports = [self._report_of(rank) for rank in range(1, ranks)]
        self._most_spoilt = max(self._most_spoilt, self.spoilt, *(report.spoilt for report in reports))
        outcomes = (mine, *(open_outcome(report.outcome, rank) for rank, report in enumerate(reports, 1)))
        findings, self._clean = conclude(outcomes, (books, *(report.books for report in reports)))
        if all(isinstance(outcome, Returned) for outcome in outcomes):
            self._slowest = max(self._slowest, time.monotonic() - started)
        elif any(isinstance(outcome, Blocked) or _is_overdue(outcome) for outcome in outcomes):
            self._patience = min(self.patience, max(_LEAST_PATIENCE, 100 * self._slowest))
        if any(isinstance(outcome, Raised) and outcome.is_a(KeyboardInterrupt) for outcome in outcomes):
            raise KeyboardInterrupt
        if any(isinstance(outcome, Raised) and outcome.is_a(Exhausted) for outcome in outcomes):
            raise self._exhausted()
        return Run(outcomes, findings)

    def _exhausted(self) -> Exhausted:
        return Exhausted(
            f"MPI has hardly a communicator left: {self._most_spoilt} were left behind in cases that failed. Start the "
            "job again, or let `adjointlab run` do so"
        )

    def _report_of(self, rank: int) -> _Report:
        told = False
        limit = self.watchdog.seconds(self._patience)
        # Its own watchdog comes first, if it still can.
        end = time.monotonic() + limit + 2 * self.watchdog.grace(limit) + _LEAST_PATIENCE

        def meanwhile() -> None:
            nonlocal told
            self._agreements.honour()
            self._show_stacks_if_asked()
            if time.monotonic() > end:
                self.watchdog.account(f"rank {rank}", limit, self._payload, threading.get_ident())
                self._end()
            if self._interrupts.pending and not told:
                # The others may be waiting for each other: call them out.
                self._guard.notify(blocked=False)
                told = True

        while True:
            report: _Report = self._control.receive(rank, REPORT, meanwhile)
            if report.run == self._run:
                return report

    def _was_interrupted(self) -> bool:
        """Whether a follower has had a Ctrl-C."""
        interrupted = False
        while (lead := self._control.poll(MPI.ANY_SOURCE, INTERRUPT)) is not None:
            interrupted = interrupted or lead == self._lead
        return interrupted

    def _tell_all(self, message: Any) -> None:
        for rank in range(1, self.ranks):
            self._control.send(message, rank, COMMAND)
        self._control.flush()

    # The followers

    def _follow(self, body: Body) -> Any:
        told = False

        def meanwhile() -> None:
            nonlocal told
            self._agreements.honour()
            self._show_stacks_if_asked()
            if self._interrupts.pending and not told:
                self._control.send(self._lead, _LEADER, INTERRUPT)
                told = True

        while True:
            command = self._control.receive(_LEADER, COMMAND, meanwhile)
            self._settle(command.clean)
            if isinstance(command, _Done):
                break
            self._run, self._ranks_of_run = command.run, command.ranks
            if self._control.rank < command.ranks:
                outcome, books = self._take_part(command, body)
                report = _Report(command.run, pack_outcome(outcome, self._control.rank), books, self.spoilt)
                self._control.send(report, _LEADER, REPORT)
        if command.exception is not None:
            self._interrupts.pending = False
            raise open_exception(command.exception)
        return pickle.loads(command.result)  # noqa: S301 - from our own leader

    # Every rank

    def _take_part(self, command: _Command, body: Body) -> tuple[Outcome, Books]:
        self._run, self._ranks_of_run = command.run, command.ranks
        rank, guard, interrupts = self._control.rank, self._guard, self._interrupts
        limit = self.watchdog.seconds(command.patience)
        # A wait ends before the watchdog takes it for something worse.
        guard.patience = min(command.patience, limit / 2)
        guard.begin(command.run, command.ranks)
        guard.is_littered = self.spoilt > self._limit // 4
        self._agreements.begin()
        self._family.begin()
        streams = RandomStreams(self._streams, command.seed, command.ranks)
        streams.enter(rank)
        outcome: Outcome
        try:
            payload = pickle.loads(command.payload)  # noqa: S301 - from our own leader
            context = RankContext(rank, command.ranks, self._team(command.ranks))
            with Interposition():
                try:
                    interrupts.allow()
                    with self._watchdog_thread.over(payload, limit):
                        value = body(context, payload)
                finally:
                    interrupts.hold()
            outcome = Returned(value)
        except Cancelled:
            outcome = Returned(None)  # replaced by the guard's account
        except BaseException as exception:
            interrupts.hold()  # also where one has come just before
            outcome = Raised.of(exception)
            if isinstance(exception, KeyboardInterrupt | Overdue):
                # It may have come between the start of a request and its entry in the books.
                guard.abandoned = True
                keep_alive(exception)
        streams.leave()
        if guard.departure is not None:
            outcome = guard.departure
        elif isinstance(outcome, Raised):
            guard.notify(blocked=False)
        return outcome, guard.end()

    def _show_stacks_if_asked(self) -> None:
        asker = self._control.poll(MPI.ANY_SOURCE, STACKS)
        if asker is not None:
            self.watchdog.show_stacks(f"rank {self._control.rank}, asked by rank {asker}:")

    def _end(self) -> None:
        """The end of the job, from any thread of any rank."""
        self._control.ask_for_stacks()
        time.sleep(_SHOWING)
        # Should MPI not manage that, the launcher sees the process go.
        last = threading.Timer(5.0, os._exit, (EXIT_CODE,))
        last.daemon = True
        last.start()
        MPI.COMM_WORLD.Abort(EXIT_CODE)

    def _team(self, ranks: int) -> GuardedComm:
        """The communicator of the first `ranks` processes. All of them ask for it at once."""
        team = self._teams.get(ranks)
        if team is None:
            everyone = self._control.comm.Get_group()
            group = everyone.Incl(list(range(ranks)))
            try:
                inner = self._control.comm.Create_group(group, CREATION + ranks)
            except MPI.Exception as problem:
                raise Exhausted(str(problem)) from problem
            finally:
                group.Free()
                everyone.Free()
            team = self._teams[ranks] = GuardedComm(inner, tuple(range(ranks)), self._family)
        else:
            team.begin()
        return team

    def _settle(self, clean: bool) -> None:
        """All ranks of the last run have reported: free what it derived, or leave all it touched."""
        ranks, self._ranks_of_run = self._ranks_of_run, 0
        if not self._control.rank < ranks:
            self.spoilt += 0 if clean or not ranks else 1
            return
        # In the order of their making, which is the same on all members, should freeing wait for them.
        for comm in self._family.derived:
            inner = comm.freed or comm.inner
            comm.retire("it was made in an earlier run; make communicators in each run")
            if clean:
                inner.Free()
            else:
                keep_alive(inner)
                self.spoilt += 1
        self._family.derived = []
        if not clean:
            team = self._teams.pop(ranks, None)
            if team is not None:
                keep_alive(team.inner)
                team.retire("it was left behind in a run that failed")
                self.spoilt += 1


def _is_overdue(outcome: Outcome) -> bool:
    return isinstance(outcome, Raised) and outcome.is_a(Overdue)


def _communicators() -> int:
    """How many communicators the library can have at a time."""
    # MPICH and what is made from it have 2,048 identifiers, some of them used by itself.
    return 2000 if "MPICH" in MPI.Get_library_version().upper() else 30_000
