"""One scheduler: ranks take turns, and a rank runs until it blocks, polls or ends.

Exactly one rank runs at a time, so a run is determined by the body and the strategy that picks the next
(:mod:`adjointlab.worlds.schedules`). When no rank can run, and no message is still on its way, none ever will: the
scheduler asks its judge, and calls the ranks out of their waits. A rank that is called out leaves its call by
:class:`Unwound`.
"""

from __future__ import annotations

import _thread
import ctypes
from collections import deque
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, Protocol

from adjointlab.worlds.randomness import RandomStreams
from adjointlab.worlds.simulated.call_sites import Call
from adjointlab.worlds.simulated.schedules.strategy import Strategy
from adjointlab.worlds.simulated.threads import Worker, WorkerPool
from adjointlab.worlds.world import Dead, Heard, Outcome

__all__ = ["Judge", "Pending", "Scheduler", "Strand", "Unwound"]

FRUITLESS_POLLS = 1000
"""So often must every rank that is not blocked have polled, with nothing moving anywhere, before it is a livelock."""

GRACE = 2.0
"""Seconds that an interrupted rank has to leave; a thread that does not is left behind."""


class Unwound(BaseException):
    """Raised inside a call to call a rank out of it. Not an `Exception`, so that user code does not take it for one."""


class Pending:
    """Something that a rank can wait for."""

    __slots__ = ("call", "done", "strand", "watched")

    def __init__(self, strand: Strand, call: Call) -> None:
        self.strand = strand
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


class Strand:
    """What the scheduler knows of one rank."""

    __slots__ = (
        "blocked",
        "call",
        "doom",
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
        self.doom: Outcome | None = None  # the outcome of a rank that is being called out
        self.blocked = False
        self.missing = 0  # how many of `waiting` must still happen
        self.waiting: Sequence[Pending] = ()
        self.call: Call | None = None  # where it waits or polls
        self.seen = -1  # the state of things at its last poll
        self.fruitless = 0  # how often it has polled in this state of things
        self.since = 0.0  # when it did so first


class Judge(Protocol):
    """Who decides what it means that nothing moves any more."""

    def nobody_can_run(self, blocked: list[Strand]) -> None:
        """Dooms ranks."""

    def nobody_gets_on(self, stuck: list[Strand], seconds: float) -> None:
        """Dooms ranks, if that has lasted for long enough."""


class Scheduler:
    """Runs `task` once for each rank; see the module."""

    def __init__(
        self,
        size: int,
        pool: WorkerPool,
        streams: RandomStreams,
        strategy: Strategy,
        judge: Judge,
        task: Callable[[Strand], Outcome],
    ) -> None:
        self.strands = [Strand(rank) for rank in range(size)]
        self.current = self.strands[0]
        self.heard: list[Heard] = []
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
        self._task = task
        self._ready: deque[Strand] = deque(self.strands)
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
        return tuple(strand.outcome for strand in self.strands if strand.outcome is not None)

    # What the communicator calls, on the thread of the running rank

    def enter(self, strand: Strand) -> None:
        """A call begins: see whether `strand` may make it, and perhaps let others go first."""
        if self._interrupted:
            self._call_all_out()
        if strand.doom is not None:
            raise Unwound
        if strand is not self.current or strand.outcome is not None:
            if strand.outcome is not None:
                raise RuntimeError("this communicator belongs to a run that is over")
            raise RuntimeError(
                f"rank {self.current.rank} uses the communicator of rank {strand.rank}: the simulated ranks are threads "
                "and share module-level state; keep the communicator in the operator"
            )
        if (
            not self._orderly
            and self._idle != self.progress
            and self._strategy.gives_way(strand, self._ready)
        ):
            self.give_way(strand)

    def wait(self, strand: Strand, pending: Sequence[Pending], call: Call, need: int | None = None) -> None:
        """Block `strand` until `need` (default: all) of `pending` have happened."""
        if strand.doom is not None:
            raise Unwound
        missing = [each for each in pending if not each.done]
        needed = len(missing) if need is None else need - (len(pending) - len(missing))
        if needed <= 0:
            return
        for each in missing:
            each.watched = True
        strand.missing = needed
        strand.waiting = missing
        strand.call = call
        strand.blocked = True
        self._hand_over(strand)
        strand.waiting = ()
        if need is not None:
            for each in missing:
                each.watched = False
        if strand.doom is not None:
            raise Unwound

    def complete(self, pending: Pending) -> None:
        """`pending` has happened."""
        pending.done = True
        self.progress += 1
        if pending.watched:
            pending.watched = False
            strand = pending.strand
            strand.missing -= 1
            if strand.missing == 0 and strand.blocked:
                strand.blocked = False
                self._ready.append(strand)

    def polled(self, strand: Strand, call: Call) -> None:
        """`strand` asked in vain: let the others run."""
        if strand.seen != self.progress:
            strand.seen = self.progress
            strand.fruitless = 0
            strand.since = perf_counter()
        strand.fruitless += 1
        strand.call = call
        self._strategy.polled(strand)
        if self.delayed:
            self.deliver_delayed()
        if strand.fruitless % FRUITLESS_POLLS == 0:
            moving = [each for each in self.strands if each.outcome is None and not each.blocked]
            if all(each.seen == self.progress and each.fruitless >= FRUITLESS_POLLS // 2 for each in moving):
                self._idle = self.progress
                # Each has had its share of the time only.
                seconds = (perf_counter() - max(each.since for each in moving)) / len(moving)
                self._judge.nobody_gets_on([each for each in self.strands if each.outcome is None], seconds)
        self.give_way(strand)

    def give_way(self, strand: Strand) -> None:
        """Let others run first."""
        self._ready.append(strand)
        self._hand_over(strand)
        if strand.doom is not None:
            raise Unwound

    def condemn(self, strand: Strand, outcome: Outcome) -> None:
        """Call `strand` out of the call that it is in or makes next; `outcome` will be its outcome."""
        if strand.doom is None and strand.outcome is None:
            strand.doom = outcome
            if strand.blocked:
                strand.blocked = False
                self._ready.append(strand)

    def deliver_delayed(self) -> None:
        """Let all messages arrive."""
        delayed, self.delayed = self.delayed, []
        for deliver in delayed:
            deliver()

    # Taking turns

    def _next(self) -> Strand:
        ready = self._ready
        if self._interrupted:
            self._call_all_out()
        if not ready and self.delayed:
            self.deliver_delayed()
        if not ready:
            self._judge.nobody_can_run([strand for strand in self.strands if strand.blocked])
        if self._idle == self.progress:
            return (
                ready.popleft()
            )  # no decision, so that the record of a schedule does not grow with the seconds
        return self._strategy.next(ready)

    def _hand_over(self, strand: Strand) -> None:
        following = self._next()
        if following.worker is None:
            following = self._started(following)
        if following is strand:
            return
        self.current = following
        self._streams.swap(strand.rank, following.rank)
        worker = strand.worker
        assert worker is not None
        self._resume(following)
        worker.lock.acquire()

    def _started(self, strand: Strand) -> Strand:
        """`strand` on a thread; if there is none, the run is over, and one of those that are called out."""
        without: list[Strand] = []  # they will end on the threads of others
        while strand.worker is None:
            try:
                strand.worker = self._pool.take(self._work)
            except RuntimeError as error:
                self._crash = error
                for each in self.strands:
                    self.condemn(each, Dead(str(error)))
                without.append(strand)
                strand = self._next()
        self._ready.extend(without)
        return strand

    def _resume(self, strand: Strand) -> None:
        assert strand.worker is not None
        strand.worker.lock.release()

    def _work(self, worker: Worker) -> None:
        """Run the current rank on this thread, and then those that have not begun when their turns come."""
        try:
            strand: Strand | None = self.current
            while strand is not None:
                strand.worker = worker
                outcome = self._task(strand)
                strand.outcome = strand.doom or outcome
                strand = self._finish(worker)
        except BaseException as crash:
            # Ours, not the user's: the rank's task catches everything. Nobody else would ever wake the caller.
            self._crash = crash
            self._over.release()

    def _finish(self, worker: Worker) -> Strand | None:
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
            raise_in(ctypes.c_ulong(worker.thread.ident), ctypes.py_object(Unwound))
        self._over.acquire(timeout=GRACE)

    def _call_all_out(self) -> None:
        for strand in self.strands:
            self.condemn(strand, Dead("interrupted"))
