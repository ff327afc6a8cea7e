"""Neighbourhood collectives: each rank of a topology exchanges blocks with its neighbours [MPI41, section 8.6]."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from adjointlab import MPI
from adjointlab.typing import Buffer
from adjointlab.worlds.arguments import Blocks, Elements, blocks, elements, typed_blocks
from adjointlab.worlds.simulated.buffer_collectives import BufferContribution, block, move
from adjointlab.worlds.simulated.collectives import UnequalParts
from adjointlab.worlds.simulated.matching import unpickle
from adjointlab.worlds.simulated.object_collectives import ObjectContribution, pickled
from adjointlab.worlds.simulated.topologies import Topology

if TYPE_CHECKING:
    from adjointlab.worlds.simulated.communicator import TopologyCommunicator

__all__ = ["NEIGHBOUR_BUFFER_COLLECTIVES", "NEIGHBOUR_OBJECT_COLLECTIVES"]

Contributions: TypeAlias = Sequence[BufferContribution]


def _topology(comm: TopologyCommunicator) -> Topology:
    assert comm.carried_topology is not None
    return comm.carried_topology


def _absent(comm: TopologyCommunicator) -> list[int]:
    """Indices of missing neighbours, beyond the edges of a grid, from which nothing is received."""
    sources = _topology(comm).sources(comm.rank)
    return [place for place, sender in enumerate(sources) if sender == MPI.PROC_NULL]


def _exchange(topology: Topology, contributions: Contributions) -> None:
    """Move every block to its receiver; in a gather, the one block of a rank goes to all its neighbours."""
    for receiver, each in enumerate(contributions):
        sources = topology.sources(receiver)
        for place, sender in enumerate(sources):
            if sender != MPI.PROC_NULL:
                sent = topology.sent_place(receiver, place), len(topology.destinations(sender))
                _exchange_block(contributions[sender], each, sender, receiver, sent, (place, len(sources)))


def _exchange_block(
    source: BufferContribution,
    target: BufferContribution,
    sender: int,
    receiver: int,
    sent_place: tuple[int, int],
    received_place: tuple[int, int],
) -> None:
    """Move one block. Each place is a pair: the block's index, and the number of blocks on that side."""
    sent = source.contribution if "gather" in source.kind else block(source.send, *sent_place)
    received = block(target.receive, *received_place)
    if target.kind.endswith("w") and received.size:
        kinds = source.send_types[sent_place[0]], target.receive_types[received_place[0]]
        if kinds[0] != kinds[1]:
            raise UnequalParts(sender, receiver, *(kind.name for kind in kinds))
    move(sent, received, sender, receiver)


def _contribution(
    comm: TopologyCommunicator, kind: str, send: Elements | Blocks, receive: Elements | Blocks
) -> BufferContribution:
    return BufferContribution(kind, partial(_exchange, _topology(comm)), send=send, receive=receive)


def Neighbor_allgather(comm: TopologyCommunicator, sendbuf: Buffer, recvbuf: Buffer) -> BufferContribution:
    receive = elements(recvbuf, writable=True, blocks=comm.indegree)
    return _contribution(comm, "Neighbor_allgather", elements(sendbuf, writable=False), receive)


def Neighbor_allgatherv(comm: TopologyCommunicator, sendbuf: Buffer, recvbuf: Buffer) -> BufferContribution:
    receive = blocks(recvbuf, comm.indegree, writable=True, untouched=_absent(comm))
    return _contribution(comm, "Neighbor_allgatherv", elements(sendbuf, writable=False), receive)


def Neighbor_alltoall(comm: TopologyCommunicator, sendbuf: Buffer, recvbuf: Buffer) -> BufferContribution:
    receive = elements(recvbuf, writable=True, blocks=comm.indegree)
    return _contribution(
        comm, "Neighbor_alltoall", elements(sendbuf, writable=False, blocks=comm.outdegree), receive
    )


def Neighbor_alltoallv(comm: TopologyCommunicator, sendbuf: Buffer, recvbuf: Buffer) -> BufferContribution:
    receive = blocks(recvbuf, comm.indegree, writable=True, untouched=_absent(comm))
    return _contribution(comm, "Neighbor_alltoallv", blocks(sendbuf, comm.outdegree, writable=False), receive)


def Neighbor_alltoallw(comm: TopologyCommunicator, sendbuf: Buffer, recvbuf: Buffer) -> BufferContribution:
    absent = _absent(comm)
    receive, receive_types = typed_blocks(recvbuf, comm.indegree, writable=True, untouched=absent)
    send, send_types = typed_blocks(sendbuf, comm.outdegree, writable=False)
    contribution = _contribution(comm, "Neighbor_alltoallw", send, receive)
    contribution.send_types, contribution.receive_types = send_types, receive_types
    return contribution


def _give_to_neighbours(topology: Topology, contributions: Sequence[ObjectContribution]) -> None:
    for rank, each in enumerate(contributions):
        each.given = [
            None
            if sender == MPI.PROC_NULL
            else contributions[sender].payload[topology.sent_place(rank, place)]
            for place, sender in enumerate(topology.sources(rank))
        ]


def _unpickled(payloads: Sequence[bytes | None]) -> list[object]:
    return [None if payload is None else unpickle(payload) for payload in payloads]


def _of_objects(comm: TopologyCommunicator, kind: str, objects: Sequence[object]) -> ObjectContribution:
    payload = [pickled(each) for each in objects]
    return ObjectContribution(kind, partial(_give_to_neighbours, _topology(comm)), payload, result=_unpickled)


def neighbor_allgather(comm: TopologyCommunicator, sendobj: object) -> ObjectContribution:
    return _of_objects(comm, "neighbor_allgather", [sendobj] * comm.outdegree)


def neighbor_alltoall(comm: TopologyCommunicator, sendobj: Sequence[object]) -> ObjectContribution:
    objects = list(sendobj)
    if len(objects) != comm.outdegree:
        raise ValueError(f"expecting {comm.outdegree} items, got {len(objects)}")
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
