"""Base class of the worlds of processes: the leader (rank 0) sends commands to the others. Subclasses supply the channel.

A run has four steps, the same on every rank that takes part:

1. The leader sends a command: the payload, and whether the *last* run was clean.
2. Each rank frees what the last run made, or abandons it if that run was not clean. It could not decide this earlier.
3. It runs the body on exactly the ranks asked for.
4. It reports its outcome and statistics. The leader compares the statistics and decides whether the run was clean.
"""

from __future__ import annotations

import math
import pickle
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from adjointlab.worlds.current_run import CurrentRun
from adjointlab.worlds.elapsed import TIMES_IN_ALL, Elapsed
from adjointlab.worlds.forks import forks_cut_off, forks_ended
from adjointlab.worlds.heartbeat import Heartbeats, LastSeen
from adjointlab.worlds.interposition import Interposition
from adjointlab.worlds.interrupts import Interrupts, interrupt_by, signal_of
from adjointlab.worlds.pickling import PackedException, pack_outcome, unpack_outcome
from adjointlab.worlds.polling import Channel
from adjointlab.worlds.process_group import process_groups_of
from adjointlab.worlds.randomness import RandomStreams, global_streams
from adjointlab.worlds.run import Blocked, Outcome, Raised, Returned, Run
from adjointlab.worlds.schedule import Schedule
from adjointlab.worlds.shared_functions import BEFORE, DURING, FunctionsReplaced, refuse_replaced
from adjointlab.worlds.watchdog import Overdue, RaisingWatchdog, Watchdog, Watched, own_or_new
from adjointlab.worlds.world import Body, Cancelled, RankContext, Runner, WorldName, number_of_ranks

__all__ = ["COMMAND", "INTERRUPT", "REPORT", "Command", "Conclusion", "ProcessWorld", "any_raised"]

R = TypeVar("R")

_LEADER: Final = 0

COMMAND: Final = 1  # leader to follower: take part in this run; or: the leader is done
REPORT: Final = 2  # follower to leader: outcome and statistics of a run
INTERRUPT: Final = 5  # follower to leader: Ctrl-C

_LEAST_PATIENCE: Final = 2.0
_TIMES_SLOWEST: Final = 100
"""Once a run has hung, patience is this many times the slowest good run."""


class Command(NamedTuple):
    """Take part in a run of `ranks` ranks."""

    run: int
    ranks: int
    seed: int
    last_was_clean: bool
    patience: float
    payload: bytes  # empty for ranks that do not take part


class _Done(NamedTuple):
    """The leader has finished, with a result or an exception."""

    last_was_clean: bool
    result: bytes
    exception: PackedException | None


class _Report(NamedTuple):
    """Report of one rank on run `run`, for the leader."""

    run: int
    outcome: bytes
    statistics: Any


class Conclusion(NamedTuple):
    """The leader's conclusion about a run, and whether the communicators that it used can serve another."""

    run: Run
    is_clean: bool


class ProcessWorld(ABC):
    """The processes that `control` connects. The constructor is collective; `allgather` collects one object from each process.

    `patience` is how many seconds a call may wait, with no rank failing meanwhile, before it counts as blocked. Once
    a run has hung, patience is reduced to a hundred times the slowest good run so far, but at least two seconds: then
    shrinking a hang takes a bearable time. `expire` is passed to :class:`~adjointlab.worlds.watchdog.RaisingWatchdog`.
    """

    name: WorldName
    can_schedule = False
    can_revoke = True
    has_communicator = True

    def __init__(
        self,
        control: Channel,
        allgather: Callable[[object], list[Any]],
        patience: float,
        watchdog: Watchdog | None,
        expire: Callable[[], bool] = lambda: False,
    ) -> None:
        self.patience = patience
        self.watchdog = own_or_new(watchdog)
        self.ranks = control.size
        self.is_leader = control.rank == _LEADER
        self._channel, self._rank = control, control.rank
        self._streams = global_streams()
        self._lead = 0  # number of the current call of lead
        self._is_leading = False
        self._run = 0  # number of the current run
        self._ranks_of_last_run = 0  # 0 once what it made is freed or abandoned
        self._last_was_clean = True
        self._payload: object = None  # of the current run, on the leader
        self._current_patience = patience  # adapted to hangs
        self._about = ""  # subject of the last call of lead
        self._slowest = 0.0  # seconds of the slowest good run
        self._interrupts = Interrupts()
        self._heartbeats = Heartbeats(control.rank, allgather)
        self._watchdog_thread = RaisingWatchdog(self.watchdog, self._end_job, expire, self._heartbeats.beat)

    # Implemented by each world

    @property
    @abstractmethod
    def is_exhausted(self) -> bool:
        """See :class:`adjointlab.worlds.world.World`."""

    @abstractmethod
    def _begin_run(self, command: Command, patience: float) -> None:
        """Reset the counters for a new run."""

    @abstractmethod
    def _enter_run(self, command: Command) -> tuple[RankContext, CurrentRun]:
        """Return the context that the body is called with, and the run that redirected calls refer to."""

    @abstractmethod
    def _progress(self) -> object:
        """A value that changes with every call of the run; read by the watchdog's thread."""

    @abstractmethod
    def _note_raised(self, exception: BaseException) -> None:
        """Record that the body has raised."""

    @abstractmethod
    def _end_run(self, outcome: Outcome, watched: Watched | None) -> tuple[Outcome, Any]:
        """Return the outcome of this rank to report, and its statistics; notify the other ranks if it has failed."""

    @abstractmethod
    def _conclude(self, outcomes: tuple[Outcome, ...], statistics: Sequence[Any]) -> Conclusion:
        """Combine the reports of the ranks; called on the leader."""

    @abstractmethod
    def _finish_last_run(self, was_clean: bool) -> None:
        """Free the communicators of the last run, or abandon them if it was not clean."""

    @abstractmethod
    def _cut_off(self) -> None:
        """Make the run's communicators and open requests refuse every call; called in a child process that user code has forked."""

    @abstractmethod
    def _notify_failure(self) -> None:
        """Notify the other ranks of the run that this one has failed."""

    @abstractmethod
    def _end_job(self) -> None:
        """End the job, from any thread of any rank."""

    @abstractmethod
    def _refuse_if_exhausted(self) -> None:
        """Raise :class:`~adjointlab.worlds.world.Exhausted` if too few communicators are left for another run."""

    @abstractmethod
    def _look_around(self) -> None:
        """Serve other ranks between two polls of an idle wait."""

    # The interface

    def run(
        self,
        body: Body,
        payload: object = None,
        ranks: int | None = None,
        *,
        seed: int = 0,
        schedule: Schedule | None = None,
    ) -> Run:
        """Run `body` with `payload`, which may differ between processes; every process gets the outcomes of all ranks. Collective."""
        count = self.ranks if ranks is None else ranks
        return self.lead(lambda context, _: body(context, payload), lambda run: run(None, count, seed=seed))

    def lead(self, body: Body, conduct: Callable[[Runner], R], about: str = "") -> R:
        """Execute ``conduct(run)`` on the leader; every process returns its result or raises its exception. Collective."""
        if self._is_leading:
            raise RuntimeError(
                "lead and run cannot be called from within a run or a conduct of the same world"
            )
        self._is_leading = True
        self._lead += 1
        self._watchdog_thread.start()
        try:
            with Interrupts() as self._interrupts, self._watchdog_thread.signal_handler():
                return self._conduct(body, conduct, about) if self.is_leader else self._follow(body)
        finally:
            self._is_leading = False

    def share(self, value: R) -> R:
        """Return the leader's value on every process. Collective."""
        return self.lead(lambda context, _: None, lambda run: value, self._about)

    # The leader

    def _conduct(self, body: Body, conduct: Callable[[Runner], R], about: str) -> R:
        # Ctrl-C is raised only while user code runs, and held back while the ranks exchange messages, so that every rank
        # receives the same sequence of commands to its end.
        def run(payload: object, ranks: int, *, seed: int = 0, schedule: Schedule | None = None) -> Run:
            with self.watchdog.during_run():
                self._interrupts.hold()
                try:
                    return self._command(body, payload, ranks, seed)
                finally:
                    self._interrupts.allow()

        # Patience that another subject has reduced does not apply to this one. For further checks of the same subject it stays
        # reduced: if the subject hangs, each check would otherwise wait as long as the first.
        if not about or about != self._about:
            self._current_patience = self.patience
        self._about = about
        try:
            try:
                self._interrupts.allow()
                with self.watchdog.drawing(self._watchdog_thread):
                    result = conduct(run)
            finally:
                self._interrupts.hold()
            self._heed_followers()
            # A result that cannot be pickled is an exception on every rank, so pickling comes before the message.
            pickled = pickle.dumps(result, pickle.HIGHEST_PROTOCOL) if self.ranks > 1 else b""
        except BaseException as exception:
            self._interrupts.hold()  # again: an interrupt may have come just before the first call
            self._interrupts.pending = False
            self._finish(_Done(self._last_was_clean, b"", PackedException.of(exception)))
            raise
        self._finish(_Done(self._last_was_clean, pickled, None))
        return result

    def _finish(self, done: _Done) -> None:
        self._channel.send_to_others(done, COMMAND)
        # The process may end right after this, and a message that has not been sent by then is lost.
        self._channel.flush()
        self._finish_last_run(done.last_was_clean)

    def _command(self, body: Body, payload: object, ranks: int, seed: int) -> Run:
        if not 1 <= number_of_ranks(ranks) <= self.ranks:
            raise ValueError(
                f"ranks is {ranks}; this world has processes for 1 to {self.ranks}: start more of them, or ask for fewer"
            )
        self._heed_followers()
        self._refuse_if_exhausted()
        # Pickling may raise, so it comes first: once a command is sent, its reports must be received.
        pickled = pickle.dumps(payload, pickle.HIGHEST_PROTOCOL)
        self._payload = payload
        command = Command(self._run + 1, ranks, seed, self._last_was_clean, self._current_patience, pickled)
        for rank in range(1, self.ranks):
            sent = command if rank < ranks else command._replace(payload=b"")
            self._channel.send(sent, rank, COMMAND)
        self._finish_last_run(command.last_was_clean)
        self._last_was_clean = False  # until the reports show that it was
        started = time.monotonic()
        outcome, statistics = self._take_part(command, body)
        reports = [self._report_of(rank) for rank in range(1, ranks)]
        outcomes = (
            outcome,
            *(unpack_outcome(report.outcome, rank) for rank, report in enumerate(reports, 1)),
        )
        concluded = self._conclude(outcomes, (statistics, *(report.statistics for report in reports)))
        self._last_was_clean = concluded.is_clean
        self._adapt_patience(concluded.run.outcomes, time.monotonic() - started)
        self._heed_interrupted(outcomes)
        return concluded.run

    def _adapt_patience(self, outcomes: tuple[Outcome, ...], seconds: float) -> None:
        if math.isinf(self.patience):
            return
        if all(isinstance(outcome, Returned) for outcome in outcomes):
            self._slowest = max(self._slowest, seconds)
        elif any(isinstance(outcome, Blocked) for outcome in outcomes) or any_raised(outcomes, Overdue):
            adapted = max(_LEAST_PATIENCE, _TIMES_SLOWEST * self._slowest)
            self._current_patience = min(self.patience, adapted)

    def _report_of(self, rank: int) -> _Report:
        limit = self.watchdog.seconds(self._current_patience)
        # As long as Python runs in that rank, its own watchdog ends a run that takes too long, and can name the line. So
        # this limit is longer.
        silent_limit = limit + 2 * self.watchdog.grace(limit) + _LEAST_PATIENCE
        silence = Elapsed()

        # Ctrl-C may have reached this process alone, and the others may be waiting for each other: it cancels them.
        look_around = self._idle(on_interrupt=self._notify_failure)

        def between(waited: float) -> None:
            look_around(waited)
            seen = self._heartbeats.last_seen(rank)
            silence.look(threading.get_native_id(), None if seen is None else seen.at)
            if silence.idle > (silent_limit if seen is not None else TIMES_IN_ALL * silent_limit):
                self._report_silent(rank, silence.idle, seen)
                self._end_job()

        while True:
            report: _Report = self._channel.receive(rank, REPORT, between)
            # The report of an earlier run may still arrive, if a second Ctrl-C made the leader leave that run.
            if report.run == self._run:
                return report

    def _report_silent(self, rank: int, seconds: float, seen: LastSeen | None) -> None:
        """Store the case of a rank that does not answer, without a stack: that of this process is unrelated."""
        known = "nothing more is known of it" if seen is None else str(seen)
        late = f"rank {rank} did not return, and could not be asked where it is for {seconds:.0f} s: {known}"
        self.watchdog.say(f"\nadjointlab: {late}\n")
        self.watchdog.store_overdue(self._payload, late, "")

    def _heed_followers(self) -> None:
        """Raise the interrupt that a follower received while it waited outside a run, if there is one."""
        number = 0
        for rank in range(1, self.ranks):
            while (message := self._channel.poll(rank, INTERRUPT)) is not None:
                lead, received = message
                # An interrupt sent during an earlier lead is stale: that lead has ended on all ranks.
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
        # After a Ctrl-C this process must not leave alone: it asks the leader to end the lead on all ranks.
        between = self._idle(
            on_interrupt=lambda: self._channel.send((self._lead, self._interrupts.number), _LEADER, INTERRUPT)
        )
        while True:
            command: Command | _Done = self._channel.receive(_LEADER, COMMAND, between)
            self._finish_last_run(command.last_was_clean)
            if isinstance(command, _Done):
                break
            self._run, self._ranks_of_last_run = command.run, command.ranks
            if self._rank < command.ranks:
                outcome, statistics = self._take_part(command, body)
                pickled = pack_outcome(outcome, self._rank)
                report = _Report(command.run, pickled, statistics)
                self._channel.send(report, _LEADER, REPORT)
        if command.exception is not None:
            self._interrupts.pending = False
            exception = command.exception.unpack()
            if isinstance(exception, KeyboardInterrupt):
                self._interrupts.note(signal_of(exception))
            raise exception
        return pickle.loads(command.result)  # noqa: S301 - from our own leader

    # Every rank

    def _take_part(self, command: Command, body: Body) -> tuple[Outcome, Any]:
        self._run, self._ranks_of_last_run = command.run, command.ranks
        limit = self.watchdog.seconds(command.patience)
        # Half the watchdog's limit, so that an overlong wait is revoked and reported before the watchdog interrupts the rank.
        self._begin_run(command, min(command.patience, limit / 2))
        streams = RandomStreams(self._streams, command.seed, command.ranks)
        streams.enter(self._rank)
        outcome, watched = self._executed(command, body, limit)
        streams.leave()
        # An interrupt takes precedence over any other outcome: it ends all ranks.
        is_interrupted = any_raised((outcome,), KeyboardInterrupt)
        try:
            refuse_replaced(DURING)
        except FunctionsReplaced as problem:
            if not is_interrupted:
                outcome = Raised.of(problem)
        has_answered = is_interrupted or any_raised((outcome,), Overdue)
        if watched is not None and watched.has_fired and not has_answered:
            # User code has swallowed the exception, so its results are meaningless.
            outcome = Raised.overdue(watched.overdue(), watched.stack)
        return self._end_run(outcome, watched)

    def _executed(self, command: Command, body: Body, limit: float) -> tuple[Outcome, Watched | None]:
        """Execute `body` for at most `limit` seconds; return its outcome, and its :class:`Watched` if it was started."""
        interrupts = self._interrupts
        watched: Watched | None = None
        try:
            payload = pickle.loads(command.payload)  # noqa: S301 - from our own leader
            refuse_replaced(BEFORE)
            context, current = self._enter_run(command)
            with (
                Interposition(current),
                process_groups_of(current, command.ranks),
                forks_cut_off(self._cut_off),
            ):
                try:
                    interrupts.allow()
                    who = f"rank {context.rank}"
                    watching = self._watchdog_thread.watch(who, payload, limit, self._progress)
                    with watching as watched, forks_ended(who):
                        return Returned(body(context, payload)), watched
                finally:
                    interrupts.hold()
        except Cancelled:
            return Returned(None), watched  # a placeholder: _end_run knows why the rank was cancelled
        except BaseException as exception:
            interrupts.hold()  # again: an interrupt may have come just before the first call
            if isinstance(exception, KeyboardInterrupt) and not interrupts.have_come:
                outcome = Raised.of_no_signal(exception)
            else:
                outcome = Raised.of(exception)
            self._note_raised(exception)
            return outcome, watched

    def _idle(self, on_interrupt: Callable[[], None]) -> Callable[[float], None]:
        """Return the function that a wait outside user code calls between polls: it serves other ranks, and reacts to Ctrl-C once."""
        has_reacted = False

        def between(waited: float) -> None:
            nonlocal has_reacted
            self._look_around()
            if self._interrupts.pending and not has_reacted:
                has_reacted = True
                on_interrupt()

        return between


def any_raised(outcomes: Sequence[Outcome], kind: type[BaseException]) -> bool:
    """Return True if some rank raised an exception of that `kind`."""
    return any(isinstance(outcome, Raised) and outcome.is_a(kind) for outcome in outcomes)
