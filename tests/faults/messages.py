"""Messages between two ranks that are lost, mixed up, or not what the receiver expects."""

from __future__ import annotations

from typing import Any

import numpy as np

from adjointlab import MPI
from adjointlab.engine.interleavings import DEPENDS
from tests.faults.declaring import DEADLOCK, MESSAGE, WRONG, RuntimeFault, Shift, declared, fault

REFUSED = ("raised ValueError", "raised Exception", "raised TypeError", "raised BufferError")
LEFT_OVER = ("message left over",)
NEVER_RECEIVED = (*DEADLOCK, *LEFT_OVER)
"""A send that is waited for: it may end at once, or when it is received."""
TRUNCATED = ("raised Exception", *MESSAGE)


def exchanged(name: str, send: Any, receive: Any, found: tuple[str, ...], **row: Any) -> RuntimeFault:
    """A row in which every rank sends one more message to its right: `send(op)` makes it, `receive(op)` takes it."""

    def exchange(op: Any) -> None:
        pending = send(op)
        receive(op)
        if pending is not None:
            pending.Wait()

    return fault(name, found, everywhere={"forward": exchange}, **row)


def sent(buffer: Any) -> Any:
    """Send `buffer` to the right, without waiting."""
    return lambda op: op.comm.Isend(buffer, op.right, 7)


def received(buffer: Any, tag: int = 7) -> Any:
    """Receive from the left into a buffer of that kind."""
    return lambda op: op.comm.Recv(np.array(buffer), op.left, tag)


class SendsToItself(Shift):
    def shifted(self, x: Any, dest: int, source: int) -> Any:
        result = np.array(x)
        self.comm.Ssend(x, self.rank, 3)
        self.comm.Recv(result, self.rank, 3)
        return super().shifted(result, dest, source)


class TakesAnyTag(Shift):
    """Two messages to the right, of which the second is scaled; they are taken to come in order of their tags."""

    def shifted(self, x: Any, dest: int, source: int) -> Any:
        one, other = np.empty(x.shape, x.dtype), np.empty(x.shape, x.dtype)
        pending = [self.comm.Isend(np.array(x), dest, 2), self.comm.Isend(2 * x, dest, 1)]
        self.comm.Recv(one, source, MPI.ANY_TAG)
        self.comm.Recv(other, source, MPI.ANY_TAG)
        for each in pending:
            each.Wait()
        return other if dest == self.right else one


class TakesAnySource(Shift):
    """The first rank takes what comes first for what the second has sent."""

    def forward(self, x: Any) -> Any:
        result = super().forward(x)
        if self.size < 3:
            return result
        got = np.zeros(1)
        if self.rank == 0:
            for _ in range(1, self.size):
                one = np.empty(1)
                self.comm.Recv(one, MPI.ANY_SOURCE, 3)
                got = got if got[0] else one
        else:
            self.comm.Send(np.full(1, float(self.rank)), 0, 3)
        self.comm.Barrier()
        return result * got[0] if self.rank == 0 else result


class ReceivesFromTheWrongSide(Shift):
    def forward(self, x: Any) -> Any:
        return self.shifted(x, self.right, self.right if self.size > 2 and self.is_faulty else self.left)


class SendsToTheWrongSide(Shift):
    def forward(self, x: Any) -> Any:
        return self.shifted(x, self.left if self.size > 2 and self.is_faulty else self.right, self.left)


class MixesUpTwo(Shift):
    """Two messages of one tag, received in another order than they are sent in, in the adjoint."""

    def adjoint(self, y: Any) -> Any:
        if self.size == 1:
            return super().adjoint(y)
        pending = [self.comm.Isend(part, self.left, 4) for part in (np.array(y), 0 * y)]
        one, other = np.empty(y.shape), np.empty(y.shape)
        self.comm.Recv(other, self.right, 4)
        self.comm.Recv(one, self.right, 4)
        for each in pending:
            each.Wait()
        return one


class ReceivesInTheOtherDirection(Shift):
    """Sends a message in forward that adjoint receives."""

    def forward(self, x: Any) -> Any:
        if self.size > 1:
            self.comm.Isend(np.ones(1), self.right, 6).Wait()
        return super().forward(x)

    def adjoint(self, y: Any) -> Any:
        if self.size > 1:
            self.comm.Recv(np.empty(1), self.left, 6)
        return super().adjoint(y)


class FromNobody(Shift):
    """Receives from MPI.PROC_NULL, which leaves the buffer as it is."""

    def adjoint(self, y: Any) -> Any:
        result = np.zeros(y.shape)
        self.comm.Sendrecv(np.array(y), self.left, 0, np.empty(y.shape), self.right, 0)
        self.comm.Recv(result, MPI.PROC_NULL, 0)
        return result


class Short(Shift):
    """Receives fewer elements than it has room for, and takes the rest for received too."""

    def adjoint(self, y: Any) -> Any:
        result = np.zeros(y.size + 1)
        self.comm.Sendrecv(np.array(y), self.left, 0, result, self.right, 0)
        return result[1:]


def polls(op: Any) -> None:
    while not op.comm.Iprobe(op.left, 55):
        pass


def matched_and_forgotten(op: Any) -> None:
    pending = op.comm.Isend(np.ones(1), op.right, 8)
    op.comm.Mprobe(op.left, 8)
    pending.Wait()


def of(name: str, operator: type[Shift], found: tuple[str, ...], **row: Any) -> RuntimeFault:
    return fault(name, found, base=operator, **row)


def read_only() -> Any:
    buffer = np.zeros(4)
    buffer.flags.writeable = False
    return buffer


FAULTS = declared(
    globals(),
    (
        of("wrong source", ReceivesFromTheWrongSide, DEADLOCK, ranks=3),
        of("wrong destination", SendsToTheWrongSide, DEADLOCK, ranks=3),
        of("blocking send to itself", SendsToItself, DEADLOCK, ranks=1),
        of(
            "message in forward that adjoint receives",
            ReceivesInTheOtherDirection,
            NEVER_RECEIVED,
            check="reentrancy",  # the others call both equally often, and Open MPI buffers the message
        ),
        of("two messages of one tag in the wrong order", MixesUpTwo, WRONG),
        of("any tag where tags matter", TakesAnyTag, WRONG, ranks=0),
        fault(
            "any source where sources matter",
            (DEPENDS,),
            (),
            base=TakesAnySource,
            ranks=3,
            options=("--schedules", "6"),
        ),
        of("receives from MPI.PROC_NULL", FromNobody, WRONG, ranks=1),
        of("fewer elements than expected, unnoticed", Short, WRONG, ranks=1),
        exchanged("receive buffer too small", sent(np.ones(4)), received(np.ones(2)), TRUNCATED),
        exchanged(
            "receives another dtype of the same size",
            sent(np.ones(4)),
            received(np.ones(4, "int64")),
            MESSAGE,
        ),
        exchanged("receives a smaller dtype", sent(np.ones(4)), received(np.ones(4, "float32")), TRUNCATED),
        exchanged("receives a larger dtype", sent(np.ones(4)), received(np.ones(4, "complex128")), MESSAGE),
        exchanged(
            "object sent, buffer received",
            lambda op: op.comm.isend({"a": 1}, op.right, 7),
            received(np.ones(64)),
            MESSAGE,
        ),
        exchanged(
            "buffer sent, object received",
            sent(np.ones(4)),
            lambda op: op.comm.recv(source=op.left, tag=7),
            (*MESSAGE, "raised UnpicklingError"),
        ),
        exchanged(
            "object left over",
            lambda op: op.comm.isend({"a": 1}, op.right, 7),
            lambda op: None,
            NEVER_RECEIVED,
        ),
        exchanged("message of another tag left over", sent(np.ones(1)), received(np.ones(1), 8), DEADLOCK),
        exchanged(
            "read-only receive buffer",
            sent(np.ones(4)),
            lambda op: op.comm.Recv(read_only(), op.left, 7),
            REFUSED,
        ),
        exchanged(
            "receive buffer with gaps",
            sent(np.ones(4)),
            lambda op: op.comm.Recv(np.zeros(8)[::2], op.left, 7),
            REFUSED,
        ),
        exchanged(
            "list for a buffer", lambda op: op.comm.Isend([1.0, 2.0], op.right, 7), lambda op: None, REFUSED
        ),
        fault(
            "destination that is no rank",
            REFUSED,
            first={"forward": lambda op: op.comm.Send(np.ones(1), op.size)},
        ),
        fault("negative tag", REFUSED, first={"forward": lambda op: op.comm.Send(np.ones(1), 0, -5)}),
        fault(
            "tag larger than MPI allows",
            (*REFUSED, "raised OverflowError"),
            first={"forward": lambda op: op.comm.Send(np.ones(1), 0, 1 << 40)},
        ),
        fault(
            "synchronous sends in a ring",
            DEADLOCK,
            everywhere={"forward": lambda op: op.comm.Ssend(np.ones(1), op.right, 2)},
        ),
        fault(
            "message that nobody sends",
            DEADLOCK,
            first={"forward": lambda op: op.comm.recv(source=0, tag=33)},
        ),
        fault(
            "message from itself that nobody sends",
            DEADLOCK,
            first={"forward": lambda op: op.comm.recv(source=op.rank, tag=33)},
        ),
        fault(
            "synchronous send that nobody receives",
            DEADLOCK,
            first={"forward": lambda op: op.comm.Ssend(np.ones(1), 0, 33)},
        ),
        fault(
            "any source, and nobody sends",
            DEADLOCK,
            first={"forward": lambda op: op.comm.recv(source=MPI.ANY_SOURCE, tag=33)},
        ),
        fault("probe for what nobody sends", DEADLOCK, first={"forward": lambda op: op.comm.Probe(0, 33)}),
        # Under MPI the name depends on which rank loses its patience first: that which polls, or one that waits for it.
        fault(
            "polls for what nobody sends", ("livelock",), ("livelock", *DEADLOCK), first={"forward": polls}
        ),
        fault(
            "probed and matched, never received",
            (*DEADLOCK, *LEFT_OVER, "request left open"),
            ("raised AttributeError",),  # refused by name there
            everywhere={"forward": matched_and_forgotten},
        ),
        fault(
            "message to itself left over",
            NEVER_RECEIVED,
            first={"forward": lambda op: op.comm.Isend(np.ones(1), op.rank, 9).Wait()},
        ),
        fault(
            "buffered send without a buffer",
            ("coherent", "raised Exception", *LEFT_OVER),
            ("raised AttributeError",),  # refused by name there
            first={"forward": lambda op: op.comm.Bsend(np.ones(1), 0, 9)},
        ),
    ),
)
