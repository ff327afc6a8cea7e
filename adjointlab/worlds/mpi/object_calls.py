"""mpi4py's lower-case calls: pickled objects, over the revocable waits of the guarded communicator.

A message carries the pickle. A collective sends the sizes first, then the pickles.
Reductions gather the objects and fold them in rank order.

mpi4py's own lower-case collectives cannot be used: they block inside MPI, and have no non-blocking forms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from functools import reduce as fold
from itertools import accumulate
from typing import Any, Final, TypeAlias, cast

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from adjointlab import MPI as ours
from adjointlab.typing import Buffer, Status
from adjointlab.worlds.call_sites import call_site
from adjointlab.worlds.mpi.buffer_calls import native, peer_of, peer_or_tag
from adjointlab.worlds.mpi.calls import GuardedCall
from adjointlab.worlds.mpi.communicator_base import CommBase
from adjointlab.worlds.mpi.message_log import OBJECT
from adjointlab.worlds.mpi.neighbourhoods import in_blocking_order
from adjointlab.worlds.mpi.requests import GuardedRequest, ObjectReceive
from adjointlab.worlds.object_room import ObjectRoom, room_of

__all__ = ["NEIGHBOUR_OBJECT_CALLS", "OBJECT_CALLS"]

Sizes: TypeAlias = npt.NDArray[np.int64]
Operation: TypeAlias = ours.Op | MPI.Op | Callable[[Any, Any], Any]

_BEYOND_ROOM: Final = 1 << 20
"""Extra bytes that a receive allocates beyond its capacity, because Open MPI 5.0 writes all of a message that is too long."""

_dumps = MPI.pickle.dumps
_loads = MPI.pickle.loads


# Messages. A pickle is sent as bytes with the tag that user code gave, so a buffer receive may match it, as in mpi4py.


def _start_send(
    comm: CommBase, name: str, obj: object, dest: int, tag: int
) -> tuple[MPI.Request, GuardedCall]:
    dest, tag = peer_or_tag(dest), peer_or_tag(tag)
    start = comm.inner.Issend if name in ("ssend", "issend") else comm.inner.Isend
    pickled = _dumps(obj)
    request = start([pickled, MPI.BYTE], dest, tag)
    comm.count(dest, is_send=True)
    comm.messages.send(dest, tag, name, (OBJECT, len(pickled)), *call_site())
    return request, GuardedCall(comm, name, (obj, dest, tag), peer=peer_of(dest))


def _send(name: str, comm: CommBase, obj: object, dest: int, tag: int = 0) -> None:
    comm.guard.wait(*_start_send(comm, name, obj, dest, tag))


def _isend(name: str, comm: CommBase, obj: object, dest: int, tag: int = 0) -> GuardedRequest:
    return GuardedRequest(*_start_send(comm, name, obj, dest, tag), comm.guard)


def _start_receive(
    comm: CommBase,
    name: str,
    room: ObjectRoom,
    source: int,
    tag: int,
    keywords: Mapping[str, object] | None = None,
) -> ObjectReceive:
    """Post a receive; if its capacity is unlimited, only when a matching message has arrived and its size is known."""
    source, tag = peer_or_tag(source), peer_or_tag(tag)
    keywords = {"source": source, "tag": tag} if keywords is None else keywords
    call = GuardedCall(comm, name, (), keywords, peer=peer_of(source), is_receive=True)
    nbytes = room.nbytes
    if nbytes is None:
        found = MPI.Status()
        message = comm.guard.wait_until(lambda: comm.inner.improbe(source, tag, found), call)
        request, nbytes = message.irecv(), found.Get_count(MPI.BYTE)
    else:
        request = comm.inner.irecv(nbytes + _BEYOND_ROOM, source, tag)
    comm.count(source, is_send=False)
    entry = comm.messages.receive(source, tag, name, (OBJECT, nbytes), *call_site())
    return ObjectReceive(request, call, comm.guard, entry, room)


def recv(
    comm: CommBase,
    buf: Buffer = None,
    source: int = ours.ANY_SOURCE,
    tag: int = ours.ANY_TAG,
    status: Status | None = None,
) -> Any:
    return _start_receive(comm, "recv", room_of(buf), source, tag).wait(status)


def irecv(
    comm: CommBase, buf: Buffer = None, source: int = ours.ANY_SOURCE, tag: int = ours.ANY_TAG
) -> ObjectReceive:
    return _start_receive(comm, "irecv", room_of(buf, is_posted_first=True), source, tag)


def sendrecv(
    comm: CommBase,
    sendobj: object,
    dest: int,
    sendtag: int = 0,
    recvbuf: Buffer = None,
    source: int = ours.ANY_SOURCE,
    recvtag: int = ours.ANY_TAG,
    status: Status | None = None,
) -> Any:
    keywords = {
        "dest": peer_or_tag(dest),
        "sendtag": peer_or_tag(sendtag),
        "source": peer_or_tag(source),
        "recvtag": peer_or_tag(recvtag),
    }
    # The send must be non-blocking, or two ranks that exchange objects would wait for each other for ever.
    request, call = _start_send(comm, "sendrecv", sendobj, dest, sendtag)
    sending = GuardedRequest(request, call._replace(arguments=(), keywords=keywords), comm.guard)
    received = _start_receive(comm, "sendrecv", room_of(recvbuf), source, recvtag, keywords).wait(status)
    sending.Wait()
    return received


# Collectives. Each has two revocable waits, for sizes and for pickles, but is one call in the log.


def _wait(
    comm: CommBase, name: str, request: MPI.Request, root: int | None = None, buffers: object = None
) -> None:
    """Wait for a collective, and keep its `buffers` alive as long as MPI may use them."""
    # If the wait is revoked, MPI continues to read and write there. An Iallgatherv request does not reference its buffers
    # (mpi4py 4.1.2; those of the other calls do). As arguments of the call, they are kept with it.
    comm.guard.wait(request, GuardedCall(comm, name, (buffers,), None if root is None else {"root": root}))


def _join(objects: Sequence[object]) -> tuple[bytes, Sizes]:
    """Pickle the objects and concatenate the pickles."""
    pickles = [_dumps(obj) for obj in objects]
    return b"".join(pickles), np.array([len(pickled) for pickled in pickles], dtype=np.int64)


def _split(pickles: bytearray, sizes: Sizes) -> list[Any]:
    """Unpickle concatenated pickles."""
    ends = list(accumulate(sizes.tolist()))
    view = memoryview(pickles)
    spans = zip(ends, sizes.tolist(), strict=True)
    return [
        _loads(view[end - size : end]) if size else None for end, size in spans
    ]  # size 0: no object was sent


def _vector(buffer: Buffer, sizes: Sizes) -> list[Any]:
    """mpi4py's buffer specification of concatenated pickles."""
    counts = sizes.tolist()
    starts = [end - count for end, count in zip(accumulate(counts), counts, strict=True)]
    return [buffer, (counts, starts), MPI.BYTE]


def _checked(name: str, sendobj: Sequence[object] | None, number: int) -> list[object]:
    objects = [] if sendobj is None else list(sendobj)
    if len(objects) != number:
        raise ValueError(f"{name}: expecting {number} items, got {len(objects)}")
    return objects


def barrier(comm: CommBase) -> None:
    comm.log_call("Barrier")  # the same name as for the upper-case call, because the two match
    _wait(comm, "barrier", comm.inner.Ibarrier())


def bcast(comm: CommBase, obj: Any, root: int = 0) -> Any:
    comm.log_call("bcast", root)
    is_root = comm.rank == root
    pickled: bytes | bytearray = _dumps(obj) if is_root else b""
    size = np.array([len(pickled)], dtype=np.int64)
    _wait(comm, "bcast", comm.inner.Ibcast(size, root), root)
    if not is_root:
        pickled = bytearray(int(size[0]))
    _wait(comm, "bcast", comm.inner.Ibcast([pickled, MPI.BYTE], root), root)
    return _loads(pickled)  # on the root too, as in mpi4py: user code may modify the result


def gather(comm: CommBase, sendobj: object, root: int = 0) -> list[Any] | None:
    comm.log_call("gather", root)
    return _gather(comm, "gather", sendobj, root)


def _gather(comm: CommBase, name: str, sendobj: object, root: int) -> list[Any] | None:
    pickled, size = _join([sendobj])
    sizes = np.empty(comm.size, dtype=np.int64) if comm.rank == root else None
    _wait(comm, name, comm.inner.Igather(size, sizes, root), root)
    if sizes is None:
        _wait(comm, name, comm.inner.Igatherv([pickled, MPI.BYTE], None, root), root, pickled)
        return None
    gathered = bytearray(int(sizes.sum()))
    request = comm.inner.Igatherv([pickled, MPI.BYTE], _vector(gathered, sizes), root)
    _wait(comm, name, request, root, (pickled, gathered))
    return _split(gathered, sizes)


def scatter(comm: CommBase, sendobj: Sequence[object] | None, root: int = 0) -> Any:
    is_root = comm.rank == root
    # Checked before the call is logged and anything is sent, as in mpi4py: the other ranks then wait, and are cancelled.
    pickles, sizes = _join(_checked("scatter", sendobj, comm.size)) if is_root else (b"", None)
    comm.log_call("scatter", root)
    size = np.empty(1, dtype=np.int64)
    _wait(comm, "scatter", comm.inner.Iscatter(sizes, size, root), root)
    received = bytearray(int(size[0]))
    sending = None if sizes is None else _vector(pickles, sizes)
    request = comm.inner.Iscatterv(sending, [received, MPI.BYTE], root)
    _wait(comm, "scatter", request, root, (pickles, received))
    return _loads(received)


def allgather(comm: CommBase, sendobj: object) -> list[Any]:
    comm.log_call("allgather")
    return _allgather(comm, "allgather", sendobj)


def _allgather(comm: CommBase, name: str, sendobj: object) -> list[Any]:
    pickled, size = _join([sendobj])
    sizes = np.empty(comm.size, dtype=np.int64)
    _wait(comm, name, comm.inner.Iallgather(size, sizes))
    gathered = bytearray(int(sizes.sum()))
    request = comm.inner.Iallgatherv([pickled, MPI.BYTE], _vector(gathered, sizes))
    _wait(comm, name, request, None, (pickled, gathered))
    return _split(gathered, sizes)


def alltoall(comm: CommBase, sendobj: Sequence[object]) -> list[Any]:
    objects = _checked("alltoall", sendobj, comm.size)
    comm.log_call("alltoall")
    pickles, sizes = _join(objects)
    incoming = np.empty(comm.size, dtype=np.int64)
    _wait(comm, "alltoall", comm.inner.Ialltoall(sizes, incoming))
    received = bytearray(int(incoming.sum()))
    request = comm.inner.Ialltoallv(_vector(pickles, sizes), _vector(received, incoming))
    _wait(comm, "alltoall", request, None, (pickles, received))
    return _split(received, incoming)


def neighbor_allgather(comm: CommBase, sendobj: object) -> list[Any]:
    return _exchanged_with_neighbours(comm, "neighbor_allgather", [sendobj] * _carried(comm).outdegree)


def neighbor_alltoall(comm: CommBase, sendobj: Sequence[object]) -> list[Any]:
    objects = _checked("neighbor_alltoall", sendobj, _carried(comm).outdegree)
    return _exchanged_with_neighbours(comm, "neighbor_alltoall", objects)


def _carried(comm: CommBase) -> MPI.Topocomm:
    return cast("MPI.Topocomm", comm.inner)


def _exchanged_with_neighbours(comm: CommBase, name: str, objects: Sequence[object]) -> list[Any]:
    """The objects received from the neighbours, in MPI's order; `None` beyond the edge of a grid."""
    comm.log_call(name)
    pickles, sizes = _join(objects)
    incoming = np.zeros(_carried(comm).indegree, dtype=np.int64)
    _wait(comm, name, _start_to_neighbours(comm, "Neighbor_alltoall", sizes, incoming))
    received = bytearray(int(incoming.sum()))
    out, into = _vector(pickles, sizes), _vector(received, incoming)
    request = _start_to_neighbours(comm, "Neighbor_alltoallv", out, into)
    _wait(comm, name, request, None, (pickles, received))
    return _split(received, incoming)


def _start_to_neighbours(comm: CommBase, name: str, send: Buffer, receive: Buffer) -> MPI.Request:
    plainly = getattr(comm.inner, f"I{name.lower()}")
    return in_blocking_order(comm, name, lambda buffers, _: plainly(*buffers))((send, receive), {})


# The operation may be any callable and need not be commutative, so it is applied in rank order. Floating-point sums
# may differ in the last bits from those of mpi4py, which reduces objects along a tree.


def reduce(comm: CommBase, sendobj: object, op: Operation = ours.SUM, root: int = 0) -> Any:
    comm.log_call("reduce", root, op)
    gathered = _gather(comm, "reduce", sendobj, root)
    return None if gathered is None else fold(native(op), gathered)


def allreduce(comm: CommBase, sendobj: object, op: Operation = ours.SUM) -> Any:
    comm.log_call("allreduce", None, op)
    return fold(native(op), _allgather(comm, "allreduce", sendobj))


def scan(comm: CommBase, sendobj: object, op: Operation = ours.SUM) -> Any:
    comm.log_call("scan", None, op)
    return fold(native(op), _allgather(comm, "scan", sendobj)[: comm.rank + 1])


def exscan(comm: CommBase, sendobj: object, op: Operation = ours.SUM) -> Any:
    comm.log_call("exscan", None, op)
    earlier = _allgather(comm, "exscan", sendobj)[: comm.rank]
    return fold(native(op), earlier) if earlier else None


_MESSAGES = (recv, irecv, sendrecv)
_COLLECTIVES = (barrier, bcast, gather, scatter, allgather, alltoall, reduce, allreduce, scan, exscan)

OBJECT_CALLS: Final[Mapping[str, Callable[..., Any]]] = {
    **{name: partial(_send, name) for name in ("send", "ssend")},
    **{name: partial(_isend, name) for name in ("isend", "issend")},
    **{call.__name__: call for call in (*_MESSAGES, *_COLLECTIVES)},
}
"""The calls, by mpi4py's names; their first argument is the communicator."""

NEIGHBOUR_OBJECT_CALLS: Final[Mapping[str, Callable[..., Any]]] = {
    call.__name__: call for call in (neighbor_allgather, neighbor_alltoall)
}
"""Additional calls of a communicator with a topology."""
