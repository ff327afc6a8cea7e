"""The scheduler's own promises: who is woken and when, what counts as a livelock, and no run that fails without a word."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from adjointlab.worlds.randomness import GlobalStreams, RandomStreams
from adjointlab.worlds.run import Dead, Returned
from adjointlab.worlds.simulated.moment import Moment
from adjointlab.worlds.simulated.scheduler import FRUITLESS_POLLS, Pending, Scheduler, Task
from adjointlab.worlds.simulated.schedules.strategies import RoundRobin
from adjointlab.worlds.simulated.simulation import _blocked
from adjointlab.worlds.simulated.workers import Worker, WorkerPool
from adjointlab.worlds.world import Cancelled

pytestmark = pytest.mark.mpi_skip


class Handler:
    """Notes what it is asked."""

    def __init__(self) -> None:
        self.stuck: list[tuple[list[int], float]] = []

    def on_deadlock(self, blocked: list[Task]) -> None:
        raise AssertionError("no rank is blocked in these tests")

    def on_livelock(self, stuck: list[Task], seconds: float) -> None:
        self.stuck.append(([task.rank for task in stuck], seconds))


def scheduler_of(
    size: int, rank_main: Any = None, strategy: RoundRobin | None = None
) -> tuple[Scheduler, Handler]:
    handler = Handler()
    streams = RandomStreams(GlobalStreams(), 0, size)
    return Scheduler(size, WorkerPool(), streams, strategy or RoundRobin(), handler, rank_main), handler


LEAST = FRUITLESS_POLLS // 2


@pytest.mark.parametrize(
    ("polls", "is_livelock"),
    [
        ((FRUITLESS_POLLS, LEAST), True),
        ((LEAST, LEAST), True),
        ((FRUITLESS_POLLS, LEAST - 1), False),
        ((FRUITLESS_POLLS, 0), False),
        ((FRUITLESS_POLLS, None), False),  # something has happened since it polled
    ],
)
def test_all_ranks_that_move_must_have_polled_half_as_often_in_vain(polls: Any, is_livelock: bool) -> None:
    scheduler, handler = scheduler_of(4)
    ended, blocked, *moving = scheduler.tasks
    ended.outcome, blocked.blocked = Returned(None), True
    scheduler.progress = 7
    for task, count in zip(moving, polls, strict=True):
        task.polled_at, task.fruitless = (6, FRUITLESS_POLLS) if count is None else (7, count)
        task.polling_since = Moment.now()
    scheduler._check_for_livelock()
    assert [ranks for ranks, _ in handler.stuck] == ([[1, 2, 3]] if is_livelock else [])


def test_the_seconds_of_a_livelock_are_shared_by_the_ranks_that_poll(monkeypatch: Any) -> None:
    scheduler, handler = scheduler_of(3)
    scheduler.tasks[0].blocked = True
    for task, began in zip(scheduler.tasks[1:], (10.0, 13.0), strict=True):
        task.polled_at, task.fruitless, task.polling_since = 0, FRUITLESS_POLLS, Moment(began, began)
    monkeypatch.setattr(Moment, "now", classmethod(lambda cls: Moment(20.0, 20.0)))
    scheduler._check_for_livelock()
    assert handler.stuck == [([0, 1, 2], 3.5)]


def polls_of_one_rank(count: int, events_at: tuple[int, ...] = ()) -> tuple[list[int], Task]:
    """After which polls of a single rank it was asked whether that is a livelock."""
    scheduler, handler = scheduler_of(1)
    task, asked = scheduler.tasks[0], []
    task.worker = SimpleNamespace()  # type: ignore[assignment]
    scheduler._ready.clear()
    for number in range(1, count + 1):
        if number in events_at:
            scheduler.progress += 1
        scheduler.polled(task, "the call")  # type: ignore[arg-type]
        if handler.stuck:
            handler.stuck.clear()
            asked.append(number)
    assert task.call == "the call"
    return asked, task


def test_a_livelock_is_looked_for_after_every_so_many_polls_in_vain() -> None:
    asked, task = polls_of_one_rank(2 * FRUITLESS_POLLS + 1)
    assert asked == [FRUITLESS_POLLS, 2 * FRUITLESS_POLLS]
    assert task.fruitless == 2 * FRUITLESS_POLLS + 1


def test_polls_in_vain_are_counted_anew_after_each_event() -> None:
    asked, task = polls_of_one_rank(FRUITLESS_POLLS + 5, events_at=(3, 6))
    assert asked == [FRUITLESS_POLLS + 5]
    assert task.fruitless == FRUITLESS_POLLS


def test_a_fault_of_the_lab_on_a_thread_of_a_rank_is_raised_to_the_caller() -> None:
    class Fault(BaseException):
        pass

    def rank_main(task: Task) -> Any:
        raise Fault

    scheduler, _ = scheduler_of(2, rank_main)
    waits = iter(range(4))

    def waiting() -> None:
        assert next(waits) < 3, "the run does not end"

    scheduler.while_waiting = waiting
    with pytest.raises(Fault):
        scheduler.run()


@pytest.mark.parametrize(
    ("given", "before", "ended", "after"),
    [
        (Dead("overdue"), None, None, Dead("overdue")),
        (Dead("overdue"), Dead("before"), None, Dead("before")),
        (Dead("overdue"), None, Returned(1), None),
        (None, None, None, None),
    ],
)
def test_an_exception_raised_in_a_rank_gives_it_its_outcome_and_its_thread_is_not_used_again(
    given: Any, before: Any, ended: Any, after: Any
) -> None:
    scheduler, _ = scheduler_of(1)
    task = scheduler.tasks[0]
    task.cancelled_as, task.outcome = before, ended
    # No thread has such a number, so nothing is raised anywhere.
    worker: Any = SimpleNamespace(is_spent=False, thread=SimpleNamespace(ident=1))
    task.worker = worker
    try:
        scheduler.raise_in(task, KeyboardInterrupt, given)
    finally:
        scheduler._collections.release()
    assert task.cancelled_as == after
    assert worker.is_spent

    pool = WorkerPool()
    pool.give(worker)
    assert pool._idle == []


def test_an_idle_thread_that_an_exception_is_on_its_way_to_gets_no_job() -> None:
    pool, done = WorkerPool(), threading.Semaphore(0)

    def job(worker: Worker) -> None:
        pool.give(worker)
        done.release()

    spent = pool.take(job)
    spent.lock.release()
    assert done.acquire(timeout=10)
    spent.is_spent = True  # by another thread, which has read whose turn it was before
    other = pool.take(job)
    assert other is not spent
    spent.thread.join(10)
    assert not spent.thread.is_alive()
    other.lock.release()
    assert done.acquire(timeout=10)
    pool.close()


@pytest.mark.parametrize("worker", [None, SimpleNamespace(thread=SimpleNamespace(ident=None))])
def test_nothing_is_raised_in_a_rank_that_has_no_thread_yet(worker: Any) -> None:
    scheduler, _ = scheduler_of(1)
    task = scheduler.tasks[0]
    task.worker = worker
    scheduler.raise_in(task, KeyboardInterrupt, Dead("overdue"))
    assert task.cancelled_as is None


def test_a_thread_does_one_job_after_another_and_keeps_none_of_them() -> None:
    pool, done = WorkerPool(), threading.Semaphore(0)
    threads: list[int] = []

    def job(worker: Worker) -> None:
        threads.append(threading.get_ident())
        pool.give(worker)
        done.release()

    for _ in range(3):
        worker = pool.take(job)
        assert worker.job is job
        worker.lock.release()
        assert done.acquire(timeout=10)
    assert len(set(threads)) == 1
    assert worker.thread.daemon
    assert worker.thread.name == "adjointlab rank"
    assert worker.job is None
    pool.close()
    assert not worker.thread.is_alive()
    assert pool._idle == []


def pending_of(task: Task, count: int) -> list[Pending]:
    return [Pending(task, None) for _ in range(count)]  # type: ignore[arg-type]


@pytest.mark.parametrize("need", [None, 0, 1, 2, 3, 4])
@pytest.mark.parametrize("done", [0, 1, 2, 3, 4])
def test_a_rank_is_woken_as_soon_as_as_many_are_done_as_it_needs(need: int | None, done: int) -> None:
    scheduler, _ = scheduler_of(1)
    task = scheduler.tasks[0]
    pending, woken_after = pending_of(task, 4), []
    for each in pending[:done]:
        scheduler.complete(each)

    def hand_over(waiting: Task) -> None:
        assert waiting is task
        assert task.blocked
        assert list(task.waiting) == pending[done:]
        assert task.call == "the call"
        scheduler._ready.clear()
        for number, each in enumerate(pending[done:], start=done + 1):
            scheduler.complete(each)
            if task in scheduler._ready and not woken_after:
                woken_after.append(number)
                assert not task.blocked
        assert list(scheduler._ready) == [task]

    scheduler._hand_over = hand_over  # type: ignore[method-assign]
    scheduler.wait(task, pending, "the call", need)  # type: ignore[arg-type]
    least = 4 if need is None else need
    assert woken_after == ([] if done >= least else [least])
    assert task.waiting == ()
    assert not any(each.watched for each in pending)


def test_what_is_not_done_after_a_wait_for_some_wakes_nobody_later() -> None:
    scheduler, _ = scheduler_of(1)
    task = scheduler.tasks[0]
    first, second = pending_of(task, 2)
    scheduler._hand_over = lambda waiting: scheduler.complete(first)  # type: ignore[method-assign]
    scheduler.wait(task, [first, second], None, need=1)  # type: ignore[arg-type]
    scheduler._ready.clear()
    task.blocked, task.missing = True, 1  # in something else
    scheduler.complete(second)
    assert task.blocked
    assert not scheduler._ready


def test_what_a_rank_needs_is_progress_when_it_is_done() -> None:
    scheduler, _ = scheduler_of(1)
    before = scheduler.progress
    scheduler.complete(pending_of(scheduler.tasks[0], 1)[0])
    assert scheduler.progress > before


def test_a_cancelled_rank_keeps_its_first_outcome_and_runs_once_to_leave_its_call() -> None:
    scheduler, _ = scheduler_of(2)
    blocked, ended = scheduler.tasks
    scheduler._ready.clear()
    blocked.blocked, ended.outcome = True, Returned(1)
    scheduler.cancel(ended, Dead("late"))
    assert ended.cancelled_as is None
    for why in ("first", "second"):
        scheduler.cancel(blocked, Dead(why))
    assert blocked.cancelled_as == Dead("first")
    assert list(scheduler._ready) == [blocked]
    with pytest.raises(Cancelled):
        scheduler.enter(blocked)
    with pytest.raises(Cancelled):
        scheduler.wait(blocked, [], None)  # type: ignore[arg-type]


def test_delayed_messages_are_delivered_once_each() -> None:
    scheduler, _ = scheduler_of(1)
    delivered: list[int] = []
    scheduler.delayed = [lambda: delivered.append(1), lambda: delivered.append(2)]
    scheduler.deliver_delayed()
    scheduler.deliver_delayed()
    assert delivered == [1, 2]


@pytest.mark.parametrize("is_over_at", [0, 1, 2])
def test_after_ctrl_c_a_rank_has_a_while_to_come_to_a_call_before_it_is_interrupted(is_over_at: int) -> None:
    scheduler, _ = scheduler_of(2)
    scheduler.current = scheduler.tasks[1]
    seen: list[Any] = []

    def acquire(timeout: float) -> bool:
        seen.append(timeout)
        return len(seen) > is_over_at

    scheduler._over = SimpleNamespace(acquire=acquire)  # type: ignore[assignment]
    scheduler.raise_in = lambda *raised: seen.append(raised)  # type: ignore[method-assign]
    scheduler._interrupt()
    assert seen == [0.2, *([(scheduler.tasks[1], Cancelled), 2.0] if is_over_at else [])]
    for task in scheduler.tasks:
        with pytest.raises(Cancelled):
            scheduler.enter(task)
        assert task.cancelled_as == Dead("interrupted")


def test_ctrl_c_ends_the_run_and_is_raised_to_the_caller() -> None:
    ended: list[int] = []
    waits = iter(range(10))

    def rank_main(task: Task) -> Any:
        try:
            for _ in range(60_000):  # a minute; the waiting thread wakes within it, however busy the machine
                time.sleep(0.001)
                scheduler.enter(task)
        except Cancelled:
            ended.append(task.rank)
        return Returned(None)

    def while_waiting() -> None:
        if next(waits) == 0:
            raise KeyboardInterrupt

    scheduler, _ = scheduler_of(2, rank_main)
    scheduler.while_waiting = while_waiting
    with pytest.raises(KeyboardInterrupt):
        scheduler.run()
    assert [task.outcome for task in scheduler.tasks] == [Dead("interrupted")] * 2
    assert ended == [0, 1]


def test_ranks_without_a_thread_end_with_the_reason_on_the_threads_of_those_that_have_one() -> None:
    ran: list[tuple[int, int]] = []

    def rank_main(task: Task) -> Any:
        ran.append((task.rank, threading.get_ident()))
        try:
            scheduler.enter(task)
            scheduler._yield(task)
        except Cancelled:
            pass
        return Returned(None)

    scheduler, _ = scheduler_of(4, rank_main)
    pool = WorkerPool()
    taken: list[Any] = []

    def take(job: Any) -> Worker:
        if len(taken) == 2:
            raise RuntimeError("no more threads")
        taken.append(WorkerPool.take(pool, job))
        return taken[-1]

    scheduler._pool = SimpleNamespace(take=take, give=pool.give)  # type: ignore[assignment]
    with pytest.raises(RuntimeError, match="no more threads"):
        scheduler.run()
    assert [task.outcome for task in scheduler.tasks] == [Dead("no more threads")] * 4
    assert sorted(rank for rank, _ in ran) == [0, 1, 2, 3]
    assert len({thread for _, thread in ran}) == 2
    pool.close()


@pytest.mark.parametrize("orderly", [True, False])
@pytest.mark.parametrize("all_poll_in_vain", [True, False])
@pytest.mark.parametrize("preempts", [True, False])
def test_a_rank_lets_others_run_before_its_call_where_the_strategy_says_so_and_is_asked(
    orderly: bool, all_poll_in_vain: bool, preempts: bool
) -> None:
    asked: list[Any] = []

    class Asked(RoundRobin):
        def preempts(self, current: Any, ready: Any) -> bool:
            asked.append((current, ready))
            return preempts

    strategy = Asked()
    strategy.orderly = orderly  # type: ignore[misc]
    scheduler, _ = scheduler_of(2, strategy=strategy)
    yielded: list[Task] = []
    scheduler._yield = yielded.append  # type: ignore[method-assign]
    task = scheduler.tasks[0]
    scheduler._idle_at = scheduler.progress if all_poll_in_vain else scheduler.progress - 1
    scheduler.enter(task)
    is_asked = not orderly and not all_poll_in_vain
    assert asked == ([(task, scheduler._ready)] if is_asked else [])
    assert yielded == ([task] if is_asked and preempts else [])


@pytest.mark.parametrize("all_poll_in_vain", [True, False])
def test_the_strategy_says_who_runs_next_unless_all_poll_in_vain(all_poll_in_vain: bool) -> None:
    class Last(RoundRobin):
        def next(self, ready: Any) -> Any:
            return ready.pop()

    scheduler, _ = scheduler_of(3, strategy=Last())
    first, second, third = scheduler.tasks
    scheduler._idle_at = scheduler.progress if all_poll_in_vain else None
    assert scheduler._next() is (first if all_poll_in_vain else third)
    assert list(scheduler._ready) == ([second, third] if all_poll_in_vain else [first, second])


def test_what_was_held_back_is_delivered_where_no_rank_can_run_and_not_before() -> None:
    scheduler, _ = scheduler_of(2)
    first, second = scheduler.tasks
    delivered: list[str] = []

    def deliver() -> None:
        delivered.append("delivered")
        scheduler._ready.append(second)

    scheduler.delayed = [deliver]
    assert scheduler._next() is first
    scheduler._ready.clear()
    second.blocked = True
    assert not delivered
    assert scheduler._next() is second
    assert delivered == ["delivered"]


def test_a_rank_that_waits_outside_of_any_call_is_told_without_one() -> None:
    scheduler, _ = scheduler_of(2)
    found = _blocked(scheduler.tasks[0])
    assert (found.where, found.in_backward) == ("?", False)
