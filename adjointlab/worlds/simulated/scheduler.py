"""Scheduler of the simulated world: ranks take turns, and a rank runs until it blocks, polls or ends.

Each rank is a :class:`Task`. It starts on a new thread or on that of a rank that has ended, and keeps it to its end.
Exactly one thread runs at a time. That makes a run deterministic, given the strategy that picks the next rank; and no
locks are needed: the running thread owns the scheduler, the mailboxes and all other state that ranks share. A task switch
goes like this::

    thread of rank 0 (running)                  thread of rank 1 (blocked in its worker's lock)

    wait(): nothing has arrived
    pick rank 1, swap the random streams
    release rank 1's lock         --------->    returns from acquire(), runs
    acquire its own lock                        ...
    (blocked)                     <---------    hands over in the same way

Between its last two steps rank 0 runs concurrently with rank 1, so there it must not touch shared state. If rank 1 hands back
before rank 0 has reached `acquire`, the lock is free already and `acquire` returns at once: any thread may release a lock
of `_thread`, which acts as a binary semaphore, so no wake-up is lost.

If no rank can run, and no message is in transit, the run is stuck. Then a :class:`StuckHandler` diagnoses it and
cancels ranks: :class:`~adjointlab.worlds.world.Cancelled` is raised in the call of each, so that ``finally`` blocks of user code
run and the threads can be reused.
"""

from __future__ import annotations

import _thread
import ctypes
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn, Protocol

from adjointlab.worlds.backward import BackwardPass
from adjointlab.worlds.call_sites import SimulatedCall
from adjointlab.worlds.held_collections import HeldCollections
from adjointlab.worlds.randomness import RandomStreams
from adjointlab.worlds.run import Dead, Finding, Matched, Outcome, Returned
from adjointlab.worlds.simulated.moment import Moment
from adjointlab.worlds.simulated.schedules.strategy import Strategy
from adjointlab.worlds.simulated.workers import Worker, WorkerPool
from adjointlab.worlds.world import Cancelled

__all__ = ["IN_ANOTHER_THREAD", "Pending", "Scheduler", "StuckHandler", "Task"]


IN_ANOTHER_THREAD: Final = (
    "a thread that user code has started communicates while its rank waits: simulated ranks communicate in one thread at a time. "
    "Communicate in the thread that calls the operator, or check this under mpiexec"
)


FRUITLESS_POLLS = 1000
"""Fruitless polls after which all ranks are examined for a livelock: most loops that terminate poll less often."""

GRACE = 2.0
"""Seconds that an interrupted rank has to end; after that, its thread is abandoned."""


_ENDED: Final = Returned(None)
"""Replaces the outcomes of ranks after the run."""


class Pending:
    """An operation that a rank can wait for."""

    __slots__ = ("application", "call", "done", "task", "watched")

    def __init__(self, task: Task, call: SimulatedCall) -> None:
        self.task = task
        self.call = call
        self.application = task.applications
        self.done = False
        self.watched = False  # True if its task is blocked and waits for this

    def waits_for(self) -> tuple[int, ...]:
        """Ranks that could complete it."""
        return ()

    def finish(self) -> Any:
        """Release its buffers to user code, once it is done; return its result."""

    def misuse(self) -> str:
        """Describe misuse of the buffers by user code before :meth:`finish`; empty if there was none."""
        return ""

    @property
    def envelope(self) -> tuple[int, int, int] | None:
        """Source, tag and size in bytes of the message received, if one was."""
        return None


@dataclass(slots=True, eq=False)
class Task:
    """State of one rank."""

    rank: int
    worker: Worker | None = None  # None before it starts
    outcome: Outcome | None = None  # None before it ends
    # Its outcome once it is cancelled, even if user code swallows `Cancelled`.
    cancelled_as: Outcome | None = None
    blocked: bool = False
    waiting: Sequence[Pending] = ()  # the operations that it is blocked in
    missing: int = 0  # how many of `waiting` must still be done before it can run
    call: SimulatedCall | None = None  # in which it waits or polls
    polled_at: int | None = None  # Scheduler.progress at its last poll
    fruitless: int = 0  # number of fruitless polls since then
    polling_since: Moment | None = None
    # The function of user code from which it returned last.
    returned_from: Callable[..., object] | None = None
    backward: BackwardPass | None = None  # the latest one
    applications: int = 0  # ended applications of the operator under test


class StuckHandler(Protocol):
    """Handles ranks that make no progress."""

    def on_deadlock(self, blocked: list[Task]) -> None:
        """No rank can run: cancel some of `blocked`, the ranks that have not ended."""

    def on_livelock(self, stuck: list[Task], seconds: float) -> None:
        """Those of `stuck` that are not blocked have polled without success for `seconds` each: cancel some if that is long enough."""


class Scheduler:
    """Runs `rank_main` once for each rank; `strategy` decides which rank runs next."""

    def __init__(
        self,
        size: int,
        pool: WorkerPool,
        streams: RandomStreams,
        strategy: Strategy,
        stuck_handler: StuckHandler,
        rank_main: Callable[[Task], Outcome],
    ) -> None:
        self.tasks = [Task(rank) for rank in range(size)]
        self.current = self.tasks[0]
        self.matched: list[Matched] = []
        # The first match of calls from different applications. It is reported only if the run completes: otherwise it is a
        # consequence of a missing call, like the deadlock.
        self.crossed: list[Finding] = []
        self.progress = 0  # counts every event that could help a blocked or polling rank
        # Functions, each of which delivers the messages that one mailbox holds back.
        self.delayed: list[Callable[[], None]] = []
        # Called periodically on the thread that waits for the run.
        self.while_waiting: Callable[[], None] = lambda: None
        self._ready: deque[Task] = deque(self.tasks)  # without duplicates and without the running task
        self._unfinished = size
        # The value of `progress` at which all ranks that are not blocked were found polling without success.
        self._idle_at: int | None = None
        self._pool = pool
        self.streams = streams
        self._strategy = strategy
        self._preemptive = not strategy.orderly
        self._stuck_handler = stuck_handler
        self._rank_main = rank_main
        self._over = _thread.allocate_lock()  # held while the run lasts
        self._crash: BaseException | None = None
        self.is_called_elsewhere = (
            False  # True if a thread started by user code called while its rank was blocked
        )
        self._interrupted = False
        self._collections = HeldCollections()

    # Called by the world, on the caller's thread

    def run(self) -> tuple[Outcome, ...]:
        """Run all ranks to completion, and return their outcomes."""
        self._over.acquire()
        first = self._next()
        self.current = first
        try:
            self.streams.enter(first.rank)
            first.worker = self._pool.take(self._work)
            first.worker.lock.release()
            # With a time-out, because Python runs signal handlers between bytecode instructions of the main thread: a Ctrl-C that
            # arrives just before an unbounded wait would take effect only when the run is over, or never.
            while not self._over.acquire(timeout=0.5):
                self.while_waiting()
        except BaseException:
            # Raised by Ctrl-C, or by another signal handler, such as one that limits a test's time.
            self._interrupt()
            raise
        finally:
            self.streams.leave()
            self._collections.release()
        if self._crash is not None:
            raise self._crash
        outcomes = tuple(task.outcome for task in self.tasks if task.outcome is not None)
        self._leave_no_cycles()
        return outcomes

    def _leave_no_cycles(self) -> None:
        """Break reference cycles through this object, so that a finished run is freed at once, not by a later garbage collection."""
        del self._rank_main, self._stuck_handler, self.while_waiting
        for task in self.tasks:
            task.outcome = _ENDED  # the outcome may refer to the rank's communicator

    def raise_in(self, task: Task, exception: type[BaseException], outcome: Outcome | None = None) -> None:
        """Raise `exception` in `task`, which is running; its outcome will be `outcome`, if one is given.

        CPython has no other way to interrupt a thread. The exception is raised between two bytecode instructions: a thread in a
        C call gets it only when the call returns.
        """
        # This is another thread, so ranks may switch meanwhile: then a waiting rank gets the exception when it runs next.
        worker = task.worker
        if worker is not None and worker.thread.ident is not None:
            if outcome is not None and task.outcome is None:
                task.cancelled_as = task.cancelled_as or outcome
            # The exception may be delivered so late that the thread is in another run, so it must not be reused.
            worker.is_spent = True
            self._collections.hold()
            raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
            raise_in(ctypes.c_ulong(worker.thread.ident), ctypes.py_object(exception))

    # Called by communicators and requests, on the thread of the running rank

    def enter(self, task: Task) -> None:
        """Begin a call of `task`: raises if calls are not allowed, and lets other ranks run first if the strategy decides so."""
        if self._interrupted:
            self._cancel_all()
        if task.cancelled_as is not None:
            raise Cancelled  # again, if user code has swallowed the first one
        if task.blocked or task is not self.current or task.outcome is not None:
            self.refuse(task)
        # If all ranks poll without success, the strategy is not asked, for the reason given in `_next`.
        if self._preemptive and self._idle_at != self.progress and self._strategy.preempts(task, self._ready):
            self._yield(task)

    def refuse(self, task: Task) -> NoReturn:
        """Raise: a communicator of `task` is used while another task runs, or by another thread while `task` waits."""
        thread = threading.current_thread()
        owner = next((each for each in self.tasks if each.worker and each.worker.thread is thread), None)
        if task.outcome is None and (owner is None or (owner is task and task.blocked)):
            self.is_called_elsewhere = True
            raise RuntimeError(IN_ANOTHER_THREAD)
        if self.current.outcome is None:
            problem = f"rank {self.current.rank} uses the communicator of rank {task.rank}"
        else:
            problem = "this communicator belongs to a run that is over, and something has kept it"
        raise RuntimeError(
            f"{problem}: the simulated ranks are threads and share module-level state and what functools.cache or lru_cache remembers, "
            "as processes do not; keep the communicator, and what is made from it, in the operator, or name the module that keeps it in the "
            "subject's rank_local"
        )

    def wait(
        self, task: Task, pending: Sequence[Pending], call: SimulatedCall, need: int | None = None
    ) -> None:
        """Block `task` until `need` (default: all) of `pending` are done."""
        if task.cancelled_as is not None:
            raise Cancelled
        missing = [each for each in pending if not each.done]
        needed = len(missing) if need is None else need - (len(pending) - len(missing))
        if needed <= 0:
            return
        for each in missing:
            each.watched = True
        task.missing = needed
        task.waiting = missing
        task.call = call
        task.blocked = True
        self._hand_over(task)
        task.waiting = ()
        if need is not None:
            # Those that are not done yet must not count when the task blocks in another call.
            for each in missing:
                each.watched = False
        if task.cancelled_as is not None:
            raise Cancelled

    def note_event(self) -> None:
        """Count an event that could help a blocked or polling rank."""
        self.progress += 1

    def complete(self, pending: Pending) -> None:
        """Mark `pending` as done; its task becomes ready if it waits for nothing else."""
        pending.done = True
        self.note_event()
        if pending.watched:
            pending.watched = False
            task = pending.task
            task.missing -= 1
            # A cancelled task is no longer blocked, and already in `_ready`.
            if not task.missing and task.blocked:
                task.blocked = False
                self._ready.append(task)

    def polled(self, task: Task, call: SimulatedCall) -> None:
        """Let other ranks run after an unsuccessful poll of `task` in `call`.

        A rank that polls is never blocked, so a livelock is detected by its polls: they count as fruitless as long as no event
        occurs that could change the answer.
        """
        if task.polled_at != self.progress:
            task.polled_at = self.progress
            task.fruitless = 0
            task.polling_since = Moment.now()
        task.fruitless += 1
        task.call = call
        self._strategy.polled(task)
        if self.delayed:
            # It may be polling for these messages, which MPI guarantees to arrive eventually.
            self.deliver_delayed()
        if task.fruitless % FRUITLESS_POLLS == 0:
            self._check_for_livelock()
        self._yield(task)

    def cancel(self, task: Task, outcome: Outcome) -> None:
        """Cancel the current or next call of `task`; `outcome` will be its outcome."""
        if task.outcome is None:
            task.cancelled_as = task.cancelled_as or outcome
            if task.blocked:
                task.blocked = False
                self._ready.append(task)

    def deliver_delayed(self) -> None:
        """Deliver all messages that were held back."""
        delayed, self.delayed = self.delayed, []
        for deliver in delayed:
            deliver()

    # Taking turns

    def _yield(self, task: Task) -> None:
        self._ready.append(task)
        self._hand_over(task)
        if task.cancelled_as is not None:
            raise Cancelled

    def _check_for_livelock(self) -> None:
        moving = [each for each in self.tasks if each.outcome is None and not each.blocked]
        # Half as many polls as the calling rank: a random schedule does not give all ranks the same share of turns.
        if all(each.polled_at == self.progress and each.fruitless >= FRUITLESS_POLLS // 2 for each in moving):
            self._idle_at = self.progress
            # Polling ranks take turns, so each has had its share of the time since the last of them began. A loop with a
            # time-out must be given that time in its own turns.
            began = max(each.polling_since for each in moving if each.polling_since is not None)
            seconds = began.until(Moment.now()) / len(moving)
            self._stuck_handler.on_livelock([each for each in self.tasks if each.outcome is None], seconds)

    def _next(self) -> Task:
        """Remove the rank that runs next from those that are ready."""
        ready = self._ready
        if self._interrupted:
            self._cancel_all()
        if not ready and self.delayed:
            self.deliver_delayed()
        if not ready:
            self._stuck_handler.on_deadlock([task for task in self.tasks if task.blocked])
        if self._idle_at == self.progress:
            # All poll without success, so their order does not matter. The strategy is not asked, because the record of its
            # decisions would grow with the time until the livelock is certain, and differ between runs.
            return ready.popleft()
        return self._strategy.next(ready)

    def _hand_over(self, task: Task) -> None:
        """Let the next rank run, and return when `task` is to run again."""
        following = self._next()
        if following.worker is None:
            following = self._started(following)
        if following is task:
            return
        self.current = following
        self.streams.swap(task.rank, following.rank)
        assert task.worker is not None
        assert following.worker is not None
        following.worker.lock.release()
        # From here on the other thread runs, until this lock is released.
        task.worker.lock.acquire()

    def _started(self, task: Task) -> Task:
        """Give `task` a thread and return it; if no thread can be started, cancel the run and return another task."""
        without_thread: list[Task] = []
        while task.worker is None:
            try:
                task.worker = self._pool.take(self._work)
            except RuntimeError as error:
                self._crash = error
                for each in self.tasks:
                    self.cancel(each, Dead(str(error)))
                without_thread.append(task)
                task = self._next()
        # They are cancelled, so they end at once, on the threads of ranks that end before them (see _work).
        self._ready.extend(without_thread)
        return task

    def _work(self, worker: Worker) -> None:
        """Run the current rank on this thread, and after it other ranks that have not started."""
        try:
            task: Task | None = self.current
            while task is not None:
                task.worker = worker
                outcome = self._rank_main(task)
                task.outcome = task.cancelled_as or outcome
                task = self._finish(worker)
        except BaseException as crash:
            # A bug in the lab, since `rank_main` catches all exceptions of user code. It must be passed to the thread in `run`,
            # which would wait for ever otherwise.
            self._crash = crash
            self._over.release()

    def _finish(self, worker: Worker) -> Task | None:
        """Hand over after the end of a rank; return the next rank if it has no thread yet, to run on this one."""
        if worker.is_spent:
            self._put_right()
        self.note_event()
        self._unfinished -= 1
        if not self._unfinished:
            self._pool.give(worker)
            self._over.release()
            return None
        following = self._next()
        self.current = following
        self.streams.swap(None, following.rank)
        if following.worker is None:
            return following
        # Before the release, after which this thread must not touch shared state. The next rank may start another one on this
        # worker at once: its lock is a semaphore, so the worker finds the job when it returns to its loop.
        self._pool.give(worker)
        following.worker.lock.release()
        return None

    def _put_right(self) -> None:
        """Repair the lists after an asynchronous exception, which may have interrupted a hand-over.

        The rank that it has ended may still be in the ready list or marked as blocked, and the rank to run next may be in neither state.
        """
        for each in self.tasks:
            each.blocked = each.blocked and each.outcome is None
        self._ready = deque(each for each in self.tasks if each.outcome is None and not each.blocked)

    def _interrupt(self) -> None:
        """Cancel all ranks after a Ctrl-C, which was raised in the thread that waits for them."""
        # Only a flag, which the running rank checks in its next call, because the lists belong to its thread.
        self._interrupted = True
        if not self._over.acquire(timeout=GRACE / 10):
            # The running rank is in a long computation, or in a loop without calls.
            self.raise_in(self.current, Cancelled)
            self._over.acquire(timeout=GRACE)

    def _cancel_all(self) -> None:
        for task in self.tasks:
            self.cancel(task, Dead("interrupted"))
