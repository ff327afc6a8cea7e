"""One scheduler: ranks take turns, and a rank runs until it blocks, polls or ends.

Exactly one rank runs at a time, so a run is determined by the body and the strategy that picks the next
(:mod:`adjointlab.worlds.schedules`). When no rank can run, and no message is still on its way, none ever will: the
scheduler asks its judge, and calls the ranks out of their waits. A rank that is called out leaves its call by
:class:`Cancelled`.
"""

from __future__ import annotations

import _thread
import ctypes
from collections import deque
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, Protocol

from adjointlab.worlds.randomness import RandomStreams
from adjointlab.worlds.simulated.calls import SimulatedCall
from adjointlab.worlds.simulated.schedules.strategy import Strategy
from adjointlab.worlds.simulated.threads import Worker, WorkerPool
from adjointlab.worlds.world import Cancelled, Dead, Matched, Outcome

__all__ = ["Judge", "Pending", "Scheduler", "Task"]

FRUITLESS_POLLS = 1000
"""So often must every rank that is not blocked have polled, with nothing moving anywhere, before it is a livelock."""

GRACE = 2.0
"""Seconds that an interrupted rank has to leave; a thread that does not is left behind."""


class Pending:
    """Something that a rank can wait for."""

    __slots__ = ("call", "done", "task", "watched")

    def __init__(self, task: Task, call: SimulatedCall) -> None:
        self.task = task
        self.call = call
        self.done = False
        self.watched = False

    def waits_for(self) -> tuple[int, ...]:
        """The ranks that could bring it about."""
        return ()

    def finish(self) -> Any:
        """It has happened, and its owner takes its buffers back; the result."""

    def misuse(self) -> str:
        """Asked before :meth:`finish`: what its owner has done to buffers that were not its own; empty if nothing."""
        return ""

    @property
    def envelope(self) -> tuple[int, int, int] | None:
        """Source, tag and bytes of the message received, if one was."""
        return None


class Task:
    """What the scheduler knows of one rank."""

    __slots__ = (
        "blocked",
        "call",
        "cancelled_as",
        "fruitless",
        "missing",
        "outcome",
        "rank",
        "seen",
        "since",
        "waiting",
        "worker",
    )

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.worker: Worker | None = None  # None before it starts
        self.outcome: Outcome | None = None  # None before it ends
        self.cancelled_as: Outcome | None = None  # the outcome of a rank that is being called out
        self.blocked = False
        self.missing = 0  # how many of `waiting` must still happen
        self.waiting: Sequence[Pending] = ()
        self.call: SimulatedCall | None = None  # where it waits or polls
        self.seen = -1  # the state of things at its last poll
        self.fruitless = 0  # how often it has polled in this state of things
        self.since = 0.0  # when it did so first


class Judge(Protocol):
    """Who decides what it means that nothing moves any more."""

    def nobody_can_run(self, blocked: list[Task]) -> None:
        """Dooms ranks."""

    def nobody_gets_on(self, stuck: list[Task], seconds: float) -> None:
        """Dooms ranks, if that has lasted for long enough."""


class Scheduler:
    """Runs `rank_main` once for each rank; see the module."""

    def __init__(
        self,
        size: int,
        pool: WorkerPool,
        streams: RandomStreams,
        strategy: Strategy,
        judge: Judge,
        rank_main: Callable[[Task], Outcome],
    ) -> None:
        self.tasks = [Task(rank) for rank in range(size)]
        self.current = self.tasks[0]
        self.matched: list[Matched] = []
        self._idle = (
            -1
        )  # the state of things in which all have polled in vain so often that turns do not matter
        self.progress = 0  # counts everything that could help a waiting or polling rank
        self._pool = pool
        self._streams = streams
        self._strategy = strategy
        self._orderly = strategy.orderly
        self.delayed: list[Callable[[], None]] = []  # deliver what was held back
        self._judge = judge
        self._rank_main = rank_main
        self._ready: deque[Task] = deque(self.tasks)
        self._unfinished = size
        self._over = _thread.allocate_lock()
        self._crash: BaseException | None = None
        self._interrupted = False
        self.meanwhile: Callable[[], None] = lambda: (
            None
        )  # is called now and then on the thread that waits for all

    # What the world calls

    def run(self) -> tuple[Outcome, ...]:
        """Run all ranks to their ends; their outcomes."""
        self._over.acquire()
        first = self._next()
        self.current = first
        try:
            self._streams.enter(first.rank)
            first.worker = self._pool.take(self._work)
            self._resume(first)
            # Ctrl-C just before a wait without end would go unnoticed until its end.
            while not self._over.acquire(timeout=0.5):
                self.meanwhile()
        except KeyboardInterrupt:
            self._interrupt()
            raise
        finally:
            self._streams.leave()
        if self._crash is not None:
            raise self._crash
        return tuple(task.outcome for task in self.tasks if task.outcome is not None)

    # What the communicator calls, on the thread of the running rank

    def enter(self, task: Task) -> None:
        """A call begins: see whether `task` may make it, and perhaps let others go first."""
        if self._interrupted:
            self._call_all_out()
        if task.cancelled_as is not None:
            raise Cancelled
        if task is not self.current or task.outcome is not None:
            if task.outcome is not None:
                raise RuntimeError("this communicator belongs to a run that is over")
            raise RuntimeError(
                f"rank {self.current.rank} uses the communicator of rank {task.rank}: the simulated ranks are threads "
                "and share module-level state; keep the communicator in the operator"
            )
        if not self._orderly and self._idle != self.progress and self._strategy.gives_way(task, self._ready):
            self.yield_processor(task)

    def wait(
        self, task: Task, pending: Sequence[Pending], call: SimulatedCall, need: int | None = None
    ) -> None:
        """Block `task` until `need` (default: all) of `pending` have happened."""
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
            for each in missing:
                each.watched = False
        if task.cancelled_as is not None:
            raise Cancelled

    def complete(self, pending: Pending) -> None:
        """`pending` has happened."""
        pending.done = True
        self.progress += 1
        if pending.watched:
            pending.watched = False
            task = pending.task
            task.missing -= 1
            if task.missing == 0 and task.blocked:
                task.blocked = False
                self._ready.append(task)

    def polled(self, task: Task, call: SimulatedCall) -> None:
        """`task` asked in vain: let the others run."""
        if task.seen != self.progress:
            task.seen = self.progress
            task.fruitless = 0
            task.since = perf_counter()
        task.fruitless += 1
        task.call = call
        self._strategy.polled(task)
        if self.delayed:
            self.deliver_delayed()
        if task.fruitless % FRUITLESS_POLLS == 0:
            moving = [each for each in self.tasks if each.outcome is None and not each.blocked]
            if all(each.seen == self.progress and each.fruitless >= FRUITLESS_POLLS // 2 for each in moving):
                self._idle = self.progress
                # Each has had its share of the time only.
                seconds = (perf_counter() - max(each.since for each in moving)) / len(moving)
                self._judge.nobody_gets_on([each for each in self.tasks if each.outcome is None], seconds)
        self.yield_processor(task)

    def yield_processor(self, task: Task) -> None:
        """Let others run first."""
        self._ready.append(task)
        self._hand_over(task)
        if task.cancelled_as is not None:
            raise Cancelled

    def cancel(self, task: Task, outcome: Outcome) -> None:
        """Call `task` out of the call that it is in or makes next; `outcome` will be its outcome."""
        if task.cancelled_as is None and task.outcome is None:
            task.cancelled_as = outcome
            if task.blocked:
                task.blocked = False
                self._ready.append(task)

    def deliver_delayed(self) -> None:
        """Let all messages arrive."""
        delayed, self.delayed = self.delayed, []
        for deliver in delayed:
            deliver()

    # Taking turns

    def _next(self) -> Task:
        ready = self._ready
        if self._interrupted:
            self._call_all_out()
        if not ready and self.delayed:
            self.deliver_delayed()
        if not ready:
            self._judge.nobody_can_run([task for task in self.tasks if task.blocked])
        if self._idle == self.progress:
            return (
                ready.popleft()
            )  # no decision, so that the record of a schedule does not grow with the seconds
        return self._strategy.next(ready)

    def _hand_over(self, task: Task) -> None:
        following = self._next()
        if following.worker is None:
            following = self._started(following)
        if following is task:
            return
        self.current = following
        self._streams.swap(task.rank, following.rank)
        worker = task.worker
        assert worker is not None
        self._resume(following)
        worker.lock.acquire()

    def _started(self, task: Task) -> Task:
        """`task` on a thread; if there is none, the run is over, and one of those that are called out."""
        without: list[Task] = []  # they will end on the threads of others
        while task.worker is None:
            try:
                task.worker = self._pool.take(self._work)
            except RuntimeError as error:
                self._crash = error
                for each in self.tasks:
                    self.cancel(each, Dead(str(error)))
                without.append(task)
                task = self._next()
        self._ready.extend(without)
        return task

    def _resume(self, task: Task) -> None:
        assert task.worker is not None
        task.worker.lock.release()

    def _work(self, worker: Worker) -> None:
        """Run the current rank on this thread, and then those that have not begun when their turns come."""
        try:
            task: Task | None = self.current
            while task is not None:
                task.worker = worker
                outcome = self._rank_main(task)
                task.outcome = task.cancelled_as or outcome
                task = self._finish(worker)
        except BaseException as crash:
            # Ours, not the user's: the rank's rank_main catches everything. Nobody else would ever wake the caller.
            self._crash = crash
            self._over.release()

    def _finish(self, worker: Worker) -> Task | None:
        self.progress += 1
        self._unfinished -= 1
        if self._unfinished == 0:
            self._pool.give(worker)
            self._over.release()
            return None
        following = self._next()
        self.current = following
        self._streams.swap(None, following.rank)
        if following.worker is None:
            return following
        self._pool.give(worker)
        following.worker.lock.release()
        return None

    def raise_in_current(self, exception: type[BaseException]) -> None:
        """Raise `exception` in the rank that runs now, as soon as it executes Python again."""
        worker = self.current.worker
        if worker is not None:
            raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
            raise_in(ctypes.c_ulong(worker.thread.ident or 0), ctypes.py_object(exception))

    def _interrupt(self) -> None:
        """Have all ranks called out, the running one by an exception if it does not come by itself."""
        # Only a flag: the running rank is between any two instructions of its own.
        self._interrupted = True
        if self._over.acquire(timeout=GRACE / 10):
            return
        worker = self.current.worker
        if worker is not None and worker.thread.ident is not None:
            raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
            raise_in(ctypes.c_ulong(worker.thread.ident), ctypes.py_object(Cancelled))
        self._over.acquire(timeout=GRACE)

    def _call_all_out(self) -> None:
        for task in self.tasks:
            self.cancel(task, Dead("interrupted"))
