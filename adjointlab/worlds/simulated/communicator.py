"""Communicator of the simulated world: one rank's view of a shared communicator, with mpi4py's names."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import wraps
from operator import index
from types import NoneType
from typing import Any, ClassVar, Final, NoReturn

from adjointlab import MPI
from adjointlab.quantities import ranks_listed
from adjointlab.typing import Buffer, Status
from adjointlab.worlds.arguments import elements
from adjointlab.worlds.backward import BackwardPass
from adjointlab.worlds.call_labels import label_of_call
from adjointlab.worlds.call_sites import call_here
from adjointlab.worlds.comm_world import means_comm_world
from adjointlab.worlds.constants import c_int
from adjointlab.worlds.graph_arguments import Neighbours
from adjointlab.worlds.module_state import ModuleState
from adjointlab.worlds.object_room import room_of
from adjointlab.worlds.refused_calls import missing
from adjointlab.worlds.run import Dead, Finding, Matched
from adjointlab.worlds.simulated.buffer_collectives import BUFFER_COLLECTIVES, refuse_aliased
from adjointlab.worlds.simulated.collectives import Contribution, SharedCommunicator
from adjointlab.worlds.simulated.communicator_creation import (
    COMMUNICATOR_MAKERS,
    GRID_MAKERS,
    check_group,
    contribution_to,
)
from adjointlab.worlds.simulated.groups import SimulatedGroup, group_of
from adjointlab.worlds.simulated.messages import MatchedMessage, Messages, legal_tag
from adjointlab.worlds.simulated.neighbourhoods import (
    NEIGHBOUR_BUFFER_COLLECTIVES,
    NEIGHBOUR_OBJECT_COLLECTIVES,
)
from adjointlab.worlds.simulated.object_collectives import OBJECT_COLLECTIVES, pickled
from adjointlab.worlds.simulated.requests import SimulatedRequest
from adjointlab.worlds.simulated.topologies import Graph, Grid, Topology
from adjointlab.worlds.world import Cancelled

__all__ = ["CartesianCommunicator", "Communicator", "GraphCommunicator", "TopologyCommunicator"]


_INTERNAL: Final = frozenset(
    {
        "carried_topology",
        "first_given",
        "keep",
        "members_in_order",
        "new_shared",
        "node",
        "note_application",
        "note_backward",
        "note_return",
        "separate",
        "takes_device_memory",
        "unfreed",
        "view",
    }
)
"""Public methods and properties that MPI does not have."""


class Communicator(Messages):
    """One rank's view of a communicator. Methods without a docstring behave like mpi4py's of the same name."""

    takes_device_memory: Final = True
    """True because messages of device arrays are copied on the device."""

    # Ranks and groups

    @property
    def rank(self) -> int:  # type: ignore[override]
        """This rank. Raises if another rank is running: it must have obtained this object through state that the threads share."""
        current = self._scheduler.current
        if self._task is not current and current.outcome is None:
            self._scheduler.refuse(self._task)
        return self._rank

    def Get_group(self) -> SimulatedGroup:
        return SimulatedGroup(self._shared.members, self._task.rank)

    group = property(Get_group)

    def Free(self) -> None:
        """Make later communication through this view an error. (In MPI it is collective, but need not wait for other ranks.)"""
        # Does not call Scheduler.enter: it does not wait, and a garbage collection may call it on another rank's thread.
        self._refuse_freed()
        if self._shared is self._run.everyone:
            raise RuntimeError("the run's own communicator belongs to the world and cannot be freed")
        self._freed = True
        self._run.unfreed.get(self._task.rank, {}).pop(self._shared, None)

    Disconnect = Free

    def note_return(self, function: Callable[..., object]) -> None:
        """Record that this rank has returned from a function of user code."""
        self._task.returned_from = function

    def note_application(self) -> None:
        """Record that an application of the operator under test has ended: later calls belong to the next one."""
        self._task.applications += 1

    def note_backward(self, begun: BackwardPass) -> None:
        """Record that this rank begins a backward pass."""
        self._task.backward = begun

    def unfreed(self) -> list[SharedCommunicator]:
        """Communicators that this rank has made in this run, from any communicator, and not freed."""
        return list(self._run.unfreed.get(self._task.rank, ()))

    def keep(self) -> None:
        """Leave it to the run to free this communicator, so that user code need not."""
        self._run.unfreed.get(self._task.rank, {}).pop(self._shared, None)

    def first_given(self, key: Hashable, value: object) -> object:
        """Return the value given by the first rank of this communicator that called with this key; `value` if it is this one."""
        return self._run.given.setdefault((self._shared, key), value)

    def separate(self, packages: Sequence[str]) -> ModuleState:
        """Give each rank separate module-level variables in these packages; all ranks call it before user code."""
        return self._run.separate(packages)

    def Abort(self, errorcode: int = 0) -> NoReturn:
        """End the run of all ranks."""
        call = self._call("Abort", ("errorcode", errorcode))
        self._scheduler.enter(self._task)
        rank = self._task.rank
        # The same kind as the supervisor reports for a process that calls MPI_Abort.
        text = f"rank {rank} called Abort({errorcode}) at {call.where}"
        self._run.findings.append(Finding(f"a rank called MPI_Abort({errorcode})", text))
        for task in self._scheduler.tasks:
            ended = f"called Abort({errorcode})" if task.rank == rank else "ended with the job"
            self._scheduler.cancel(task, Dead(ended))
        raise Cancelled

    # Messages of arrays

    def Send(self, buf: Buffer, dest: int, tag: int = 0) -> None:
        self._complete(self._send("Send", buf, dest, tag))

    def Ssend(self, buf: Buffer, dest: int, tag: int = 0) -> None:
        self._complete(self._send("Ssend", buf, dest, tag, synchronous=True))

    def Bsend(self, buf: Buffer, dest: int, tag: int = 0) -> None:
        self._complete(self._send("Bsend", buf, dest, tag, buffered=True))

    def Isend(self, buf: Buffer, dest: int, tag: int = 0) -> SimulatedRequest:
        return self._request(self._send("Isend", buf, dest, tag, blocking=False))

    def Issend(self, buf: Buffer, dest: int, tag: int = 0) -> SimulatedRequest:
        return self._request(self._send("Issend", buf, dest, tag, synchronous=True, blocking=False))

    def Recv(
        self, buf: Buffer, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: Status | None = None
    ) -> None:
        self._complete(self._receive("Recv", buf, source, tag), status)

    def Irecv(self, buf: Buffer, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG) -> SimulatedRequest:
        return self._request(self._receive("Irecv", buf, source, tag, blocking=False))

    def Sendrecv(
        self,
        sendbuf: Buffer,
        dest: int,
        sendtag: int = 0,
        recvbuf: Buffer = None,
        source: int = MPI.ANY_SOURCE,
        recvtag: int = MPI.ANY_TAG,
        status: Status | None = None,
    ) -> None:
        # All arguments are checked before the receive is posted: after an error, it would still match a later message.
        if MPI.PROC_NULL not in (self._destination(dest), self._peer(source)):
            refuse_aliased("Sendrecv", elements(sendbuf, writable=False), elements(recvbuf, writable=True))
        legal_tag(sendtag)
        receive = self._receive("Sendrecv", recvbuf, source, recvtag)
        send = self._send("Sendrecv", sendbuf, dest, sendtag)
        self._complete(receive, status, send)

    def Sendrecv_replace(
        self,
        buf: Buffer,
        dest: int,
        sendtag: int = 0,
        source: int = MPI.ANY_SOURCE,
        recvtag: int = MPI.ANY_TAG,
        status: Status | None = None,
    ) -> None:
        content = elements(buf, writable=True)
        # Arguments are checked before anything is sent.
        self._peer(source), legal_tag(recvtag, is_receive=True)
        copied = [content.array.copy(), content.datatype]
        send = self._send("Sendrecv_replace", copied, dest, sendtag)
        self._complete(self._receive("Sendrecv_replace", buf, source, recvtag), status, send)

    def Send_init(self, buf: Buffer, dest: int, tag: int = 0) -> MPI.Prequest:
        self._peer(dest), legal_tag(tag)
        return MPI.Prequest(lambda: self.Isend(buf, dest, tag))

    def Ssend_init(self, buf: Buffer, dest: int, tag: int = 0) -> MPI.Prequest:
        self._peer(dest), legal_tag(tag)
        return MPI.Prequest(lambda: self.Issend(buf, dest, tag))

    def Recv_init(self, buf: Buffer, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG) -> MPI.Prequest:
        self._peer(source), legal_tag(tag, is_receive=True)
        return MPI.Prequest(lambda: self.Irecv(buf, source, tag))

    # Messages of objects

    def send(self, obj: object, dest: int, tag: int = 0) -> None:
        self._complete(self._send("send", pickled(obj), dest, tag, pickled=True))

    def ssend(self, obj: object, dest: int, tag: int = 0) -> None:
        self._complete(self._send("ssend", pickled(obj), dest, tag, pickled=True, synchronous=True))

    def bsend(self, obj: object, dest: int, tag: int = 0) -> None:
        self._complete(self._send("bsend", pickled(obj), dest, tag, pickled=True, buffered=True))

    def isend(self, obj: object, dest: int, tag: int = 0) -> SimulatedRequest:
        return self._request(self._send("isend", pickled(obj), dest, tag, pickled=True, blocking=False))

    def issend(self, obj: object, dest: int, tag: int = 0) -> SimulatedRequest:
        return self._request(
            self._send("issend", pickled(obj), dest, tag, pickled=True, synchronous=True, blocking=False)
        )

    def recv(
        self,
        buf: Buffer = None,
        source: int = MPI.ANY_SOURCE,
        tag: int = MPI.ANY_TAG,
        status: Status | None = None,
    ) -> Any:
        return self._complete(self._receive("recv", room_of(buf), source, tag), status)

    def irecv(
        self, buf: Buffer = None, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG
    ) -> SimulatedRequest:
        return self._request(
            self._receive("irecv", room_of(buf, is_posted_first=True), source, tag, blocking=False)
        )

    def sendrecv(
        self,
        sendobj: object,
        dest: int,
        sendtag: int = 0,
        recvbuf: Buffer = None,
        source: int = MPI.ANY_SOURCE,
        recvtag: int = MPI.ANY_TAG,
        status: Status | None = None,
    ) -> Any:
        content = pickled(sendobj)
        self._destination(dest), legal_tag(sendtag)
        receive = self._receive("sendrecv", room_of(recvbuf), source, recvtag)
        return self._complete(receive, status, self._send("sendrecv", content, dest, sendtag, pickled=True))

    # Probes

    def Probe(
        self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: Status | None = None
    ) -> bool:
        self._await_message("Probe", source, tag, status)
        return True

    def Iprobe(
        self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: Status | None = None
    ) -> bool:
        if self._peer(source) == MPI.PROC_NULL:
            return self.Probe(
                source, tag, status
            )  # true at once, with the status of a receive from PROC_NULL
        return self._look_for_message("Iprobe", source, tag, status) is not None

    def Mprobe(
        self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: Status | None = None
    ) -> MatchedMessage:
        return self._match(self._await_message("Mprobe", source, tag, status))

    def Improbe(
        self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: Status | None = None
    ) -> MatchedMessage | None:
        if self._peer(source) == MPI.PROC_NULL:
            return self.Mprobe(source, tag, status)
        message = self._look_for_message("Improbe", source, tag, status)
        return None if message is None else self._match(message)

    probe, iprobe, mprobe, improbe = Probe, Iprobe, Mprobe, Improbe

    # New communicators; Split, Dup, Create and Create_cart are added as collectives below

    def Create_group(self, group: object, tag: int = 0) -> Any:
        """Make a communicator of the members of `group`; collective over these only."""
        tag, group = legal_tag(tag), group_of(group, self._task.rank)
        call = self._call("Create_group", ("group", list(group.members)), ("tag", tag))
        self._begin()
        check_group(self, group)
        if group.rank == MPI.UNDEFINED:
            return MPI.COMM_NULL
        contribution = contribution_to(self, group.members, kind="Create_group")
        # The other ranks do not take part, so this must not be counted as a collective of the whole communicator.
        shared = self._run.group_creation(self._shared, group.members, tag)
        return self._complete(shared.call_collective(group.rank, self._task, call, contribution))

    def view(self, shared: SharedCommunicator | None) -> Communicator | MPI.NullCommunicator:
        """This rank's view of `shared`, or `COMM_NULL` if it is not a member."""
        if shared is None or self._task.rank not in shared.ranks:
            return MPI.COMM_NULL
        self._run.unfreed.setdefault(self._task.rank, {})[shared] = None
        kind = _KINDS[type(shared.topology)]
        return kind(self._run, self._task, shared, shared.ranks[self._task.rank])

    def new_shared(self, members: Sequence[int], topology: Topology | None = None) -> SharedCommunicator:
        """State for a new communicator of `members`, ranks of the run."""
        shared = self._run.new_shared(tuple(members), topology)
        shared.made = call_here("made")
        return shared

    def node(self, name: str) -> int:
        """The node of this rank; records the choice for its call of `name`."""
        nodes = self._run.machine.nodes
        own = nodes[self._task.rank]
        others = [rank for rank, node in enumerate(nodes) if node == own and rank != self._task.rank]
        if len(others) + 1 < len(nodes):
            self._note_choice(
                name, f"is on one node with {ranks_listed(others)}" if others else "is alone on its node"
            )
        return own

    def members_in_order(self, name: str, *, reorder: bool) -> tuple[int, ...]:
        """The members of this communicator (ranks of the run) in the order chosen for a call of `name` that may `reorder` them."""
        members = self.Get_group().members
        if not reorder:
            return members
        placed = self._run.machine.in_order(members)
        if placed != members:
            self._note_choice(
                name, f"is rank {placed.index(self._task.rank)} of a communicator that may reorder its ranks"
            )
        return placed

    def _note_choice(self, name: str, what: str) -> None:
        self._scheduler.matched.append(Matched(self._task.rank, self._call(name), what))

    @property
    def carried_topology(self) -> Topology | None:
        """The grid or graph; None without a topology."""
        return self._shared.topology

    def Get_topology(self) -> int:
        return MPI.UNDEFINED

    @property
    def topology(self) -> int:
        return self.Get_topology()

    @property
    def is_topo(self) -> bool:
        return self._shared.topology is not None

    # Collectives

    def _call_collective(self, name: str, contribution: Contribution, blocking: bool) -> Any:
        """Call a collective; return its result, or a request if it is non-blocking."""
        root, op = contribution.signature[:2]
        named = (("root", root), ("op", op), ("group", contribution.group))
        call = self._call(name, *[each for each in named if each[1] is not None])
        self._begin()
        if not blocking:
            # A non-blocking collective does not match the blocking form (MPI 4.1, section 6.12).
            contribution.kind = name if (label := label_of_call()) is None else str(label)
            contribution.watch()
            if self._run.strategy.deviates():
                contribution.delay()
                self._run.delayed.append(call)
            else:
                contribution.hold()
        pending = self._shared.call_collective(
            self._rank, self._task, call, contribution, may_be_postponed=not blocking
        )
        return self._complete(pending) if blocking else self._request(pending)

    def __bool__(self) -> bool:
        """Return False once it has been freed."""
        return not self._freed

    def __eq__(self, other: object) -> bool:
        if self._freed and not isinstance(other, Communicator) and other == MPI.COMM_NULL:
            return True
        if not isinstance(other, Communicator):
            return means_comm_world(other) and self._shared is self._run.everyone
        return self._shared is other._shared and self._rank == other._rank

    __hash__ = None  # type: ignore[assignment]

    def __getattr__(self, name: str) -> NoReturn:
        methods = [each for each in dir(type(self)) if not each.startswith("_") and each not in _INTERNAL]
        raise missing("simulated", name, methods)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} rank {self._rank} of {self.size} {self._name}".rstrip() + ">"


class TopologyCommunicator(Communicator):
    """A communicator with a topology, and mpi4py's names for the neighbours of its rank."""

    _kind: ClassVar = "Topocomm"

    @property
    def inoutedges(self) -> tuple[list[int], list[int]]:
        topology = self._shared.topology
        assert topology is not None
        return topology.sources(self.rank), topology.destinations(self.rank)

    @property
    def inedges(self) -> list[int]:
        return self.inoutedges[0]

    @property
    def outedges(self) -> list[int]:
        return self.inoutedges[1]

    @property
    def degrees(self) -> tuple[int, int]:
        return len(self.inedges), len(self.outedges)

    @property
    def indegree(self) -> int:
        return self.degrees[0]

    @property
    def outdegree(self) -> int:
        return self.degrees[1]


class GraphCommunicator(TopologyCommunicator):
    """A communicator with a graph topology."""

    _kind: ClassVar = "Distgraphcomm"

    def Get_topology(self) -> int:
        return MPI.DIST_GRAPH

    @property
    def _own_neighbours(self) -> Neighbours:
        graph = self._shared.topology
        assert isinstance(graph, Graph)
        return graph.neighbours[self.rank]

    def Get_dist_neighbors_count(self) -> tuple[int, int, bool]:
        return *self.degrees, self._own_neighbours.source_weights is not None

    def Get_dist_neighbors(self) -> tuple[list[int], list[int], tuple[list[int], list[int]] | None]:
        own = self._own_neighbours
        if own.source_weights is None or own.destination_weights is None:
            return *self.inoutedges, None
        return *self.inoutedges, (list(own.source_weights), list(own.destination_weights))


class CartesianCommunicator(TopologyCommunicator):
    """A communicator with a Cartesian grid."""

    _kind: ClassVar = "Cartcomm"

    def Get_topology(self) -> int:
        return MPI.CART

    @property
    def _grid(self) -> Grid:
        grid = self._shared.topology
        assert isinstance(grid, Grid)
        return grid

    def Get_dim(self) -> int:
        return len(self._grid.dims)

    def Get_coords(self, rank: int) -> list[int]:
        return self._grid.coordinates(c_int(rank))

    def Get_cart_rank(self, coords: Sequence[int]) -> int:
        return self._grid.rank(list(map(index, coords)))

    def Get_topo(self) -> tuple[list[int], list[int], list[int]]:
        return list(self._grid.dims), [int(period) for period in self._grid.periods], self.coords

    def Shift(self, direction: int, disp: int) -> tuple[int, int]:
        return self._grid.shift(self.rank, c_int(direction), c_int(disp))

    dim = property(Get_dim)
    ndim = property(Get_dim)
    topo = property(Get_topo)

    @property
    def dims(self) -> list[int]:
        return list(self._grid.dims)

    @property
    def periods(self) -> list[int]:
        return self.Get_topo()[1]

    @property
    def coords(self) -> list[int]:
        return self._grid.coordinates(self.rank)


def _collective(name: str, read: Callable[..., Any], *, blocking: bool) -> Callable[..., Any]:
    @wraps(read)
    def call(self: Communicator, *arguments: Any, **keywords: Any) -> Any:
        return self._call_collective(name, read(self, *arguments, **keywords), blocking)

    call.__name__ = name
    call.__qualname__ = f"Communicator.{name}"
    return call


for _name, _read in (BUFFER_COLLECTIVES | OBJECT_COLLECTIVES | COMMUNICATOR_MAKERS).items():
    setattr(Communicator, _name, _collective(_name, _read, blocking=True))
for _name, _read in BUFFER_COLLECTIVES.items():
    setattr(Communicator, f"I{_name.lower()}", _collective(f"I{_name.lower()}", _read, blocking=False))
for _name, _read in (NEIGHBOUR_BUFFER_COLLECTIVES | NEIGHBOUR_OBJECT_COLLECTIVES).items():
    setattr(TopologyCommunicator, _name, _collective(_name, _read, blocking=True))
for _name, _read in NEIGHBOUR_BUFFER_COLLECTIVES.items():
    setattr(
        TopologyCommunicator, f"I{_name.lower()}", _collective(f"I{_name.lower()}", _read, blocking=False)
    )
for _name, _read in GRID_MAKERS.items():
    setattr(CartesianCommunicator, _name, _collective(_name, _read, blocking=True))

_KINDS: Final[Mapping[type, type[Communicator]]] = {
    NoneType: Communicator,
    Grid: CartesianCommunicator,
    Graph: GraphCommunicator,
}
