"""Threads that ranks are run on, kept from run to run."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable

__all__ = ["Worker", "WorkerPool"]


class Worker:
    """A thread that waits for its lock to be released, does its task, and waits again.

    The lock is a binary semaphore: whoever releases it lets this thread go on. A daemon, so that a rank that never
    comes back cannot keep the interpreter from ending.

    Its stack has the system's usual size, because the libraries that a rank calls need theirs. That is address space;
    a waiting rank takes some 30 KiB of memory.
    """

    __slots__ = ("lock", "task", "thread")

    def __init__(self) -> None:
        self.lock = _thread.allocate_lock()
        self.lock.acquire()
        self.task: Callable[[Worker], None] | None = None
        self.thread = threading.Thread(target=self._work, name="adjointlab rank", daemon=True)
        try:
            self.thread.start()
        except RuntimeError as error:
            raise RuntimeError(
                "each simulated rank needs a thread, and the system allows this process no more; "
                "run on fewer ranks, or raise the limit (ulimit -u, a container's pids)"
            ) from error

    def _work(self) -> None:
        while True:
            self.lock.acquire()
            # What the task refers to must not live on in a sleeping thread.
            task, self.task = self.task, None
            if task is None:
                return
            task(self)
            del task


class WorkerPool:
    """The threads of one world that nobody uses now."""

    def __init__(self) -> None:
        self._idle: list[Worker] = []

    def take(self, task: Callable[[Worker], None]) -> Worker:
        """A thread that will do `task` as soon as its lock is released.

        Raises `RuntimeError` where the system allows this process no more of them.
        """
        try:
            worker = self._idle.pop()
        except IndexError:
            worker = Worker()
        worker.task = task
        return worker

    def give(self, worker: Worker) -> None:
        """`worker` is about to have done its task."""
        self._idle.append(worker)

    def close(self) -> None:
        """End the idle threads."""
        while self._idle:
            worker = self._idle.pop()
            worker.task = None
            worker.lock.release()
            worker.thread.join()
