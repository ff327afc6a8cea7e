"""mpi4py's lowercase calls: pickled objects, over the revocable waits of the guarded communicator.

A message carries the pickle; its size is known from a probe. A collective sends the sizes first, then the pickles.
Reductions gather the objects and fold them in rank order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce as fold
from itertools import accumulate
from typing import Any, Final

import numpy as np
from mpi4py import MPI

from adjointlab import MPI as ours
from adjointlab.worlds.constants import to_mpi4py
from adjointlab.worlds.mpi.calls import Call
from adjointlab.worlds.mpi.requests import GuardedRequest, ObjectReceive

__all__ = ["OBJECT_FORMS"]

_dumps = MPI.pickle.dumps
_loads = MPI.pickle.loads


_constant = to_mpi4py


# Messages


def _start_send(comm: Any, name: str, obj: Any, dest: int, tag: int) -> tuple[MPI.Request, Call]:
    dest = _constant(dest)
    start = comm.inner.Issend if "ss" in name else comm.inner.Isend
    request = start([_dumps(obj), MPI.BYTE], dest, tag)
    comm.count(dest, is_send=True)
    return request, Call(comm, name, (obj, dest, tag), peer=dest if dest >= 0 else None)


def send(comm: Any, obj: Any, dest: int, tag: int = 0) -> None:
    comm.guard.wait(*_start_send(comm, "send", obj, dest, tag))


def ssend(comm: Any, obj: Any, dest: int, tag: int = 0) -> None:
    comm.guard.wait(*_start_send(comm, "ssend", obj, dest, tag))


def isend(comm: Any, obj: Any, dest: int, tag: int = 0) -> GuardedRequest:
    return GuardedRequest(*_start_send(comm, "isend", obj, dest, tag), comm.guard)


def issend(comm: Any, obj: Any, dest: int, tag: int = 0) -> GuardedRequest:
    return GuardedRequest(*_start_send(comm, "issend", obj, dest, tag), comm.guard)


def _start_receive(
    comm: Any, name: str, source: int, tag: int, told: dict[str, Any] | None = None
) -> ObjectReceive:
    source, tag = _constant(source), _constant(tag)
    comm.count(source, is_send=False)
    shown = {"source": source, "tag": tag} if told is None else told
    return ObjectReceive(comm, source, tag, Call(comm, name, (), shown, peer=source if source >= 0 else None))


def recv(
    comm: Any, buf: Any = None, source: int = ours.ANY_SOURCE, tag: int = ours.ANY_TAG, status: Any = None
) -> Any:
    return _start_receive(comm, "recv", source, tag).wait(status)


def irecv(
    comm: Any, buf: Any = None, source: int = ours.ANY_SOURCE, tag: int = ours.ANY_TAG
) -> ObjectReceive:
    return _start_receive(comm, "irecv", source, tag)


def sendrecv(
    comm: Any,
    sendobj: Any,
    dest: int,
    sendtag: int = 0,
    recvbuf: Any = None,
    source: int = ours.ANY_SOURCE,
    recvtag: int = ours.ANY_TAG,
    status: Any = None,
) -> Any:
    told = {
        "dest": _constant(dest),
        "sendtag": sendtag,
        "source": _constant(source),
        "recvtag": _constant(recvtag),
    }
    request, call = _start_send(comm, "sendrecv", sendobj, dest, sendtag)
    sending = GuardedRequest(request, call._replace(arguments=(), keywords=told), comm.guard)
    received = _start_receive(comm, "sendrecv", source, recvtag, told).wait(status)
    sending.Wait()
    return received


# Collectives


def _wait(comm: Any, name: str, request: MPI.Request, root: int | None = None, buffers: Any = None) -> None:
    """Wait for a collective.

    mpi4py's requests of the calls that end in v do not hold their buffers. So these are handed over as `buffers`: if
    the wait is called off, MPI goes on writing there.
    """
    comm.guard.wait(request, Call(comm, name, (buffers,), None if root is None else {"root": root}))


def _join(parcels: Sequence[bytes]) -> tuple[bytes, Any]:
    return b"".join(parcels), np.array([len(parcel) for parcel in parcels], dtype=np.int64)


def _split(parcels: bytearray, sizes: Any) -> list[Any]:
    ends = list(accumulate(int(size) for size in sizes))
    view = memoryview(parcels)
    return [_loads(view[end - int(size) : end]) for end, size in zip(ends, sizes, strict=True)]


def _bytes(buffer: Any, sizes: Any) -> list[Any]:
    """The buffer specification of pickles that lie behind one another."""
    counts = [int(size) for size in sizes]
    return [
        buffer,
        (counts, [end - count for end, count in zip(accumulate(counts), counts, strict=True)]),
        MPI.BYTE,
    ]


def barrier(comm: Any) -> None:
    comm.note("barrier")
    _wait(comm, "barrier", comm.inner.Ibarrier())


def bcast(comm: Any, obj: Any, root: int = 0) -> Any:
    comm.note("bcast", root)
    is_root = comm.rank == root
    parcel: Any = _dumps(obj) if is_root else b""
    size = np.array([len(parcel)], dtype=np.int64)
    request = comm.inner.Ibcast(size, root)
    _wait(comm, "bcast", request, root)
    if not is_root:
        parcel = bytearray(int(size[0]))
    _wait(comm, "bcast", comm.inner.Ibcast([parcel, MPI.BYTE], root), root)
    return obj if is_root else _loads(parcel)


def gather(comm: Any, sendobj: Any, root: int = 0) -> list[Any] | None:
    comm.note("gather", root)
    return _gather(comm, "gather", sendobj, root)


def _gather(comm: Any, name: str, sendobj: Any, root: int) -> list[Any] | None:
    parcel = _dumps(sendobj)
    size = np.array([len(parcel)], dtype=np.int64)
    is_root = comm.rank == root
    sizes = np.empty(comm.size, dtype=np.int64) if is_root else None
    request = comm.inner.Igather(size, sizes, root)
    _wait(comm, name, request, root)
    if sizes is None:
        _wait(comm, name, comm.inner.Igatherv([parcel, MPI.BYTE], None, root), root, parcel)
        return None
    parcels = bytearray(int(sizes.sum()))
    request = comm.inner.Igatherv([parcel, MPI.BYTE], _bytes(parcels, sizes), root)
    _wait(comm, name, request, root, (parcel, parcels))
    return _split(parcels, sizes)


def scatter(comm: Any, sendobj: Sequence[Any] | None, root: int = 0) -> Any:
    is_root = comm.rank == root
    parcels, sizes = (b"", None)
    if is_root:
        objects = [] if sendobj is None else list(sendobj)
        if len(objects) != comm.size:
            raise ValueError(f"scatter: expecting {comm.size} items, got {len(objects)}")
        parcels, sizes = _join([_dumps(obj) for obj in objects])
    comm.note("scatter", root)
    size = np.empty(1, dtype=np.int64)
    request = comm.inner.Iscatter(sizes, size, root)
    _wait(comm, "scatter", request, root)
    mine = bytearray(int(size[0]))
    sending = _bytes(parcels, sizes) if is_root else None
    _wait(comm, "scatter", comm.inner.Iscatterv(sending, [mine, MPI.BYTE], root), root, (parcels, mine))
    return _loads(mine)


def allgather(comm: Any, sendobj: Any) -> list[Any]:
    comm.note("allgather")
    return _allgather(comm, "allgather", sendobj)


def _allgather(comm: Any, name: str, sendobj: Any) -> list[Any]:
    parcel = _dumps(sendobj)
    sizes = np.empty(comm.size, dtype=np.int64)
    request = comm.inner.Iallgather(np.array([len(parcel)], dtype=np.int64), sizes)
    _wait(comm, name, request)
    parcels = bytearray(int(sizes.sum()))
    request = comm.inner.Iallgatherv([parcel, MPI.BYTE], _bytes(parcels, sizes))
    _wait(comm, name, request, None, (parcel, parcels))
    return _split(parcels, sizes)


def alltoall(comm: Any, sendobj: Sequence[Any]) -> list[Any]:
    objects = list(sendobj)
    if len(objects) != comm.size:
        raise ValueError(f"alltoall: expecting {comm.size} items, got {len(objects)}")
    comm.note("alltoall")
    parcels, sizes = _join([_dumps(obj) for obj in objects])
    coming = np.empty(comm.size, dtype=np.int64)
    request = comm.inner.Ialltoall(sizes, coming)
    _wait(comm, "alltoall", request)
    received = bytearray(int(coming.sum()))
    request = comm.inner.Ialltoallv(_bytes(parcels, sizes), _bytes(received, coming))
    _wait(comm, "alltoall", request, None, (parcels, received))
    return _split(received, coming)


def reduce(comm: Any, sendobj: Any, op: Any = ours.SUM, root: int = 0) -> Any:
    comm.note("reduce", root, op)
    gathered = _gather(comm, "reduce", sendobj, root)
    return None if gathered is None else fold(_constant(op), gathered)


def allreduce(comm: Any, sendobj: Any, op: Any = ours.SUM) -> Any:
    comm.note("allreduce", None, op)
    return fold(_constant(op), _allgather(comm, "allreduce", sendobj))


def scan(comm: Any, sendobj: Any, op: Any = ours.SUM) -> Any:
    comm.note("scan", None, op)
    return fold(_constant(op), _allgather(comm, "scan", sendobj)[: comm.rank + 1])


def exscan(comm: Any, sendobj: Any, op: Any = ours.SUM) -> Any:
    comm.note("exscan", None, op)
    earlier = _allgather(comm, "exscan", sendobj)[: comm.rank]
    return fold(_constant(op), earlier) if earlier else None


OBJECT_FORMS: Final[dict[str, Callable[..., Any]]] = {
    form.__name__: form
    for form in (
        send,
        ssend,
        isend,
        issend,
        recv,
        irecv,
        sendrecv,
        barrier,
        bcast,
        gather,
        scatter,
        allgather,
        alltoall,
        reduce,
        allreduce,
        scan,
        exscan,
    )
}
