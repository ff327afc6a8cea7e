"""The collectives on objects: pickled on entry, unpickled by each rank that gets them.

So objects are copied between ranks as between processes. What :meth:`Entry.finish` returns is the call's result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from adjointlab import MPI
from adjointlab.worlds.constants import op as as_op
from adjointlab.worlds.simulated.payload import pack, unpack
from adjointlab.worlds.simulated.reductions import fold_objects

__all__ = ["OBJECT_COLLECTIVES", "ObjectEntry"]


class ObjectEntry:
    """What one rank brings to a collective of objects, and how it makes its result of what it is handed."""

    __slots__ = ("compute", "group", "handed", "kind", "parcel", "result", "root", "signature")

    def __init__(
        self,
        kind: str,
        compute: Callable[[Sequence[ObjectEntry]], None],
        parcel: Any = None,
        *,
        root: int | None = None,
        op: Any = None,
        result: Callable[[Any], Any] = unpack,
    ) -> None:
        self.kind = kind
        self.compute = compute
        self.parcel = parcel
        self.root = 0 if root is None else root
        self.result = result
        self.handed: Any = None  # by the rank that arrives last
        self.group: list[int] | None = None  # of the communicator to be made, where it is given
        self.signature: tuple[Any, ...] = (root, None if op is None else _told(op), None, None)

    def watch(self) -> None:
        """Pickling has read the object."""

    def misuse(self) -> str:
        """There is no buffer to spoil."""
        return ""

    def hold(self) -> None:
        """Pickling has read the object."""

    def delay(self) -> None:
        """There is no buffer to fill late."""

    def finish(self) -> Any:
        """The call's result."""
        return self.result(self.handed)


def _told(op: Any) -> str:
    """The operation as far as ranks can be expected to agree on it: each has its own function."""
    known = as_op(op)
    return known.value if isinstance(known, MPI.Op) else "an operation of user code"


def _unpack_all(parcels: Sequence[bytes]) -> list[Any]:
    return [unpack(parcel) for parcel in parcels]


def _nothing(_handed: Any) -> None:
    return None


def _fold(op: Any) -> Callable[[Sequence[bytes]], Any]:
    op = as_op(op)
    return lambda parcels: fold_objects(op, _unpack_all(parcels)) if parcels else None


def _to_all(entries: Sequence[ObjectEntry]) -> None:
    for entry in entries:
        entry.handed = entries[entry.root].parcel


def _all_to_all_ranks(entries: Sequence[ObjectEntry]) -> None:
    parcels = [entry.parcel for entry in entries]
    for entry in entries:
        entry.handed = parcels


def _earlier(last: int) -> Callable[[Sequence[ObjectEntry]], None]:
    def compute(entries: Sequence[ObjectEntry]) -> None:
        parcels = [entry.parcel for entry in entries]
        for rank, entry in enumerate(entries):
            entry.handed = parcels[: rank + last]

    return compute


def _one_each(entries: Sequence[ObjectEntry]) -> None:
    parcels = entries[entries[0].root].parcel
    for entry, parcel in zip(entries, parcels, strict=True):
        entry.handed = parcel


def _transposed(entries: Sequence[ObjectEntry]) -> None:
    for rank, entry in enumerate(entries):
        entry.handed = [other.parcel[rank] for other in entries]


def _pack_each(comm: Any, objects: Any) -> list[bytes]:
    listed = list(objects)
    if len(listed) != comm.size:
        raise ValueError(f"expecting {comm.size} items, got {len(listed)}")
    return [pack(each) for each in listed]


def barrier(comm: Any) -> ObjectEntry:
    return ObjectEntry("Barrier", _nothing, result=_nothing)


def bcast(comm: Any, obj: Any, root: int = 0) -> ObjectEntry:
    root = comm.root(root)
    # mpi4py unpickles on the root too: what comes back is a copy there as well.
    return ObjectEntry("bcast", _to_all, pack(obj) if root == comm.rank else None, root=root)


def gather(comm: Any, sendobj: Any, root: int = 0) -> ObjectEntry:
    root = comm.root(root)
    result: Callable[[Any], Any] = _unpack_all if root == comm.rank else _nothing
    return ObjectEntry("gather", _all_to_all_ranks, pack(sendobj), root=root, result=result)


def scatter(comm: Any, sendobj: Any, root: int = 0) -> ObjectEntry:
    root = comm.root(root)
    return ObjectEntry(
        "scatter", _one_each, _pack_each(comm, sendobj) if root == comm.rank else None, root=root
    )


def allgather(comm: Any, sendobj: Any) -> ObjectEntry:
    return ObjectEntry("allgather", _all_to_all_ranks, pack(sendobj), result=_unpack_all)


def alltoall(comm: Any, sendobj: Any) -> ObjectEntry:
    return ObjectEntry("alltoall", _transposed, _pack_each(comm, sendobj), result=_unpack_all)


def reduce(comm: Any, sendobj: Any, op: Any = MPI.SUM, root: int = 0) -> ObjectEntry:
    root = comm.root(root)
    result: Callable[[Any], Any] = _fold(op) if root == comm.rank else _nothing
    return ObjectEntry("reduce", _all_to_all_ranks, pack(sendobj), root=root, op=op, result=result)


def allreduce(comm: Any, sendobj: Any, op: Any = MPI.SUM) -> ObjectEntry:
    return ObjectEntry("allreduce", _all_to_all_ranks, pack(sendobj), op=op, result=_fold(op))


def scan(comm: Any, sendobj: Any, op: Any = MPI.SUM) -> ObjectEntry:
    return ObjectEntry("scan", _earlier(1), pack(sendobj), op=op, result=_fold(op))


def exscan(comm: Any, sendobj: Any, op: Any = MPI.SUM) -> ObjectEntry:
    return ObjectEntry("exscan", _earlier(0), pack(sendobj), op=op, result=_fold(op))


OBJECT_COLLECTIVES: dict[str, Callable[..., ObjectEntry]] = {
    each.__name__: each
    for each in (barrier, bcast, gather, scatter, allgather, alltoall, reduce, allreduce, scan, exscan)
}
