"""Neighbourhood collectives: each rank of a grid exchanges blocks with those next to it in every dimension [MPI41, section 8.6].

The neighbours of a rank are, dimension by dimension, the rank before it and the rank after it. Beyond an edge there is none, and
its block is neither sent nor changed. What goes to the rank before arrives there as what comes from the rank after it::

    rank 0  [ before | after ]      rank 1  [ before | after ]
                         '------------------->'
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

from adjointlab import MPI
from adjointlab.typing import Buffer
from adjointlab.worlds.arguments import Blocks, Elements, blocks, elements, typed_blocks
from adjointlab.worlds.simulated.buffer_collectives import BufferContribution, block, move
from adjointlab.worlds.simulated.collectives import ObjectContribution, UnequalParts, pickled
from adjointlab.worlds.simulated.matching import unpickle
from adjointlab.worlds.simulated.topologies import Grid

if TYPE_CHECKING:
    from adjointlab.worlds.simulated.communicator import CartesianCommunicator

__all__ = ["NEIGHBOUR_BUFFER_COLLECTIVES", "NEIGHBOUR_OBJECT_COLLECTIVES"]

Contributions: TypeAlias = Sequence[BufferContribution]


def _neighbours(grid: Grid, rank: int) -> list[int]:
    return list(chain.from_iterable(grid.shift(rank, direction, 1) for direction in range(len(grid.dims))))


def _number(comm: CartesianCommunicator) -> int:
    return 2 * comm.Get_dim()


def _grid(comm: CartesianCommunicator) -> Grid:
    assert comm.grid is not None
    return comm.grid


def _exchange(grid: Grid, contributions: Contributions) -> None:
    """Move every block to the rank that it is for; of a gather, the one block of a rank goes to all its neighbours."""
    for receiver, each in enumerate(contributions):
        neighbours = _neighbours(grid, receiver)
        for place, sender in enumerate(neighbours):
            if sender != MPI.PROC_NULL:
                _exchange_block(contributions[sender], each, sender, receiver, place, len(neighbours))


def _exchange_block(
    source: BufferContribution,
    target: BufferContribution,
    sender: int,
    receiver: int,
    place: int,
    number: int,
) -> None:
    opposite = place ^ 1
    sent = source.contribution if "gather" in source.kind else block(source.send, opposite, number)
    received = block(target.receive, place, number)
    if target.kind.endswith("w") and received.size:
        kinds = source.send_types[opposite], target.receive_types[place]
        if kinds[0] != kinds[1]:
            raise UnequalParts(sender, receiver, *(kind.name for kind in kinds))
    move(sent, received, sender, receiver)


def _contribution(
    comm: CartesianCommunicator, kind: str, send: Elements | Blocks, receive: Elements | Blocks
) -> BufferContribution:
    return BufferContribution(kind, partial(_exchange, _grid(comm)), send=send, receive=receive)


def Neighbor_allgather(comm: CartesianCommunicator, sendbuf: Buffer, recvbuf: Buffer) -> BufferContribution:
    receive = elements(recvbuf, writable=True, blocks=_number(comm) or 1)
    return _contribution(comm, "Neighbor_allgather", elements(sendbuf, writable=False), receive)


def Neighbor_allgatherv(comm: CartesianCommunicator, sendbuf: Buffer, recvbuf: Buffer) -> BufferContribution:
    receive = blocks(recvbuf, _number(comm), writable=True)
    return _contribution(comm, "Neighbor_allgatherv", elements(sendbuf, writable=False), receive)


def Neighbor_alltoall(comm: CartesianCommunicator, sendbuf: Buffer, recvbuf: Buffer) -> BufferContribution:
    receive = elements(recvbuf, writable=True, blocks=_number(comm) or 1)
    return _contribution(
        comm, "Neighbor_alltoall", elements(sendbuf, writable=False, blocks=_number(comm) or 1), receive
    )


def Neighbor_alltoallv(comm: CartesianCommunicator, sendbuf: Buffer, recvbuf: Buffer) -> BufferContribution:
    receive = blocks(recvbuf, _number(comm), writable=True)
    return _contribution(comm, "Neighbor_alltoallv", blocks(sendbuf, _number(comm), writable=False), receive)


def Neighbor_alltoallw(comm: CartesianCommunicator, sendbuf: Buffer, recvbuf: Buffer) -> BufferContribution:
    receive, receive_types = typed_blocks(recvbuf, _number(comm), writable=True)
    send, send_types = typed_blocks(sendbuf, _number(comm), writable=False)
    contribution = _contribution(comm, "Neighbor_alltoallw", send, receive)
    contribution.send_types, contribution.receive_types = send_types, receive_types
    return contribution


def _give_to_neighbours(grid: Grid, contributions: Sequence[ObjectContribution]) -> None:
    for rank, each in enumerate(contributions):
        senders = _neighbours(grid, rank)
        each.given = [
            None if sender == MPI.PROC_NULL else contributions[sender].payload[place ^ 1]
            for place, sender in enumerate(senders)
        ]


def _unpickled(payloads: Sequence[bytes | None]) -> list[object]:
    return [None if payload is None else unpickle(payload) for payload in payloads]


def _of_objects(comm: CartesianCommunicator, kind: str, objects: Sequence[object]) -> ObjectContribution:
    payload = [pickled(each) for each in objects]
    return ObjectContribution(kind, partial(_give_to_neighbours, _grid(comm)), payload, result=_unpickled)


def neighbor_allgather(comm: CartesianCommunicator, sendobj: object) -> ObjectContribution:
    return _of_objects(comm, "neighbor_allgather", [sendobj] * _number(comm))


def neighbor_alltoall(comm: CartesianCommunicator, sendobj: Sequence[object]) -> ObjectContribution:
    objects = list(sendobj)
    if len(objects) != _number(comm):
        raise ValueError(f"expecting {_number(comm)} items, got {len(objects)}")
    return _of_objects(comm, "neighbor_alltoall", objects)


NEIGHBOUR_BUFFER_COLLECTIVES: dict[str, Callable[..., BufferContribution]] = {
    each.__name__: each
    for each in (
        Neighbor_allgather,
        Neighbor_allgatherv,
        Neighbor_alltoall,
        Neighbor_alltoallv,
        Neighbor_alltoallw,
    )
}
NEIGHBOUR_OBJECT_COLLECTIVES: dict[str, Callable[..., ObjectContribution]] = {
    each.__name__: each for each in (neighbor_allgather, neighbor_alltoall)
}
