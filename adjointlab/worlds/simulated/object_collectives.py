"""Collectives of the simulated world that move objects."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from adjointlab import MPI
from adjointlab.typing import Communicator
from adjointlab.worlds.constants import Operator, as_op, op_name
from adjointlab.worlds.simulated.collectives import Contribution, Signature, valid_root
from adjointlab.worlds.simulated.matching import unpickle
from adjointlab.worlds.simulated.reductions import fold_objects

__all__ = ["OBJECT_COLLECTIVES", "ObjectContribution", "pickled"]


class ObjectContribution(Contribution):
    """Pickled object of one rank, and the function `result` that converts the value assigned by the computation.

    There are no buffers to watch, because the object is pickled when the call is made.
    """

    __slots__ = ("given", "payload", "result")

    def __init__(
        self,
        kind: str,
        compute: Callable[[Sequence[ObjectContribution]], None],
        payload: Any = None,
        *,
        root: int | None = None,
        op: Operator | None = None,
        result: Callable[[Any], Any] = unpickle,
        shape: object = None,
    ) -> None:
        super().__init__(kind, compute, Signature(root, None if op is None else op_name(op), None, shape))
        self.payload = payload
        self.result = result
        self.given: Any = None  # set by `compute`

    def finish(self) -> Any:
        return self.result(self.given)


Contributions: TypeAlias = Sequence[ObjectContribution]


def pickled(value: object) -> bytes:
    """Pickle `value`."""
    return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)


def _unpickle_all(payloads: Iterable[bytes]) -> list[Any]:
    return [unpickle(payload) for payload in payloads]


def _no_result(_: object) -> None:
    return None


def _fold(op: Operator) -> Callable[[Sequence[bytes]], Any]:
    known = as_op(op)
    # Only rank 0 of an exclusive scan has nothing to combine.
    return lambda payloads: fold_objects(known, _unpickle_all(payloads)) if payloads else None


def _give_roots_to_all(contributions: Contributions) -> None:
    for each in contributions:
        each.given = contributions[each.root].payload


def _give_all_to_all(contributions: Contributions) -> None:
    payloads = [each.payload for each in contributions]
    for each in contributions:
        each.given = payloads


def _give_first(extra: int) -> Callable[[Contributions], None]:
    """Give each rank the payloads of the lower ranks and of `extra` more."""

    def compute(contributions: Contributions) -> None:
        payloads = [each.payload for each in contributions]
        for rank, each in enumerate(contributions):
            each.given = payloads[: rank + extra]

    return compute


def _give_one_each(contributions: Contributions) -> None:
    payloads = contributions[contributions[0].root].payload
    for each, payload in zip(contributions, payloads, strict=True):
        each.given = payload


def _transpose(contributions: Contributions) -> None:
    for rank, each in enumerate(contributions):
        each.given = [other.payload[rank] for other in contributions]


def _pickle_each(comm: Communicator, objects: Iterable[object]) -> list[bytes]:
    listed = list(objects)
    if len(listed) != comm.size:
        raise ValueError(f"expecting {comm.size} items, got {len(listed)}")
    return [pickled(each) for each in listed]


def barrier(comm: Communicator) -> ObjectContribution:
    return ObjectContribution("Barrier", _no_result, result=_no_result)


def bcast(comm: Communicator, obj: object, root: int = 0) -> ObjectContribution:
    payload = pickled(obj) if valid_root(comm, root) == comm.rank else None
    # The root unpickles too and gets a copy, as in mpi4py.
    return ObjectContribution("bcast", _give_roots_to_all, payload, root=root)


def gather(comm: Communicator, sendobj: object, root: int = 0) -> ObjectContribution:
    result = _unpickle_all if valid_root(comm, root) == comm.rank else _no_result
    return ObjectContribution("gather", _give_all_to_all, pickled(sendobj), root=root, result=result)


def scatter(comm: Communicator, sendobj: Iterable[object], root: int = 0) -> ObjectContribution:
    payload = _pickle_each(comm, sendobj) if valid_root(comm, root) == comm.rank else None
    return ObjectContribution("scatter", _give_one_each, payload, root=root)


def allgather(comm: Communicator, sendobj: object) -> ObjectContribution:
    return ObjectContribution("allgather", _give_all_to_all, pickled(sendobj), result=_unpickle_all)


def alltoall(comm: Communicator, sendobj: Iterable[object]) -> ObjectContribution:
    return ObjectContribution("alltoall", _transpose, _pickle_each(comm, sendobj), result=_unpickle_all)


def reduce(comm: Communicator, sendobj: object, op: Operator = MPI.SUM, root: int = 0) -> ObjectContribution:
    result = _fold(op) if valid_root(comm, root) == comm.rank else _no_result
    return ObjectContribution("reduce", _give_all_to_all, pickled(sendobj), root=root, op=op, result=result)


def allreduce(comm: Communicator, sendobj: object, op: Operator = MPI.SUM) -> ObjectContribution:
    return ObjectContribution("allreduce", _give_all_to_all, pickled(sendobj), op=op, result=_fold(op))


def scan(comm: Communicator, sendobj: object, op: Operator = MPI.SUM) -> ObjectContribution:
    return ObjectContribution("scan", _give_first(1), pickled(sendobj), op=op, result=_fold(op))


def exscan(comm: Communicator, sendobj: object, op: Operator = MPI.SUM) -> ObjectContribution:
    return ObjectContribution("exscan", _give_first(0), pickled(sendobj), op=op, result=_fold(op))


OBJECT_COLLECTIVES: dict[str, Callable[..., ObjectContribution]] = {
    each.__name__: each
    for each in (barrier, bcast, gather, scatter, allgather, alltoall, reduce, allreduce, scan, exscan)
}
