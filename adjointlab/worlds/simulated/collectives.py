"""The collectives on buffers: how each reads its arguments, what its ranks must agree on, what it computes.

Each is a function of a communicator and mpi4py's arguments that returns an :class:`Entry`, named as in mpi4py; the
rank that arrives last computes for all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from adjointlab import MPI
from adjointlab.worlds.buffers import Blocks, Elements, Flat, blocks, elements
from adjointlab.worlds.constants import is_in_place
from adjointlab.worlds.constants import op as as_op
from adjointlab.worlds.simulated.matching import poison
from adjointlab.worlds.simulated.reductions import accumulate_into, check, fold

__all__ = ["BUFFER_COLLECTIVES", "Disagreement", "Entry"]


class Disagreement(Exception):
    """The arguments of two ranks do not fit together."""

    def __init__(self, one: int, other: int, what: str) -> None:
        super().__init__(what)
        self.ranks = one, other  # in the communicator


class Entry:
    """What one rank brings to a collective, where it wants the result, and what it thinks the others bring."""

    group = None

    __slots__ = (
        "_buffer",
        "_poisoned",
        "_sent",
        "_watched",
        "compute",
        "counts",
        "kind",
        "op",
        "receive",
        "root",
        "send",
        "signature",
    )

    def __init__(
        self,
        kind: str,
        compute: Callable[[Sequence[Entry]], None],
        *,
        send: Elements | Blocks | None = None,
        receive: Elements | Blocks | None = None,
        root: int | None = None,
        op: MPI.Op | None = None,
        count: Any = None,
        counts: list[int] | None = None,
    ) -> None:
        self.kind = kind
        self.compute = compute
        self.send = send  # None: in place, or nothing to send
        self.receive = receive  # None: nothing to receive
        self.root = 0 if root is None else root
        self.op: Any = op
        self.counts = counts
        self._buffer: Flat | None = None
        self._poisoned: list[bytes] = []
        self._watched: Elements | Blocks | None = None
        self._sent: list[bytes] = []
        some = send or receive
        # What all ranks must agree on; a rank has no say where it has None.
        self.signature = (
            root,
            None if op is None else op.value,
            None if some is None else some.datatype.numpy,
            count,
        )
        if send is not None and receive is not None and _overlap(send, receive):
            raise MPI.Exception(f"{kind}: the send and receive buffers must not be aliased", MPI.ERR_BUFFER)

    @property
    def contribution(self) -> Flat:
        """What the rank brings, be it in place."""
        own = self.receive if self.send is None else self.send
        assert own is not None
        return own.array

    def watch(self) -> None:
        """Its owner goes on while it is under way: note what the send buffer holds."""
        if self.send is not None:
            self._watched, self._sent = self.send, _contents(self.send)

    def misuse(self) -> str:
        """What its owner has done to buffers that are not its own before :meth:`finish`."""
        if self._watched is not None and _contents(self._watched) != self._sent:
            return "changed the send buffer"
        if self._buffer is not None and self.receive is not None:
            its = self.receive._replace(array=self._buffer)
            if _contents(its) != self._poisoned:
                return "wrote into the receive buffer"
        return ""

    def hold(self) -> None:
        """Read the send buffer now."""
        if self.send is not None:
            self.send = self.send._replace(array=self.send.array.copy())

    def delay(self) -> None:
        """Have the result written elsewhere, and make the receive buffer useless until :meth:`finish`."""
        if self.receive is not None:
            self._buffer = self.receive.array
            self.receive = self.receive._replace(array=self._buffer.copy())
            for stretch in _stretches(self.receive):
                poison(self._buffer[stretch])
            self._poisoned = _contents(self.receive._replace(array=self._buffer))

    def finish(self) -> Any:
        """The owner takes its buffers back."""
        if self._buffer is not None and self.receive is not None:
            for stretch in _stretches(self.receive):
                self._buffer[stretch] = self.receive.array[stretch]
            self._buffer = None


def _stretches(buffer: Elements | Blocks) -> list[slice]:
    if isinstance(buffer, Elements):
        return [slice(None)]
    return [slice(start, start + n) for start, n in zip(buffer.displacements, buffer.counts, strict=True)]


def _contents(buffer: Elements | Blocks) -> list[bytes]:
    return [buffer.array[stretch].tobytes() for stretch in _stretches(buffer)]


def _overlap(send: Elements | Blocks, receive: Elements | Blocks) -> bool:
    if not np.may_share_memory(send.array, receive.array):
        return False
    return any(
        np.may_share_memory(send.array[mine], receive.array[theirs])
        for mine in _stretches(send)
        for theirs in _stretches(receive)
    )


# Reading arguments


def _sent(spec: Any) -> Elements:
    return elements(spec, writable=False)


def _received(spec: Any) -> Elements:
    return elements(spec, writable=True)


def _reducible(kind: str, sendbuf: Any, recvbuf: Any, op: Any, *, receives: bool = True) -> dict[str, Any]:
    """Send and receive buffer (of one size) and operation of a reduction."""
    receive = _received(recvbuf) if receives else None
    send = None if receives and is_in_place(sendbuf) else _sent(sendbuf)
    if send is not None and receive is not None:
        if send.datatype != receive.datatype:
            raise ValueError("mismatch in send and receive MPI datatypes")
        if send.array.size != receive.array.size:
            raise ValueError(
                f"mismatch in send count {send.array.size} and receive count {receive.array.size}"
            )
    some = send or receive
    assert some is not None
    return {"send": send, "receive": receive, "op": check(as_op(op), some), "count": some.array.size}


# The collectives. First what each computes, then how it is called.


def _bcast(entries: Sequence[Entry]) -> None:
    send = entries[entries[0].root].send
    assert send is not None
    for entry in entries:
        if entry.receive is not None:
            entry.receive.array[:] = send.array


def Bcast(comm: Any, buf: Any, root: int = 0) -> Entry:
    root = comm.root(root)
    here = _sent(buf) if root == comm.rank else _received(buf)
    side = "send" if root == comm.rank else "receive"
    return Entry("Bcast", _bcast, root=root, count=here.array.size, **{side: here})  # type: ignore[arg-type]


def _reduce(entries: Sequence[Entry]) -> None:
    first = entries[0]
    receive = entries[first.root].receive
    assert receive is not None
    receive.array[:] = fold(first.op, [entry.contribution for entry in entries])


def Reduce(comm: Any, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM, root: int = 0) -> Entry:
    root = comm.root(root)
    return Entry(
        "Reduce", _reduce, root=root, **_reducible("Reduce", sendbuf, recvbuf, op, receives=root == comm.rank)
    )


def _allreduce(entries: Sequence[Entry]) -> None:
    total = fold(entries[0].op, [entry.contribution for entry in entries])
    for entry in entries:
        assert entry.receive is not None
        entry.receive.array[:] = total


def Allreduce(comm: Any, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM) -> Entry:
    return Entry("Allreduce", _allreduce, **_reducible("Allreduce", sendbuf, recvbuf, op))


def _scan(entries: Sequence[Entry]) -> None:
    total: Flat | None = None
    for entry in entries:
        assert entry.receive is not None
        if total is None:
            total = entry.contribution.copy()
        else:
            accumulate_into(total, entry.op, entry.contribution)
        entry.receive.array[:] = total


def Scan(comm: Any, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM) -> Entry:
    return Entry("Scan", _scan, **_reducible("Scan", sendbuf, recvbuf, op))


def _exscan(entries: Sequence[Entry]) -> None:
    total = entries[0].contribution.copy()
    for entry in entries[1:]:
        assert entry.receive is not None
        own = entry.contribution.copy()
        entry.receive.array[:] = total
        accumulate_into(total, entry.op, own)


def Exscan(comm: Any, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM) -> Entry:
    return Entry("Exscan", _exscan, **_reducible("Exscan", sendbuf, recvbuf, op))


def _reduce_scatter(entries: Sequence[Entry]) -> None:
    counts = entries[0].counts
    if counts is None:
        counts = [0 if entry.receive is None else entry.receive.array.size for entry in entries]
    total = fold(entries[0].op, [entry.contribution for entry in entries])
    if sum(counts) != total.size:
        raise Disagreement(
            0,
            len(entries) - 1,
            f"send count {total.size}, but the receive counts {counts} sum to {sum(counts)}",
        )
    start = 0
    for entry, count in zip(entries, counts, strict=True):
        assert entry.receive is not None
        entry.receive.array[:count] = total[start : start + count]
        start += count


def Reduce_scatter(
    comm: Any, sendbuf: Any, recvbuf: Any, recvcounts: Sequence[int] | None = None, op: Any = MPI.SUM
) -> Entry:
    receive = _received(recvbuf)
    send = None if is_in_place(sendbuf) else _sent(sendbuf)
    some = send or receive
    counts = None if recvcounts is None else [int(count) for count in recvcounts]
    if send is not None and send.datatype != receive.datatype:
        raise ValueError("mismatch in send and receive MPI datatypes")
    if counts is None:
        if send is None:
            raise TypeError("Reduce_scatter in place needs recvcounts")
    elif len(counts) != comm.size:
        raise ValueError(f"expecting {comm.size} items, got {len(counts)}")
    elif some.array.size != sum(counts):
        side = "receive" if send is None else "send"
        raise ValueError(f"mismatch in {side} count {some.array.size} and sum(counts) {sum(counts)}")
    elif send is not None and receive.array.size != counts[comm.rank]:
        raise ValueError(
            f"mismatch in receive count {receive.array.size} and counts[{comm.rank}] {counts[comm.rank]}"
        )
    return Entry(
        "Reduce_scatter",
        _reduce_scatter,
        send=send,
        receive=receive,
        op=check(as_op(op), some),
        count=some.array.size,
        counts=counts,
    )


def Reduce_scatter_block(comm: Any, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM) -> Entry:
    if is_in_place(sendbuf):
        send = None
        receive = elements(recvbuf, writable=True, divisor=comm.size)
        count = receive.array.size // comm.size
    else:
        receive = _received(recvbuf)
        send = elements(sendbuf, writable=False, divisor=comm.size)
        count = receive.array.size
        if send.datatype != receive.datatype:
            raise ValueError("mismatch in send and receive MPI datatypes")
        if send.array.size != count * comm.size:
            raise ValueError(
                f"mismatch in send count {send.array.size // comm.size} and receive count {count}"
            )
    return Entry(
        "Reduce_scatter_block",
        _reduce_scatter,
        send=send,
        receive=receive,
        op=check(as_op(op), send or receive),
        count=count,
        counts=[count] * comm.size,
    )


def _stretch(buffer: Elements | Blocks | None, rank: int, ranks: int) -> Flat:
    """The part of `buffer` that belongs to `rank`."""
    assert buffer is not None
    if isinstance(buffer, Blocks):
        start, count = buffer.displacements[rank], buffer.counts[rank]
    else:
        count = buffer.array.size // ranks
        start = rank * count
    return buffer.array[start : start + count]


def _move(source: Flat, target: Flat, sender: int, receiver: int) -> None:
    if source.size != target.size:
        raise Disagreement(
            sender,
            receiver,
            f"the first sends {source.size} elements to the second, which expects {target.size}",
        )
    target[:] = source


def _gather(entries: Sequence[Entry]) -> None:
    root = entries[0].root
    for rank, entry in enumerate(entries):
        if entry.send is not None:
            _move(entry.send.array, _stretch(entries[root].receive, rank, len(entries)), rank, root)


def _gather_entry(kind: str, comm: Any, sendbuf: Any, recvbuf: Any, root: int, vector: bool) -> Entry:
    root = comm.root(root)
    if root != comm.rank:
        send = _sent(sendbuf)
        return Entry(kind, _gather, root=root, send=send, count=None if vector else send.array.size)
    receive = (
        blocks(recvbuf, comm.size, writable=True)
        if vector
        else elements(recvbuf, writable=True, divisor=comm.size)
    )
    own = None if is_in_place(sendbuf) else _sent(sendbuf)
    return Entry(
        kind,
        _gather,
        root=root,
        send=own,
        receive=receive,
        count=None if vector else receive.array.size // comm.size,
    )


def Gather(comm: Any, sendbuf: Any, recvbuf: Any, root: int = 0) -> Entry:
    return _gather_entry("Gather", comm, sendbuf, recvbuf, root, vector=False)


def Gatherv(comm: Any, sendbuf: Any, recvbuf: Any, root: int = 0) -> Entry:
    return _gather_entry("Gatherv", comm, sendbuf, recvbuf, root, vector=True)


def _scatter(entries: Sequence[Entry]) -> None:
    root = entries[0].root
    for rank, entry in enumerate(entries):
        if entry.receive is not None:
            _move(_stretch(entries[root].send, rank, len(entries)), entry.receive.array, root, rank)


def _scatter_entry(kind: str, comm: Any, sendbuf: Any, recvbuf: Any, root: int, vector: bool) -> Entry:
    root = comm.root(root)
    if root != comm.rank:
        receive = _received(recvbuf)
        return Entry(kind, _scatter, root=root, receive=receive, count=None if vector else receive.array.size)
    send = (
        blocks(sendbuf, comm.size, writable=False)
        if vector
        else elements(sendbuf, writable=False, divisor=comm.size)
    )
    own = None if is_in_place(recvbuf) else _received(recvbuf)
    return Entry(
        kind,
        _scatter,
        root=root,
        send=send,
        receive=own,
        count=None if vector else send.array.size // comm.size,
    )


def Scatter(comm: Any, sendbuf: Any, recvbuf: Any, root: int = 0) -> Entry:
    return _scatter_entry("Scatter", comm, sendbuf, recvbuf, root, vector=False)


def Scatterv(comm: Any, sendbuf: Any, recvbuf: Any, root: int = 0) -> Entry:
    return _scatter_entry("Scatterv", comm, sendbuf, recvbuf, root, vector=True)


def _allgather(entries: Sequence[Entry]) -> None:
    ranks = len(entries)
    parts = [
        _stretch(entry.receive, rank, ranks) if entry.send is None else entry.send.array
        for rank, entry in enumerate(entries)
    ]
    whole = np.concatenate(parts)
    for receiver, entry in enumerate(entries):
        receive = entry.receive
        assert receive is not None
        if isinstance(receive, Elements):
            _move(whole, receive.array, 0, receiver)
        elif receive.packed and receive.counts == [part.size for part in parts]:
            receive.array[: whole.size] = whole
        else:
            for sender, part in enumerate(parts):
                _move(part, _stretch(receive, sender, ranks), sender, receiver)


def Allgather(comm: Any, sendbuf: Any, recvbuf: Any) -> Entry:
    receive = elements(recvbuf, writable=True, divisor=comm.size)
    send = None if is_in_place(sendbuf) else _sent(sendbuf)
    count = receive.array.size // comm.size if send is None else send.array.size
    return Entry("Allgather", _allgather, send=send, receive=receive, count=count)


def Allgatherv(comm: Any, sendbuf: Any, recvbuf: Any) -> Entry:
    receive = blocks(recvbuf, comm.size, writable=True)
    send = None if is_in_place(sendbuf) else _sent(sendbuf)
    return Entry("Allgatherv", _allgather, send=send, receive=receive, count=tuple(receive.counts))


def _alltoall(entries: Sequence[Entry]) -> None:
    ranks = len(entries)
    # In place, what is sent is overwritten by what is received.
    sends = [
        entry.send or (entry.receive and entry.receive._replace(array=entry.receive.array.copy()))
        for entry in entries
    ]
    for receiver, entry in enumerate(entries):
        for sender, send in enumerate(sends):
            _move(_stretch(send, receiver, ranks), _stretch(entry.receive, sender, ranks), sender, receiver)


def Alltoall(comm: Any, sendbuf: Any, recvbuf: Any) -> Entry:
    receive = elements(recvbuf, writable=True, divisor=comm.size)
    send = None if is_in_place(sendbuf) else elements(sendbuf, writable=False, divisor=comm.size)
    return Entry(
        "Alltoall", _alltoall, send=send, receive=receive, count=(send or receive).array.size // comm.size
    )


def Alltoallv(comm: Any, sendbuf: Any, recvbuf: Any) -> Entry:
    receive = blocks(recvbuf, comm.size, writable=True)
    send = None if is_in_place(sendbuf) else blocks(sendbuf, comm.size, writable=False)
    return Entry("Alltoallv", _alltoall, send=send, receive=receive)


def _barrier(entries: Sequence[Entry]) -> None:
    """Nothing: that all are here is all."""


def Barrier(comm: Any) -> Entry:
    return Entry("Barrier", _barrier)


BUFFER_COLLECTIVES: dict[str, Callable[..., Entry]] = {
    each.__name__: each
    for each in (
        Barrier,
        Bcast,
        Reduce,
        Allreduce,
        Reduce_scatter,
        Reduce_scatter_block,
        Scan,
        Exscan,
        Gather,
        Gatherv,
        Scatter,
        Scatterv,
        Allgather,
        Allgatherv,
        Alltoall,
        Alltoallv,
    )
}
