"""Pool of threads for simulated ranks, which are reused when a rank has ended."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from weakref import finalize

__all__ = ["Worker", "WorkerPool"]


class Worker:
    """A thread that waits for its lock to be released, does its job, and waits again.

    The lock is used as a binary semaphore: only this thread acquires it, and others release it, as Python's locks allow.

    A daemon, so that a rank that never returns cannot keep the interpreter from ending. Its stack has the system's default
    size, because the libraries that a rank calls may need it: that is only address space, and a waiting rank takes some 30 KiB of
    memory.
    """

    __slots__ = ("is_spent", "job", "lock", "thread")

    def __init__(self) -> None:
        self.lock = _thread.allocate_lock()
        self.lock.acquire()
        self.job: Callable[[Worker], None] | None = None
        # True once an asynchronous exception was raised in the thread, which may still be pending.
        self.is_spent = False
        self.thread = threading.Thread(target=self._work, name="adjointlab rank", daemon=True)
        try:
            self.thread.start()
        except RuntimeError as error:
            raise RuntimeError(
                "each simulated rank needs a thread, and the system allows this process no more; "
                "run on fewer ranks, or raise the limit (ulimit -u, a container's pids)"
            ) from error

    def end(self) -> None:
        """Make the idle thread end."""
        self.job = None
        self.lock.release()

    def _work(self) -> None:
        try:
            self._serve()
        except BaseException:
            if not self.is_spent:
                raise

    def _serve(self) -> None:
        while not self.is_spent:
            self.lock.acquire()
            job, self.job = self.job, None
            if job is None:
                return
            job(self)
            # An idle thread must not keep the objects of its last job alive: the run, and all arrays of user code.
            del job


class WorkerPool:
    """Idle threads of one world. They end with it, even if it is not closed."""

    def __init__(self) -> None:
        self._idle: list[Worker] = []
        # Nothing to do at exit, because the threads are daemons.
        finalize(self, _end_all, self._idle).atexit = False

    def take(self, job: Callable[[Worker], None]) -> Worker:
        """Return a thread that does `job` as soon as its lock is released.

        Raises `RuntimeError` if the system allows no more threads.
        """
        while self._idle:
            worker = self._idle.pop()
            if not worker.is_spent:
                break
            worker.end()  # the exception was raised just after the end of its job
        else:
            worker = Worker()
        worker.job = job
        return worker

    def give(self, worker: Worker) -> None:
        """Take back `worker`, which has almost finished its job."""
        if not worker.is_spent:
            self._idle.append(worker)

    def close(self) -> None:
        """End the idle threads, and wait for their end."""
        for worker in _end_all(self._idle):
            worker.thread.join()


def _end_all(idle: list[Worker]) -> list[Worker]:
    workers = idle.copy()
    idle.clear()
    for worker in workers:
        worker.end()
    return workers
