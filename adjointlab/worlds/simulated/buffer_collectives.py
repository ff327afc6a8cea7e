"""Collectives on buffers: parsing of their arguments, the arguments that ranks must agree on, and the computations.

Each collective is a function of a communicator and mpi4py's arguments, with mpi4py's name, that returns a
:class:`BufferContribution`; the rank that arrives last computes for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from operator import index
from typing import TypeAlias

import numpy as np

from adjointlab import MPI
from adjointlab.quantities import counted
from adjointlab.typing import Buffer, Communicator
from adjointlab.worlds.arguments import Blocks, Elements, Flat, blocks, elements, typed_blocks
from adjointlab.worlds.constants import Operator, as_op, is_in_place, op_name, refuse_in_place_off_root
from adjointlab.worlds.parts import counts_text
from adjointlab.worlds.simulated.collectives import (
    Contribution,
    Disagreement,
    Signature,
    UnequalParts,
    valid_root,
)
from adjointlab.worlds.simulated.matching import poison
from adjointlab.worlds.simulated.reductions import check, fold, running

__all__ = ["BUFFER_COLLECTIVES", "BufferContribution", "block", "move", "refuse_aliased"]


class BufferContribution(Contribution):
    """Buffers of one rank in a collective."""

    __slots__ = (
        *("_buffer", "_poisoned", "_sent", "_watched"),
        *("counts", "op", "receive", "receive_types", "send", "send_types"),
    )

    send_types: list[MPI.Datatype]  # of Alltoallw: datatypes of the blocks, which are given in bytes
    receive_types: list[MPI.Datatype]

    def __init__(
        self,
        kind: str,
        compute: Callable[[Sequence[BufferContribution]], None],
        *,
        send: Elements | Blocks | None = None,
        receive: Elements | Blocks | None = None,
        root: int | None = None,
        op: Operator | None = None,
        count: object = None,
        counts: list[int] | None = None,
    ) -> None:
        either = send or receive
        datatype = None if either is None else either.datatype.numpy
        super().__init__(kind, compute, Signature(root, None if op is None else op_name(op), datatype, count))
        if send is not None and receive is not None:
            refuse_aliased(kind, send, receive)
        self.send = send  # None: in place, or nothing to send
        self.receive = receive  # None: nothing to receive
        self.op = op
        self.counts = counts
        self._watched: Elements | Blocks | None = None  # the send buffer of a non-blocking call
        self._sent: list[bytes] = []  # its contents at the call
        self._buffer: Flat | None = None  # the user's receive buffer, while results are written elsewhere
        self._poisoned: list[bytes] = []  # its contents meanwhile

    def counts_text(self) -> str:
        sent, expected = (
            each.counts if isinstance(each, Blocks) else None for each in (self.send, self.receive)
        )
        return counts_text(sent, expected)

    @property
    def contribution(self) -> Flat:
        """Elements that the rank contributes, also if it is in place."""
        own = self.receive if self.send is None else self.send
        assert own is not None
        return own.array

    @property
    def result(self) -> Flat:
        """Elements that receive the result."""
        assert self.receive is not None
        return self.receive.array

    @property
    def operation(self) -> Operator:
        """The reduction operation."""
        assert self.op is not None
        return self.op

    def watch(self) -> None:
        if self.send is not None:
            self._watched, self._sent = self.send, _contents(self.send)

    def misuse(self) -> str:
        if self._watched is not None and _contents(self._watched) != self._sent:
            return "changed the send buffer"
        if self._buffer is None or self.receive is None:
            return ""
        is_intact = _contents(self.receive._replace(array=self._buffer)) == self._poisoned
        return "" if is_intact else "wrote into the receive buffer"

    def hold(self) -> None:
        if self.send is not None:
            self.send = self.send._replace(array=self.send.array.copy())

    def delay(self) -> None:
        if self.receive is not None:
            self._buffer = self.receive.array
            # A copy rather than an empty array, because elements between the blocks must keep their values.
            self.receive = self.receive._replace(array=self._buffer.copy())
            for block in _slices(self.receive):
                poison(self._buffer[block])
            self._poisoned = _contents(self.receive._replace(array=self._buffer))

    def finish(self) -> None:
        if self._buffer is not None and self.receive is not None:
            for block in _slices(self.receive):
                self._buffer[block] = self.receive.array[block]
            self._buffer = None


Contributions: TypeAlias = Sequence[BufferContribution]


def _slices(buffer: Elements | Blocks) -> list[slice]:
    if isinstance(buffer, Elements):
        return [slice(None)]
    return [slice(start, start + n) for start, n in zip(buffer.displacements, buffer.counts, strict=True)]


def _contents(buffer: Elements | Blocks) -> list[bytes]:
    return [buffer.array[block].tobytes() for block in _slices(buffer)]


def refuse_aliased(call: str, send: Elements | Blocks, receive: Elements | Blocks) -> None:
    """Raise `adjointlab.MPI.Exception` for a call whose send and receive buffers overlap."""
    if _overlap(send, receive):
        raise MPI.Exception(f"{call}: the send and receive buffers must not be aliased", MPI.ERR_BUFFER)


def _overlap(send: Elements | Blocks, receive: Elements | Blocks) -> bool:
    if not np.may_share_memory(send.array, receive.array):
        return False
    # Blocks of one array may be sent and received by the same call, as long as no element is in both.
    return any(
        np.may_share_memory(send.array[sent], receive.array[received])
        for sent in _slices(send)
        for received in _slices(receive)
    )


# Reading arguments


def _sent(spec: Buffer, blocks: int = 1) -> Elements:
    return elements(spec, writable=False, blocks=blocks)


def _received(spec: Buffer, blocks: int = 1) -> Elements:
    return elements(spec, writable=True, blocks=blocks)


def _sent_unless_in_place(spec: Buffer, blocks: int = 1) -> Elements | None:
    return None if is_in_place(spec) else _sent(spec, blocks)


def _check_datatypes(send: Elements | None, receive: Elements) -> None:
    # Compares the NumPy types, because mpi4py has several datatypes for one NumPy type, and an array maps to only one of them.
    if send is not None and send.datatype.numpy != receive.datatype.numpy:
        raise ValueError("mismatch in send and receive MPI datatypes")


def _reduction(
    kind: str,
    compute: Callable[[Contributions], None],
    sendbuf: Buffer,
    recvbuf: Buffer,
    op: Operator,
    root: int | None = None,
    *,
    receives: bool = True,
) -> BufferContribution:
    """Contribution to a reduction in which every rank sends and receives equally many elements."""
    if not receives:
        refuse_in_place_off_root(kind, sendbuf)
    receive = _received(recvbuf) if receives else None
    send = _sent_unless_in_place(sendbuf) if receives else _sent(sendbuf)
    if send is not None and receive is not None:
        _check_datatypes(send, receive)
        if send.array.size != receive.array.size:
            raise ValueError(
                f"mismatch in send count {send.array.size} and receive count {receive.array.size}"
            )
    either = send or receive
    assert either is not None
    checked = check(as_op(op), either)
    return BufferContribution(
        kind, compute, send=send, receive=receive, root=root, op=checked, count=either.array.size
    )


# The collectives: for each, first the computation from the contributions of all ranks, then the parsing of a call.


def _bcast(contributions: Contributions) -> None:
    data = contributions[contributions[0].root].contribution
    for each in contributions:
        if each.receive is not None:
            each.result[:] = data


def Bcast(comm: Communicator, buf: Buffer, root: int = 0) -> BufferContribution:
    if valid_root(comm, root) == comm.rank:
        send = _sent(buf)
        return BufferContribution("Bcast", _bcast, send=send, root=root, count=send.array.size)
    receive = _received(buf)
    return BufferContribution("Bcast", _bcast, receive=receive, root=root, count=receive.array.size)


def _reduce(contributions: Contributions) -> None:
    first = contributions[0]
    contributions[first.root].result[:] = fold(first.operation, [each.contribution for each in contributions])


def Reduce(
    comm: Communicator, sendbuf: Buffer, recvbuf: Buffer, op: Operator = MPI.SUM, root: int = 0
) -> BufferContribution:
    receives = valid_root(comm, root) == comm.rank
    return _reduction("Reduce", _reduce, sendbuf, recvbuf, op, root, receives=receives)


def _allreduce(contributions: Contributions) -> None:
    total = fold(contributions[0].operation, [each.contribution for each in contributions])
    for each in contributions:
        each.result[:] = total


def Allreduce(
    comm: Communicator, sendbuf: Buffer, recvbuf: Buffer, op: Operator = MPI.SUM
) -> BufferContribution:
    return _reduction("Allreduce", _allreduce, sendbuf, recvbuf, op)


def _running(contributions: Contributions) -> Iterator[tuple[BufferContribution, Flat]]:
    totals = running(contributions[0].operation, (each.contribution for each in contributions))
    return zip(contributions, totals, strict=True)


def _scan(contributions: Contributions) -> None:
    for each, total in _running(contributions):
        each.result[:] = total


def Scan(comm: Communicator, sendbuf: Buffer, recvbuf: Buffer, op: Operator = MPI.SUM) -> BufferContribution:
    return _reduction("Scan", _scan, sendbuf, recvbuf, op)


def _exscan(contributions: Contributions) -> None:
    before: Flat | None = None
    for each, total in _running(contributions):
        # The result of rank 0 is undefined in MPI: its buffer is not written.
        if before is not None:
            each.result[:] = before
        before = total.copy()


def Exscan(
    comm: Communicator, sendbuf: Buffer, recvbuf: Buffer, op: Operator = MPI.SUM
) -> BufferContribution:
    return _reduction("Exscan", _exscan, sendbuf, recvbuf, op)


def _reduce_scatter(contributions: Contributions) -> None:
    counts = contributions[0].counts
    if counts is None:
        counts = [each.result.size for each in contributions]
    total = fold(contributions[0].operation, [each.contribution for each in contributions])
    if sum(counts) != total.size:
        reason = f"send count {total.size}, but the receive counts {counts} sum to {sum(counts)}"
        raise Disagreement(0, len(contributions) - 1, reason)
    starts = accumulate(counts, initial=0)
    for each, start, count in zip(contributions, starts, counts, strict=False):
        each.result[:count] = total[start : start + count]


def Reduce_scatter(
    comm: Communicator,
    sendbuf: Buffer,
    recvbuf: Buffer,
    recvcounts: Sequence[int] | None = None,
    op: Operator = MPI.SUM,
) -> BufferContribution:
    receive, send = _received(recvbuf), _sent_unless_in_place(sendbuf)
    _check_datatypes(send, receive)
    own = send or receive
    counts = None if recvcounts is None else list(map(index, recvcounts))
    if counts is None:
        if send is None:
            raise TypeError("Reduce_scatter in place needs recvcounts")
    elif len(counts) != comm.size:
        raise ValueError(f"expecting {comm.size} items, got {len(counts)}")
    elif own.array.size != sum(counts):
        kind = "receive" if send is None else "send"
        raise ValueError(f"mismatch in {kind} count {own.array.size} and sum(counts) {sum(counts)}")
    elif send is not None and receive.array.size != counts[comm.rank]:
        raise ValueError(
            f"mismatch in receive count {receive.array.size} and counts[{comm.rank}] {counts[comm.rank]}"
        )
    return BufferContribution(
        "Reduce_scatter",
        _reduce_scatter,
        send=send,
        receive=receive,
        op=check(as_op(op), own),
        # Without counts, mpi4py gathers them from the ranks.
        count=own.array.size if counts is None else tuple(counts),
        counts=counts,
    )


def Reduce_scatter_block(
    comm: Communicator, sendbuf: Buffer, recvbuf: Buffer, op: Operator = MPI.SUM
) -> BufferContribution:
    send = _sent_unless_in_place(sendbuf, comm.size)
    receive = _received(recvbuf, comm.size if send is None else 1)
    _check_datatypes(send, receive)
    count = receive.array.size // (comm.size if send is None else 1)
    if send is not None and send.array.size != count * comm.size:
        raise ValueError(f"mismatch in send count {send.array.size // comm.size} and receive count {count}")
    return BufferContribution(
        "Reduce_scatter_block",
        _reduce_scatter,
        send=send,
        receive=receive,
        op=check(as_op(op), send or receive),
        count=count,
        counts=[count] * comm.size,
    )


def block(buffer: Elements | Blocks | None, rank: int, ranks: int) -> Flat:
    """The block for `rank` in a buffer of `ranks` blocks."""
    assert buffer is not None
    if isinstance(buffer, Blocks):
        start, count = buffer.displacements[rank], buffer.counts[rank]
    else:
        count = buffer.array.size // ranks
        start = rank * count
    return buffer.array[start : start + count]


def move(source: Flat, target: Flat, sender: int, receiver: int) -> None:
    """Copy a block from `sender` to `receiver`; raises :class:`UnequalParts` unless type and size agree."""
    is_of_bytes = source.dtype.itemsize == target.dtype.itemsize == 1
    if source.dtype != target.dtype and source.size and target.size and not is_of_bytes:
        raise UnequalParts(sender, receiver, str(source.dtype), str(target.dtype))
    if source.size != target.size:
        # Blocks of an Alltoallw are in bytes, whatever their datatypes.
        noun = "byte" if source.dtype == np.uint8 else "element"
        raise UnequalParts(sender, receiver, counted(source.size, noun), str(target.size))
    target[:] = source


def _gather(contributions: Contributions) -> None:
    root, ranks = contributions[0].root, len(contributions)
    for rank, each in enumerate(contributions):
        if each.send is not None:
            move(each.send.array, block(contributions[root].receive, rank, ranks), rank, root)


def _gathering(
    kind: str, comm: Communicator, sendbuf: Buffer, recvbuf: Buffer, root: int
) -> BufferContribution:
    # The receive buffer is significant only at the root and may be anything elsewhere.
    if valid_root(comm, root) != comm.rank:
        refuse_in_place_off_root(kind, sendbuf)
        send = _sent(sendbuf)
        return BufferContribution(kind, _gather, root=root, send=send, count=_count(kind, send, 1))
    receive = _of_all_ranks(kind, comm, recvbuf, writable=True)
    own = _sent_unless_in_place(sendbuf)
    count = _count(kind, receive, comm.size)
    return BufferContribution(kind, _gather, root=root, send=own, receive=receive, count=count)


def _of_all_ranks(kind: str, comm: Communicator, spec: Buffer, *, writable: bool) -> Elements | Blocks:
    if kind.endswith("v"):
        return blocks(spec, comm.size, writable=writable)
    return elements(spec, writable=writable, blocks=comm.size)


def _count(kind: str, buffer: Elements | Blocks, ranks: int) -> int | None:
    """Number of elements per rank, which must be equal on all ranks; None for the vector forms, where it may differ."""
    return None if kind.endswith("v") else buffer.array.size // ranks


def Gather(comm: Communicator, sendbuf: Buffer, recvbuf: Buffer, root: int = 0) -> BufferContribution:
    return _gathering("Gather", comm, sendbuf, recvbuf, root)


def Gatherv(comm: Communicator, sendbuf: Buffer, recvbuf: Buffer, root: int = 0) -> BufferContribution:
    return _gathering("Gatherv", comm, sendbuf, recvbuf, root)


def _scatter(contributions: Contributions) -> None:
    root, ranks = contributions[0].root, len(contributions)
    for rank, each in enumerate(contributions):
        if each.receive is not None:
            move(block(contributions[root].send, rank, ranks), each.result, root, rank)


def _scattering(
    kind: str, comm: Communicator, sendbuf: Buffer, recvbuf: Buffer, root: int
) -> BufferContribution:
    if valid_root(comm, root) != comm.rank:
        refuse_in_place_off_root(kind, recvbuf)
        receive = _received(recvbuf)
        return BufferContribution(kind, _scatter, root=root, receive=receive, count=_count(kind, receive, 1))
    send = _of_all_ranks(kind, comm, sendbuf, writable=False)
    own = None if is_in_place(recvbuf) else _received(recvbuf)
    count = _count(kind, send, comm.size)
    return BufferContribution(kind, _scatter, root=root, send=send, receive=own, count=count)


def Scatter(comm: Communicator, sendbuf: Buffer, recvbuf: Buffer, root: int = 0) -> BufferContribution:
    return _scattering("Scatter", comm, sendbuf, recvbuf, root)


def Scatterv(comm: Communicator, sendbuf: Buffer, recvbuf: Buffer, root: int = 0) -> BufferContribution:
    return _scattering("Scatterv", comm, sendbuf, recvbuf, root)


def _allgather(contributions: Contributions) -> None:
    ranks = len(contributions)
    parts = [
        block(each.receive, rank, ranks) if each.send is None else each.send.array
        for rank, each in enumerate(contributions)
    ]
    whole = np.concatenate(parts)
    for receiver, each in enumerate(contributions):
        receive = each.receive
        if isinstance(receive, Elements):
            move(whole, receive.array, 0, receiver)
        elif (
            receive is not None
            and receive.packed
            and receive.array.dtype == whole.dtype
            and receive.counts == [part.size for part in parts]
        ):
            # If the blocks are contiguous, one copy instead of one for each sender.
            receive.array[: whole.size] = whole
        else:
            for sender, part in enumerate(parts):
                move(part, block(receive, sender, ranks), sender, receiver)


def Allgather(comm: Communicator, sendbuf: Buffer, recvbuf: Buffer) -> BufferContribution:
    receive = _received(recvbuf, comm.size)
    send = _sent_unless_in_place(sendbuf)
    count = receive.array.size // comm.size if send is None else send.array.size
    return BufferContribution("Allgather", _allgather, send=send, receive=receive, count=count)


def Allgatherv(comm: Communicator, sendbuf: Buffer, recvbuf: Buffer) -> BufferContribution:
    receive = blocks(recvbuf, comm.size, writable=True)
    send = _sent_unless_in_place(sendbuf)
    counts = tuple(receive.counts)
    return BufferContribution("Allgatherv", _allgather, send=send, receive=receive, count=counts)


def _alltoall(contributions: Contributions) -> None:
    ranks = len(contributions)
    # Copied if in place, because received blocks would overwrite blocks still to be sent.
    sends = [
        each.send or (each.receive and each.receive._replace(array=each.receive.array.copy()))
        for each in contributions
    ]
    for receiver, each in enumerate(contributions):
        for sender, send in enumerate(sends):
            move(block(send, receiver, ranks), block(each.receive, sender, ranks), sender, receiver)


def Alltoall(comm: Communicator, sendbuf: Buffer, recvbuf: Buffer) -> BufferContribution:
    receive = _received(recvbuf, comm.size)
    send = _sent_unless_in_place(sendbuf, comm.size)
    count = (send or receive).array.size // comm.size
    return BufferContribution("Alltoall", _alltoall, send=send, receive=receive, count=count)


def Alltoallv(comm: Communicator, sendbuf: Buffer, recvbuf: Buffer) -> BufferContribution:
    receive = blocks(recvbuf, comm.size, writable=True)
    send = None if is_in_place(sendbuf) else blocks(sendbuf, comm.size, writable=False)
    return BufferContribution("Alltoallv", _alltoall, send=send, receive=receive)


def _alltoallw(contributions: Contributions) -> None:
    for receiver, each in enumerate(contributions):
        for sender, other in enumerate(contributions):
            sent, expected = other.send_types[receiver], each.receive_types[sender]
            if sent != expected and block(each.receive, sender, len(contributions)).size:
                raise UnequalParts(sender, receiver, sent.name, expected.name)
    _alltoall(contributions)


def Alltoallw(comm: Communicator, sendbuf: Buffer, recvbuf: Buffer) -> BufferContribution:
    receive, receive_types = typed_blocks(recvbuf, comm.size, writable=True)
    send, send_types = None, receive_types
    if not is_in_place(sendbuf):
        send, send_types = typed_blocks(sendbuf, comm.size, writable=False)
    contribution = BufferContribution("Alltoallw", _alltoallw, send=send, receive=receive)
    contribution.send_types, contribution.receive_types = send_types, receive_types
    return contribution


def _barrier(contributions: Contributions) -> None:
    """Do nothing: a barrier is complete when all ranks have called it."""


def Barrier(comm: Communicator) -> BufferContribution:
    return BufferContribution("Barrier", _barrier)


BUFFER_COLLECTIVES: dict[str, Callable[..., BufferContribution]] = {
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
        Alltoallw,
    )
}
