"""Threads that ranks run on, kept from run to run: starting one takes longer than many a run."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable

__all__ = ["Worker", "WorkerPool"]


class Worker:
    """A thread that waits for its lock to be released, does its job, and waits again.

    The lock serves as a binary semaphore: this thread alone acquires it, and others release it, as Python's locks allow.

    A daemon, so that a rank that never comes back cannot keep the interpreter from ending. Its stack has the system's usual
    size, because the libraries that a rank calls need theirs: that is address space, and a waiting rank takes some 30 KiB of
    memory.
    """

    __slots__ = ("job", "lock", "thread")

    def __init__(self) -> None:
        self.lock = _thread.allocate_lock()
        self.lock.acquire()
        self.job: Callable[[Worker], None] | None = None
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
            job, self.job = self.job, None
            if job is None:
                return
            job(self)
            # A sleeping thread must not keep what its last job refers to alive: the run, and all arrays of user code.
            del job


class WorkerPool:
    """Threads of one world that no rank uses now."""

    def __init__(self) -> None:
        self._idle: list[Worker] = []

    def take(self, job: Callable[[Worker], None]) -> Worker:
        """Return a thread that does `job` as soon as its lock is released.

        Raises `RuntimeError` where the system allows this process no more threads.
        """
        worker = self._idle.pop() if self._idle else Worker()
        worker.job = job
        return worker

    def give(self, worker: Worker) -> None:
        """Take `worker` back, which is about to have done its job."""
        self._idle.append(worker)

    def close(self) -> None:
        """End the idle threads."""
        while self._idle:
            worker = self._idle.pop()
            worker.job = None
            worker.lock.release()
            worker.thread.join()
