"""Operators that hang, crash or leak: one for each way in which a distributed program goes wrong.

Each is a ring shift with one fault, which shows on two ranks or more unless it says otherwise. ``FAULTS`` declares as
what each should be found, in either world.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from typing import Any

import numpy as np

import adjointlab as al
from adjointlab import MPI
from adjointlab.engine.interleavings import DEPENDS
from adjointlab.engine.subject import Subject
from adjointlab.worlds.launch import is_launched
from tests.faults.declaring import (
    CHANGES,
    DEADLOCK,
    MISMATCH,
    NEVER,
    NO_RETURN,
    OPEN,
    RAISED,
    RuntimeFault,
    Shift,
    blocks,
    cuts,
    subject_of,
)

LARGE = 1 << 17
"""Numbers in a message that no MPI library sends off before somebody receives it."""


# Exceptions and early ends


class RaisesOnOneRank(Shift):
    def forward(self, x: Any) -> Any:
        if self.is_faulty:
            raise RuntimeError("the second rank has had enough")
        return super().forward(x)


class RaisesOnAllRanksButOne(Shift):
    def forward(self, x: Any) -> Any:
        if self.rank:
            raise RuntimeError("all have had enough, but for the first rank")
        return super().forward(x)


class RaisesInAdjoint(Shift):
    def adjoint(self, y: Any) -> Any:
        if self.is_faulty:
            raise RuntimeError("the second rank has had enough")
        return super().adjoint(y)


class ReturnsEarly(Shift):
    def forward(self, x: Any) -> Any:
        return np.array(x) if self.is_faulty else super().forward(x)


# Deadlocks


class ReceivesFirst(Shift):
    def shifted(self, x: Any, dest: int, source: int) -> Any:
        result = np.empty(x.shape, x.dtype)
        if self.size == 1:
            return np.array(x)
        self.comm.Recv(result, source)
        self.comm.Send(np.ascontiguousarray(x), dest)
        return result


class SendsFirst(Shift):
    """Relies on a buffer that holds the message until the receiver has sent its own."""

    def shifted(self, x: Any, dest: int, source: int) -> Any:
        result = super().shifted(x, dest, source)
        if self.size > 1:
            self.comm.Send(np.zeros(LARGE), dest)
            self.comm.Recv(np.empty(LARGE), source)
        return result


class SendsUnderAnotherTag(Shift):
    def shifted(self, x: Any, dest: int, source: int) -> Any:
        result = np.empty(x.shape, x.dtype)
        self.comm.Sendrecv(np.ascontiguousarray(x), dest, int(self.is_faulty), result, source, 0)
        return result


class SendsOnAnotherCommunicator(Shift):
    def __init__(self, comm: Any, layout: al.Layout) -> None:
        super().__init__(comm, layout)
        self.other = comm.Dup()

    def shifted(self, x: Any, dest: int, source: int) -> Any:
        result = np.empty(x.shape, x.dtype)
        sending = (self.other if self.is_faulty else self.comm).Isend(np.ascontiguousarray(x), dest)
        self.comm.Recv(result, source)
        sending.Wait()
        return result


class WaitsForUnevenCuts(Shift):
    """A ring of blocks that are cut unevenly: whoever has more than the next waits to be asked for the surplus.

    Of two ranks one always asks. Of three or more, with uneven cuts, nobody asks.
    """

    def shifted(self, x: Any, dest: int, source: int) -> Any:
        sizes = self.comm.allgather(x.size)
        if self.size > 2 and len(set(sizes)) > 1:
            self.comm.Recv(np.empty(1), source, 5)
            self.comm.Send(np.zeros(1), dest, 5)
        return np.array(x)


# Collectives that do not fit together


class Collective(Shift):
    """Calls a collective that does not affect the result."""

    def forward(self, x: Any) -> Any:
        if self.size > 1:
            self.collective()
        return super().forward(x)

    def collective(self) -> None:
        raise NotImplementedError


class AnotherCollective(Collective):
    def collective(self) -> None:
        one, total = np.ones(4), np.zeros(4)
        if self.is_faulty:
            self.comm.Reduce(one, total, MPI.SUM, root=1)
        else:
            self.comm.Allreduce(one, total, MPI.SUM)


class AnotherRoot(Collective):
    def collective(self) -> None:
        self.comm.Bcast(np.ones(4), root=int(self.is_faulty))


class AnotherCount(Collective):
    def collective(self) -> None:
        count = 3 if self.is_faulty else 4
        self.comm.Allreduce(np.ones(count), np.zeros(count), MPI.SUM)


class AnotherDtype(Collective):
    def collective(self) -> None:
        dtype = "float32" if self.is_faulty else "float64"
        self.comm.Allreduce(np.ones(4, dtype), np.zeros(4, dtype), MPI.SUM)


# Code that does not return


class Loops(Shift):
    def forward(self, x: Any) -> Any:
        while self.is_faulty:
            pass
        return super().forward(x)


class Sleeps(Shift):
    def forward(self, x: Any) -> Any:
        if self.is_faulty:
            time.sleep(NEVER)
        return super().forward(x)


# Processes that end


class ReadsNowhere(Shift):
    def forward(self, x: Any) -> Any:
        if self.is_faulty:
            ctypes.string_at(0)
        return super().forward(x)


class IsKilled(Shift):
    def forward(self, x: Any) -> Any:
        if self.is_faulty:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(x)


class Leaves(Shift):
    def forward(self, x: Any) -> Any:
        if self.is_faulty:
            os._exit(0)
        return super().forward(x)


class Aborts(Shift):
    def forward(self, x: Any) -> Any:
        if self.is_faulty:
            if is_launched():
                from mpi4py.MPI import COMM_WORLD

                COMM_WORLD.Abort(5)
            self.comm.Abort(5)
        return super().forward(x)


# Leaks


class LeavesAMessage(Shift):
    def forward(self, x: Any) -> Any:
        if self.is_faulty:
            self.comm.Isend(np.ones(1), 0, 9).Wait()
        return super().forward(x)


class LeavesARequest(Shift):
    def forward(self, x: Any) -> Any:
        if self.is_faulty:
            self.comm.Irecv(np.empty(1), 0, 9)
        return super().forward(x)


class MakesCommunicators(Shift):
    """Makes a communicator in each call, and frees none."""

    def shifted(self, x: Any, dest: int, source: int) -> Any:
        self.comm.Dup()
        return super().shifted(x, dest, source)


# Results that change


class Throws(Shift):
    """Draws from the system's randomness, which no seed controls, once for each operator."""

    def __init__(self, comm: Any, layout: al.Layout) -> None:
        super().__init__(comm, layout)
        self.adds_input = self.is_faulty and os.urandom(1)[0] % 2

    def forward(self, x: Any) -> Any:
        result = super().forward(x)
        return result + x if self.adds_input else result


class TakesTheFirst(Shift):
    """The first rank receives from all others in any order, and is wrong if that is from the last to the second."""

    def forward(self, x: Any) -> Any:
        result = super().forward(x)
        if self.rank:
            self.comm.Send(np.full(1, float(self.rank)), 0, 3)
            received = [1.0]
        else:
            received = [self.receive_any() for _ in range(1, self.size)]
        # The messages of this call are received before those of the next one are sent.
        self.comm.Barrier()
        backwards = self.size >= 4 and received == sorted(received, reverse=True)
        return result * 2 if self.rank == 0 and backwards else result

    def receive_any(self) -> float:
        one = np.empty(1)
        self.comm.Recv(one, MPI.ANY_SOURCE, 3)
        return float(one[0])


# As what each should be found


def _subject(operator: type[Shift], draws: Any = blocks) -> Subject:
    # The name under which a command line finds it in this module.
    subject = subject_of(operator, draws, _attribute(operator))
    subject.draws.__module__ = __name__
    return subject


def _attribute(operator: type) -> str:
    words = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in operator.__name__)
    return words.removeprefix("_")


right = _subject(Shift)
raises_on_one_rank = _subject(RaisesOnOneRank)
raises_on_all_ranks_but_one = _subject(RaisesOnAllRanksButOne)
raises_in_adjoint = _subject(RaisesInAdjoint)
returns_early = _subject(ReturnsEarly)
receives_first = _subject(ReceivesFirst)
sends_first = _subject(SendsFirst)
sends_under_another_tag = _subject(SendsUnderAnotherTag)
sends_on_another_communicator = _subject(SendsOnAnotherCommunicator)
waits_for_uneven_cuts = _subject(WaitsForUnevenCuts, cuts)
another_collective = _subject(AnotherCollective)
another_root = _subject(AnotherRoot)
another_count = _subject(AnotherCount)
another_dtype = _subject(AnotherDtype)
loops = _subject(Loops)
sleeps = _subject(Sleeps)
reads_nowhere = _subject(ReadsNowhere)
is_killed = _subject(IsKilled)
leaves = _subject(Leaves)
aborts = _subject(Aborts)
leaves_a_message = _subject(LeavesAMessage)
leaves_a_request = _subject(LeavesARequest)
makes_communicators = _subject(MakesCommunicators)
throws = _subject(Throws)
takes_the_first = _subject(TakesTheFirst)

SEGMENTATION = "a rank died of a segmentation fault (SIGSEGV)"
KILLED = "a rank was killed (SIGKILL, as the system does when memory runs out)"
EXITED = "a rank left by os._exit(0)"
ABORTED = "a rank called MPI_Abort(5)"


def _process(kind: str) -> tuple[str, ...]:
    """The same in simulation, where one process is all ranks."""
    return (kind.replace("a rank", "the process of the ranks"),)


FAULTS = (
    RuntimeFault("raises on one rank", raises_on_one_rank, RAISED, RAISED),
    RuntimeFault("raises on all ranks but one", raises_on_all_ranks_but_one, RAISED, RAISED),
    RuntimeFault("raises in adjoint only", raises_in_adjoint, RAISED, RAISED),
    RuntimeFault("returns early on one rank", returns_early, DEADLOCK, DEADLOCK),
    RuntimeFault("receives before it sends", receives_first, DEADLOCK, DEADLOCK),
    RuntimeFault("relies on buffered sends", sends_first, DEADLOCK, DEADLOCK),
    RuntimeFault(
        "deadlock with uneven cuts on three ranks", waits_for_uneven_cuts, DEADLOCK, DEADLOCK, ranks=3
    ),
    RuntimeFault("another collective on one rank", another_collective, MISMATCH, MISMATCH),
    RuntimeFault("another root on one rank", another_root, MISMATCH, MISMATCH),
    RuntimeFault("another count on one rank", another_count, MISMATCH, MISMATCH),
    RuntimeFault("another dtype on one rank", another_dtype, MISMATCH, MISMATCH),
    RuntimeFault("wrong tag", sends_under_another_tag, DEADLOCK, DEADLOCK),
    RuntimeFault("wrong communicator", sends_on_another_communicator, DEADLOCK, DEADLOCK),
    RuntimeFault("infinite loop in Python", loops, NO_RETURN, NO_RETURN),
    RuntimeFault("sleep past patience", sleeps, NO_RETURN, NO_RETURN, is_fatal=True),
    RuntimeFault("segmentation fault", reads_nowhere, _process(SEGMENTATION), (SEGMENTATION,), is_fatal=True),
    RuntimeFault("SIGKILL", is_killed, _process(KILLED), (KILLED,), is_fatal=True),
    RuntimeFault("os._exit(0)", leaves, _process(EXITED), (EXITED,), is_fatal=True),
    RuntimeFault("MPI_Abort", aborts, (ABORTED,), (ABORTED,), is_fatal=True),
    # It waits for the send, which the simulated world may leave without a buffer.
    RuntimeFault(
        "message left over", leaves_a_message, ("message left over", "deadlock"), ("message left over",)
    ),
    RuntimeFault("request leaked", leaves_a_request, ("request left open",), ("request left open",)),
    RuntimeFault("communicator for each call", makes_communicators, OPEN, OPEN, check="purity", ranks=1),
    RuntimeFault("nondeterministic result", throws, CHANGES, CHANGES, ranks=0),
    RuntimeFault(
        "wrong under one schedule", takes_the_first, (DEPENDS,), (), ranks=4, options=("--schedules", "6")
    ),
)
