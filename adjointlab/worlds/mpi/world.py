"""The MPI world: real processes, and a communicator whose waits end.

The leader (rank 0) commands, the others follow. A run has four steps, the same on every rank that takes part:

1. The leader sends a command: the payload, and whether the *last* run was clean.
2. Each rank frees or leaks the communicators of the last run, which it could not do before it knew that.
3. It runs the body on a guarded communicator of exactly the ranks asked for.
4. It reports its outcome and statistics. The leader compares the statistics and decides whether the run was clean.

If so, its communicator serves the next run. If not, messages may still be on their way in it: it is left behind, never used
or freed again, and counted, because MPI has a limited number.
"""

from __future__ import annotations

import os
import pickle
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple, NoReturn, TypeVar

from mpi4py import MPI

from adjointlab.exit_codes import ExitCode
from adjointlab.worlds.exit_of_c import allow_exit_of_c
from adjointlab.worlds.interposition import Interposition, own_handle
from adjointlab.worlds.mpi.agreement import Agreements
from adjointlab.worlds.mpi.call_log import RunStatistics
from adjointlab.worlds.mpi.communicator import GuardedComm
from adjointlab.worlds.mpi.communicator_base import CommunicatorRegistry
from adjointlab.worlds.mpi.control_channel import COMMAND, CREATION, INTERRUPT, REPORT, ControlChannel
from adjointlab.worlds.mpi.diagnosis import communicating, conclude
from adjointlab.worlds.mpi.guard import Guard
from adjointlab.worlds.mpi.heartbeat import Heartbeats, LastSeen
from adjointlab.worlds.mpi.pickling import PackedException, pack_outcome, unpack_outcome
from adjointlab.worlds.mpi.polling import keep_alive
from adjointlab.worlds.process import Interrupts, interrupt_by, signal_of
from adjointlab.worlds.process_group import process_groups_of
from adjointlab.worlds.randomness import GlobalStreams, RandomStreams
from adjointlab.worlds.schedule import Schedule
from adjointlab.worlds.shared_functions import BEFORE, DURING, FunctionsReplaced, refuse_replaced
from adjointlab.worlds.watchdog import TIMES_IN_ALL, Elapsed, Overdue, RaisingWatchdog, Watchdog, Watched
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
    WorldName,
)

__all__ = ["MPIWorld"]

R = TypeVar("R")

_LEADER: Final = 0

_LEAST_PATIENCE: Final = 2.0
_TIMES_SLOWEST: Final = 100
"""Once a run has hung, patience is this many times the slowest good run."""

_RESERVE: Final = 128
"""So many communicators before the last one, the world calls itself exhausted: enough to finish what was begun."""

_SECONDS_FOR_STACKS: Final = 1.0
_SECONDS_FOR_ABORT: Final = 5.0


class _Command(NamedTuple):
    """Take part in a run of `ranks` ranks."""

    run: int
    ranks: int
    seed: int
    last_was_clean: bool
    patience: float
    payload: bytes  # empty for those who do not take part


class _Done(NamedTuple):
    """The leader has finished, with a result or an exception."""

    last_was_clean: bool
    result: bytes
    exception: PackedException | None


class _Report(NamedTuple):
    """Report of one rank on run `run`, for the leader."""

    run: int
    outcome: bytes
    statistics: RunStatistics
    leaked_communicators: int


class _CurrentRun:
    """The run that interposition asks."""

    def __init__(self, comm: GuardedComm, guard: Guard) -> None:
        self._comm = comm
        self._refused = guard.refused

    def communicator(self) -> GuardedComm:
        return self._comm

    def refuse(self, reason: str) -> NoReturn:
        self._refused.append(reason)
        raise RuntimeError(reason)


class MPIWorld:
    """The processes of an MPI communicator (default: ``COMM_WORLD``). Making one is collective.

    `patience` is how many seconds a call may wait, with no rank failing meanwhile, before it counts as blocked. Once
    a run has hung, it is measured by the slowest good run so far: a hundred times that, and two seconds at least, so that
    a hang is shrunk in bearable time. In a `strict` world the ranks compare every blocking collective before it is
    carried out: one that does not match is reported at once, before the library can go wrong on it, at the price of more
    messages. `communicators` is how many MPI can have at a time; the default is what is known of the library.
    """

    name = WorldName.MPI
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
        self.watchdog = watchdog or Watchdog()
        self.leaked_communicators = 0  # by this process
        self._most_leaked = 0  # by any process, on the leader
        self._max_communicators = _max_communicators() if communicators is None else communicators
        self._control = ControlChannel(MPI.COMM_WORLD if comm is None else comm)
        self.ranks = self._control.size
        self.is_leader = self._control.rank == _LEADER
        self._guard = Guard(self._control, patience, strict=strict)
        self._agreements = Agreements(self._control, self._guard)
        self._registry = CommunicatorRegistry(self._guard, self._agreements)
        self._communicators: dict[int, GuardedComm] = {}  # clean ones for runs, by number of ranks
        self._streams = GlobalStreams()
        self._lead = 0  # number of the current call of lead
        self._is_leading = False
        self._run = 0  # number of the current run
        self._ranks_of_last_run = 0  # 0 once its communicators are freed or leaked
        self._last_was_clean = True
        self._payload: object = None  # of the current run, on the leader
        self._current_patience = patience  # adapted to hangs
        self._slowest = 0.0  # seconds of the slowest good run
        self._interrupts = Interrupts()
        self._heartbeats = Heartbeats(self._control.comm)
        self._watchdog_thread = RaisingWatchdog(
            self.watchdog, self._end_job, self._guard.expire, self._heartbeats.beat
        )

    @property
    def is_exhausted(self) -> bool:
        return self._most_leaked > self._max_communicators - _RESERVE

    def run(
        self,
        body: Body,
        payload: object = None,
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
        if self._is_leading:
            raise RuntimeError(
                "lead and run cannot be called from within a run or a conduct of the same world"
            )
        self._is_leading = True
        self._lead += 1
        self._watchdog_thread.start()
        try:
            with Interrupts() as self._interrupts, self._watchdog_thread.signal_handler():
                return self._conduct(body, conduct) if self.is_leader else self._follow(body)
        finally:
            self._is_leading = False

    def share(self, value: R) -> R:
        """Collective: the leader's value, on every process."""
        return self.lead(lambda context, _: None, lambda run: value)

    def close(self) -> None:
        """Collective: free the communicators that are clean."""
        for comm in self._communicators.values():
            comm.inner.Free()
            comm.retire("its world is closed")
        self._communicators.clear()
        self._watchdog_thread.close()
        self._control.close()

    # The leader

    def _conduct(self, body: Body, conduct: Callable[[Runner], R]) -> R:
        # Ctrl-C is let through while user code runs, and held back while messages between the ranks are under way: then
        # every rank sees the same sequence of commands to its end.
        def run(payload: object, ranks: int, *, seed: int = 0, schedule: Schedule | None = None) -> Run:
            with self.watchdog.during_run():
                self._interrupts.hold()
                try:
                    return self._command(body, payload, ranks, seed)
                finally:
                    self._interrupts.allow()

        # What an earlier subject has made of it is not this one's.
        self._current_patience = self.patience
        try:
            try:
                self._interrupts.allow()
                with self.watchdog.drawing(self._watchdog_thread):
                    result = conduct(run)
            finally:
                self._interrupts.hold()
            self._heed_followers()
            # A result that cannot be pickled is an exception on every rank, so it is pickled before anybody is told.
            pickled = pickle.dumps(result, pickle.HIGHEST_PROTOCOL) if self.ranks > 1 else b""
        except BaseException as exception:
            self._interrupts.hold()  # also where one has come just before
            self._interrupts.pending = False
            self._finish(_Done(self._last_was_clean, b"", PackedException.of(exception)))
            raise
        self._finish(_Done(self._last_was_clean, pickled, None))
        return result

    def _finish(self, done: _Done) -> None:
        self._control.send_to_others(done, COMMAND)
        # The caller may leave MPI next, and a message that has not gone out then never does.
        self._control.flush()
        self._finish_last_run(done.last_was_clean)

    def _command(self, body: Body, payload: object, ranks: int, seed: int) -> Run:
        if not 1 <= ranks <= self.ranks:
            raise ValueError(f"ranks is {ranks}; this world has processes for 1 to {self.ranks}")
        self._heed_followers()
        # Whoever heeds is_exhausted has ended by now; a quarter of the reserve is left for communicators of good runs.
        if self._most_leaked > self._max_communicators - _RESERVE // 4:
            raise self._exhausted()
        # First of all what may raise: once a command is out, its reports have to come back.
        pickled = pickle.dumps(payload, pickle.HIGHEST_PROTOCOL)
        self._payload = payload
        command = _Command(self._run + 1, ranks, seed, self._last_was_clean, self._current_patience, pickled)
        for rank in range(1, self.ranks):
            sent = command if rank < ranks else command._replace(payload=b"")
            self._control.send(sent, rank, COMMAND)
        self._finish_last_run(command.last_was_clean)
        self._last_was_clean = False  # unless it is known to be, at the end
        started = time.monotonic()
        outcome, statistics = self._take_part(command, body)
        reports = [self._report_of(rank) for rank in range(1, ranks)]
        leaked = (report.leaked_communicators for report in reports)
        self._most_leaked = max(self._most_leaked, self.leaked_communicators, *leaked)
        outcomes = (
            outcome,
            *(unpack_outcome(report.outcome, rank) for rank, report in enumerate(reports, 1)),
        )
        of_ranks = (statistics, *(report.statistics for report in reports))
        findings, self._last_was_clean = conclude(outcomes, of_ranks)
        self._adapt_patience(outcomes, time.monotonic() - started)
        self._heed_interrupted(outcomes)
        if _any_raised(outcomes, Exhausted):
            raise self._exhausted()
        return Run(outcomes, findings, communicating=communicating(of_ranks))

    def _adapt_patience(self, outcomes: tuple[Outcome, ...], seconds: float) -> None:
        if all(isinstance(outcome, Returned) for outcome in outcomes):
            self._slowest = max(self._slowest, seconds)
        elif any(isinstance(outcome, Blocked) for outcome in outcomes) or _any_raised(outcomes, Overdue):
            adapted = max(_LEAST_PATIENCE, _TIMES_SLOWEST * self._slowest)
            self._current_patience = min(self.patience, adapted)

    def _exhausted(self) -> Exhausted:
        return Exhausted(
            f"MPI has hardly a communicator left: {self._most_leaked} were left behind in cases that failed. Start the "
            "job again, or let `adjointlab run` do so"
        )

    def _report_of(self, rank: int) -> _Report:
        limit = self.watchdog.seconds(self._current_patience)
        # As long as the rank's Python runs, its own watchdog ends what lasts too long: it knows where the rank is.
        silent_limit = limit + 2 * self.watchdog.grace(limit) + _LEAST_PATIENCE
        silence = Elapsed()

        # Ctrl-C has come to this process only, and the others may be waiting for each other: it cancels them.
        look_around = self._idle(on_interrupt=self._guard.notify_failure)

        def between(waited: float) -> None:
            look_around(waited)
            seen = self._heartbeats.last_seen(rank)
            silence.look(threading.get_native_id(), None if seen is None else seen.at)
            if silence.idle > (silent_limit if seen is not None else TIMES_IN_ALL * silent_limit):
                self._report_silent(rank, silence.idle, seen)
                self._end_job()

        while True:
            report: _Report = self._control.receive(rank, REPORT, between)
            # An earlier run's was on its way when a second Ctrl-C took the leader out of that run.
            if report.run == self._run:
                return report

    def _report_silent(self, rank: int, seconds: float, seen: LastSeen | None) -> None:
        """Store the case of a rank that does not answer; what this process does meanwhile is of no interest."""
        known = "nothing more is known of it" if seen is None else str(seen)
        late = (
            f"rank {rank} did not come back, and could not be asked where it is for {seconds:.0f} s: {known}"
        )
        self.watchdog.say(f"\nadjointlab: {late}\n")
        self.watchdog.store_overdue(self._payload, late, "")

    def _heed_followers(self) -> None:
        """Raise the interrupt of a follower that waits outside a run, if there is one."""
        number = 0
        while (message := self._control.poll(MPI.ANY_SOURCE, INTERRUPT)) is not None:
            lead, received = message
            # One that was sent during an earlier lead came too late for that, which has ended on all ranks.
            number = received if lead == self._lead else number
        if number:
            self._interrupts.note(number)
            raise interrupt_by(number)

    def _heed_interrupted(self, outcomes: tuple[Outcome, ...]) -> None:
        """Raise the interrupt that ended the run on some rank, if one did."""
        for outcome in outcomes:
            if isinstance(outcome, Raised) and outcome.is_a(KeyboardInterrupt):
                number = signal_of(outcome.exception)
                self._interrupts.note(number)
                raise interrupt_by(number)

    # The followers

    def _follow(self, body: Body) -> Any:
        # After a Ctrl-C this process must not leave alone: it asks the leader to end the lead of all.
        between = self._idle(
            on_interrupt=lambda: self._control.send((self._lead, self._interrupts.number), _LEADER, INTERRUPT)
        )
        while True:
            command: _Command | _Done = self._control.receive(_LEADER, COMMAND, between)
            self._finish_last_run(command.last_was_clean)
            if isinstance(command, _Done):
                break
            self._run, self._ranks_of_last_run = command.run, command.ranks
            if self._control.rank < command.ranks:
                outcome, statistics = self._take_part(command, body)
                pickled = pack_outcome(outcome, self._control.rank)
                report = _Report(command.run, pickled, statistics, self.leaked_communicators)
                self._control.send(report, _LEADER, REPORT)
        if command.exception is not None:
            self._interrupts.pending = False
            exception = command.exception.unpack()
            if isinstance(exception, KeyboardInterrupt):
                self._interrupts.note(signal_of(exception))
            raise exception
        return pickle.loads(command.result)  # noqa: S301 - from our own leader

    # Every rank

    def _take_part(self, command: _Command, body: Body) -> tuple[Outcome, RunStatistics]:
        self._run, self._ranks_of_last_run = command.run, command.ranks
        rank, guard = self._control.rank, self._guard
        limit = self.watchdog.seconds(command.patience)
        # A wait that is too long is revoked and named before the watchdog interrupts the rank.
        guard.patience = min(command.patience, limit / 2)
        guard.start_run(command.run, command.ranks)
        guard.has_leaked_many = self.leaked_communicators > self._max_communicators // 4
        self._agreements.start_run()
        self._registry.start_run()
        streams = RandomStreams(self._streams, command.seed, command.ranks)
        streams.enter(rank)
        outcome, watched = self._executed(command, body, limit)
        streams.leave()
        # An interrupt ends all ranks, whatever else there is to say.
        is_interrupted = _any_raised((outcome,), KeyboardInterrupt)
        try:
            refuse_replaced(DURING)
        except FunctionsReplaced as problem:
            if not is_interrupted:
                outcome = Raised.of(problem)
        has_answered = is_interrupted or _any_raised((outcome,), Overdue)
        if watched is not None and watched.has_fired and not has_answered:
            # User code has swallowed the exception, and its results are not its own.
            outcome = Raised.overdue(watched.overdue(), watched.stack)
            guard.has_abandoned = True
        if guard.cancelled_as is not None:
            # Also where user code has caught Cancelled, and returned or raised something else.
            outcome = guard.cancelled_as
        elif isinstance(outcome, Raised):
            guard.notify_failure()
        return outcome, guard.finish_run()

    def _executed(self, command: _Command, body: Body, limit: float) -> tuple[Outcome, Watched | None]:
        """Execute `body` for at most `limit` seconds; what came of it, and the watchdog's view, once it has begun."""
        guard, interrupts = self._guard, self._interrupts
        watched: Watched | None = None
        try:
            payload = pickle.loads(command.payload)  # noqa: S301 - from our own leader
            refuse_replaced(BEFORE)
            context = RankContext(self._control.rank, command.ranks, self._communicator_of(command.ranks))
            current = _CurrentRun(context.comm, guard)
            with Interposition(current), process_groups_of(current, command.ranks):
                try:
                    interrupts.allow()
                    who = f"rank {context.rank}"
                    with self._watchdog_thread.watch(who, payload, limit, guard.progress) as watched:
                        return Returned(body(context, payload)), watched
                finally:
                    interrupts.hold()
        except Cancelled:
            return Returned(None), watched  # replaced by what the guard cancelled the rank as
        except BaseException as exception:
            interrupts.hold()  # also where one has come just before
            guard.saw_mpi_error = _is_due_to_mpi(exception)
            if isinstance(exception, KeyboardInterrupt | Overdue):
                # These come at any byte code: perhaps between the start of a request and its entry in the guard. Its
                # buffers are alive in the frames of the traceback, so the exception is kept.
                guard.has_abandoned = True
                keep_alive(exception)
            return Raised.of(exception), watched

    def _idle(self, on_interrupt: Callable[[], None]) -> Callable[[float], None]:
        """Return what a wait outside user code does between polls: look after others, and react to Ctrl-C once."""
        has_reacted = False

        def between(waited: float) -> None:
            nonlocal has_reacted
            self._agreements.join_pending()
            if (asker := self._control.poll_stacks_request()) is not None:
                self.watchdog.show_stacks(f"rank {self._control.rank}, asked by rank {asker}:")
            if self._interrupts.pending and not has_reacted:
                has_reacted = True
                on_interrupt()

        return between

    def _end_job(self) -> None:
        """End the job, from any thread of any rank."""
        # MPI_Abort may block where another thread sits in MPI, or fail after its end. Then the launcher sees the process go.
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
        """Return the communicator of the first `ranks` processes. All of them ask for it at the same time."""
        comm = self._communicators.get(ranks)
        if comm is not None:
            comm.start_run()
            return comm
        everyone = self._control.comm.Get_group()
        group = everyone.Incl(list(range(ranks)))
        try:
            # Of the group rather than by Split, so that the other processes need not take part.
            inner = self._control.comm.Create_group(group, CREATION + ranks)
        except MPI.Exception as problem:
            raise Exhausted(str(problem)) from problem
        finally:
            group.Free()
            everyone.Free()
        comm = self._communicators[ranks] = GuardedComm(inner, tuple(range(ranks)), self._registry)
        return comm

    def _finish_last_run(self, was_clean: bool) -> None:
        """Free the communicators made in the last run; if it was not clean, leave all behind that it has touched."""
        # All ranks have reported: nobody is in a call on one of these.
        ranks, self._ranks_of_last_run = self._ranks_of_last_run, 0
        if self._control.rank >= ranks:
            # This process is no member, but the run's communicator is counted on all ranks.
            self.leaked_communicators += 0 if was_clean or not ranks else 1
            return
        # In the order of their making, which is the same on all members: freeing may wait for them.
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
        # Not freed: freeing one with requests that never complete may wait for ever, and MPI could give its identifier,
        # and with it a stray message, to a new one.
        keep_alive(inner)
        self.leaked_communicators += 1


def _any_raised(outcomes: tuple[Outcome, ...], kind: type[BaseException]) -> bool:
    return any(isinstance(outcome, Raised) and outcome.is_a(kind) for outcome in outcomes)


def _is_due_to_mpi(exception: BaseException | None) -> bool:
    """Return True if `exception`, or one that it was raised from, is an error of MPI."""
    while exception is not None and not isinstance(exception, MPI.Exception):
        exception = exception.__cause__ or exception.__context__
    return exception is not None


def _max_communicators() -> int:
    """Number of communicators that the library can have at a time."""
    # MPICH has 2,048 context identifiers for each process ("Too many communicators (0/2048 free on this process)"), and
    # uses some itself: 5.0.2 makes 2,045 copies of COMM_WORLD. Running out may also hang (pmodels/mpich issue 1768).
    # Open MPI has no such limit in practice.
    return 2000 if "MPICH" in MPI.Get_library_version().upper() else 30_000
