"""Operators that do not return, each for another reason; only the second rank of several is at fault."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from hypothesis import strategies as st

import adjointlab as al

executors: list[ThreadPoolExecutor] = []


def sleep_for_ever() -> None:
    time.sleep(3600)


class Copy(al.LinearOperator):
    """Copies, once `fault` is over."""

    gain = fan_in = 1

    def __init__(self, comm: Any, layout: al.Layout) -> None:
        self.comm, self.domain, self.codomain = comm, al.Space(layout), al.Space(layout)

    def fault(self, rank: int, size: int) -> None:
        """The fault of the operator: none here."""

    def forward(self, x: Any) -> Any:
        self.fault(self.comm.Get_rank(), self.comm.Get_size())
        return np.array(x)

    def adjoint(self, y: Any) -> Any:
        return np.array(y)


class Looping(Copy):
    """An endless loop."""

    def fault(self, rank: int, size: int) -> None:
        while rank == 1:
            pass


def collected(phase: str, info: dict[str, int]) -> None:
    """A callback of the garbage collector in which most of the time of :class:`Collecting` is spent."""
    end = time.monotonic() + 0.01
    while time.monotonic() < end:
        pass


class Collecting(Copy):
    """An endless loop that makes garbage."""

    def fault(self, rank: int, size: int) -> None:
        gc.callbacks.append(collected)
        try:
            while rank == 1:
                cycle: list[Any] = []
                cycle.append(cycle)
        finally:
            gc.callbacks.remove(collected)


class Stubborn(Copy):
    """An endless loop that no exception ends."""

    def fault(self, rank: int, size: int) -> None:
        while rank == 1:
            try:
                Looping.fault(self, rank, size)
            except BaseException:  # noqa: S112 - that is the fault
                continue


class Swallowing(Copy):
    """An endless loop, and a wrong result once an exception has ended it."""

    def forward(self, x: Any) -> Any:
        try:
            return super().forward(x)
        except BaseException:
            return np.zeros(7)

    def fault(self, rank: int, size: int) -> None:
        while rank == 1:
            pass


class Chatting(Copy):
    """An endless loop that makes calls."""

    def fault(self, rank: int, size: int) -> None:
        while rank == 1:
            self.comm.sendrecv(1, rank, 0, None, rank, 0)


class Sleeping(Copy):
    """A sleep that outlasts everybody's patience."""

    def fault(self, rank: int, size: int) -> None:
        if rank == 1:
            time.sleep(3600)


class Raw(Copy):
    """A call of C that no signal ends and that lets other threads run, as most calls of MPI do."""

    def fault(self, rank: int, size: int) -> None:
        if rank == 1:
            mutex, c = ctypes.create_string_buffer(64), ctypes.CDLL(None)
            while True:  # the second one waits for the first
                c.pthread_mutex_lock(mutex)


class Stopped(Copy):
    """A process that is stopped."""

    def fault(self, rank: int, size: int) -> None:
        if rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)


class HoldsLock(Copy):
    """A call of C that keeps Python's lock."""

    def fault(self, rank: int, size: int) -> None:
        if rank == 1:
            ctypes.PyDLL(None).sleep(3600)


class Finalized(Copy):
    """A rank that has left MPI."""

    def fault(self, rank: int, size: int) -> None:
        if rank == 1:
            from mpi4py import MPI

            MPI.Finalize()
            time.sleep(3600)


class LeavesThread(Copy):
    """A thread that does not end."""

    def fault(self, rank: int, size: int) -> None:
        if not any(thread.name == "left" for thread in threading.enumerate()):
            threading.Thread(target=sleep_for_ever, name="left", daemon=False).start()


class LeavesExecutor(Copy):
    """An executor with a job that does not end."""

    job = staticmethod(lambda: time.sleep(3600))

    def fault(self, rank: int, size: int) -> None:
        if not executors:
            executors.append(ThreadPoolExecutor(1))
            executors[0].submit(self.job)


class LeavesIdleExecutor(LeavesExecutor):
    """An executor whose job has ended."""

    job = staticmethod(lambda: None)


class Circular(Copy):
    """Receives before it sends, on three ranks and more and where the cut is uneven."""

    def fault(self, rank: int, size: int) -> None:
        layout = self.domain.tensors[0].layout
        extents = {stop - start for start, stop in layout.windows[0]}
        if size > 2 and len(extents) > 1:
            self.comm.recv(source=(rank + 1) % size, tag=5)


class Apart(Copy):
    """One rank takes part in a collective that the others do not know of; its gain is probed, by the lab's own calls."""

    gain = fan_in = None

    def fault(self, rank: int, size: int) -> None:
        if rank == 0 and size > 1:
            self.comm.allreduce(1)


class Expecting(Copy):
    """One rank expects a message that nobody sends, in the calls that probe the gain."""

    gain = fan_in = None

    def fault(self, rank: int, size: int) -> None:
        if rank == 0 and size > 1:
            self.comm.recv(source=1, tag=5)


def returned(comm: Any, x: Any) -> Any:
    return np.array(x)


def expecting(comm: Any, x: Any) -> Any:
    if comm.Get_rank() == 0 and comm.Get_size() > 1:
        comm.recv(source=1, tag=5)
    return np.array(x)


def pairs(draw: Any, ranks: int) -> dict[str, Any]:
    space = al.Space(draw(al.strategies.layouts(ranks, ndim=1, least=1)))
    return {"domain": space, "codomain": space}


def filled_cuts(draw: Any, ranks: int) -> dict[str, Any]:
    """Cuts that leave no rank without elements, nor without something to do after the function."""
    return {"layout": draw(al.strategies.layouts(ranks, ndim=1, least=1))}


def cuts(draw: Any, ranks: int) -> dict[str, Any]:
    return {"layout": draw(al.strategies.layouts(ranks, ndim=1))}


def looping_cuts(draw: Any, ranks: int) -> dict[str, Any]:
    while ranks:
        pass
    return cuts(draw, ranks)


def sleeping_cuts(draw: Any, ranks: int) -> dict[str, Any]:
    time.sleep(3600)
    return cuts(draw, ranks)


def stubborn_cuts(draw: Any, ranks: int) -> dict[str, Any]:
    while True:
        try:
            looping_cuts(draw, ranks)
        except BaseException:  # noqa: S112 - that is the fault
            continue


def late_cuts(draw: Any, ranks: int) -> dict[str, Any]:
    if draw(st.integers(0, 3)) == 3:
        stubborn_cuts(draw, ranks)
    return cuts(draw, ranks)


def endless_twin(x: Any, **parameters: Any) -> Any:
    while True:
        pass


looping = al.subject(Looping)(cuts)
collecting = al.subject(Collecting)(cuts)
stubborn = al.subject(Stubborn)(cuts)
sleeping = al.subject(Sleeping)(cuts)
raw = al.subject(Raw)(cuts)
stopped = al.subject(Stopped)(cuts)
holds_lock = al.subject(HoldsLock)(cuts)
finalized = al.subject(Finalized)(cuts)
leaves_thread = al.subject(LeavesThread)(cuts)
leaves_executor = al.subject(LeavesExecutor)(cuts)
leaves_idle_executor = al.subject(LeavesIdleExecutor)(cuts)
circular = al.subject(Circular)(cuts)
expecting_message = al.subject(Expecting)(filled_cuts)
expecting_function = al.subject.pair(expecting, returned)(pairs)
apart = al.subject(Apart)(cuts)
right = al.subject(Copy)(cuts)
swallowing = al.subject(Swallowing)(cuts)
chatting = al.subject(Chatting)(cuts)
looping_strategy = al.subject(Copy, name="LoopingStrategy")(looping_cuts)
sleeping_strategy = al.subject(Copy, name="SleepingStrategy")(sleeping_cuts)
stubborn_strategy = al.subject(Copy, name="StubbornStrategy")(stubborn_cuts)
late_strategy = al.subject(Copy, name="LateStrategy")(late_cuts)
endless_reference = al.subject(Copy, name="EndlessReference", reference=endless_twin)(cuts)
