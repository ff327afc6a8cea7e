"""The communicator of the simulated world: mpi4py's names on one rank's view of a context."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, NoReturn

from adjointlab import MPI
from adjointlab.worlds import constants
from adjointlab.worlds.attributes import Attributes
from adjointlab.worlds.buffers import elements
from adjointlab.worlds.simulated.calls import SimulatedCall, call_here
from adjointlab.worlds.simulated.collectives import BUFFER_COLLECTIVES
from adjointlab.worlds.simulated.communicator_creation import COMMUNICATOR_MAKERS, GRID_MAKERS, duplicate
from adjointlab.worlds.simulated.context import Context
from adjointlab.worlds.simulated.groups import Grid, Group
from adjointlab.worlds.simulated.matching import Message, Null, ProbeWait, Receive, Send
from adjointlab.worlds.simulated.object_collectives import OBJECT_COLLECTIVES
from adjointlab.worlds.simulated.payload import pack
from adjointlab.worlds.simulated.requests import SimulatedRequest
from adjointlab.worlds.simulated.scheduler import Pending, Task
from adjointlab.worlds.simulated.simulation import Simulation
from adjointlab.worlds.unsupported import ONLY_MPI, missing
from adjointlab.worlds.world import Cancelled, Dead, Finding, Matched

__all__ = ["CartesianCommunicator", "Communicator", "MatchedMessage"]


OBJECT: Any = object()
"""Stands for the buffer of a receive of an object."""


_INTERNAL = frozenset({"grid", "new_context", "root", "unfreed", "view"})


class Communicator(Attributes):
    """One rank's view of a communicator."""

    def __init__(self, run: Simulation, task: Task, context: Context, rank: int) -> None:
        self._run = run
        self._scheduler = run.scheduler
        self._task = task
        self._context = context
        self._name = "" if context is run.everyone else context.name
        self._freed = False
        self._attributes = {}
        self.rank = rank
        self.size = len(context.members)

    # Who is here

    def Get_rank(self) -> int:
        return self.rank

    def Get_size(self) -> int:
        return self.size

    def Get_name(self) -> str:
        return self._name

    def Set_name(self, name: str) -> None:
        self._name = name

    name = property(Get_name, Set_name)

    def Get_group(self) -> Group:
        return Group(self._context.members, self._task.rank)

    group = property(Get_group)

    def Is_inter(self) -> bool:
        return False

    def Is_intra(self) -> bool:
        return True

    is_inter = property(Is_inter)
    is_intra = property(Is_intra)

    def Free(self) -> None:
        """Collective in MPI; here it only makes later use an error."""
        self._begin()
        if self._context is self._run.everyone:
            raise RuntimeError("the run's own communicator belongs to the world and cannot be freed")
        self._freed = True
        self._run.unfreed.get(self._task.rank, {}).pop(self._context, None)

    def unfreed(self) -> list[Context]:
        """What this rank has made in this run, from whichever communicator, and not freed."""
        return list(self._run.unfreed.get(self._task.rank, ()))

    def Abort(self, errorcode: int = 0) -> NoReturn:
        """End the run of all ranks."""
        call = self._call("Abort", ("errorcode", errorcode))
        self._scheduler.enter(self._task)
        rank = self._task.rank
        # The kind is what the end of a job of MPI is told as.
        text = f"rank {rank} called Abort({errorcode}) at {call.where}"
        self._run.findings.append(Finding(f"a rank called MPI_Abort({errorcode})", text))
        for task in self._scheduler.tasks:
            ended = f"called Abort({errorcode})" if task.rank == rank else "ended with the job"
            self._scheduler.cancel(task, Dead(ended))
        raise Cancelled

    # Messages of arrays

    def Send(self, buf: Any, dest: int, tag: int = 0) -> None:
        self._complete(self._send("Send", buf, dest, tag))

    def Ssend(self, buf: Any, dest: int, tag: int = 0) -> None:
        self._complete(self._send("Ssend", buf, dest, tag, synchronous=True))

    def Bsend(self, buf: Any, dest: int, tag: int = 0) -> None:
        self._complete(self._send("Bsend", buf, dest, tag, buffered=True))

    def Isend(self, buf: Any, dest: int, tag: int = 0) -> SimulatedRequest:
        return self._request(self._send("Isend", buf, dest, tag, blocking=False))

    def Issend(self, buf: Any, dest: int, tag: int = 0) -> SimulatedRequest:
        return self._request(self._send("Issend", buf, dest, tag, synchronous=True, blocking=False))

    def Recv(
        self, buf: Any, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: Any = None
    ) -> None:
        self._complete(self._receive("Recv", buf, source, tag), status)

    def Irecv(self, buf: Any, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG) -> SimulatedRequest:
        return self._request(self._receive("Irecv", buf, source, tag, blocking=False))

    def Sendrecv(
        self,
        sendbuf: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = MPI.ANY_SOURCE,
        recvtag: int = MPI.ANY_TAG,
        status: Any = None,
    ) -> None:
        receive = self._receive("Sendrecv", recvbuf, source, recvtag)
        self._complete(receive, status, self._send("Sendrecv", sendbuf, dest, sendtag))

    def Sendrecv_replace(
        self,
        buf: Any,
        dest: int,
        sendtag: int = 0,
        source: int = MPI.ANY_SOURCE,
        recvtag: int = MPI.ANY_TAG,
        status: Any = None,
    ) -> None:
        content = elements(buf, writable=True)
        copied = [content.array.copy(), content.datatype]
        send = self._send("Sendrecv_replace", copied, dest, sendtag)
        self._complete(self._receive("Sendrecv_replace", buf, source, recvtag), status, send)

    # Messages of objects

    def send(self, obj: Any, dest: int, tag: int = 0) -> None:
        self._complete(self._send("send", pack(obj), dest, tag, pickled=True))

    def ssend(self, obj: Any, dest: int, tag: int = 0) -> None:
        self._complete(self._send("ssend", pack(obj), dest, tag, pickled=True, synchronous=True))

    def bsend(self, obj: Any, dest: int, tag: int = 0) -> None:
        self._complete(self._send("bsend", pack(obj), dest, tag, pickled=True, buffered=True))

    def isend(self, obj: Any, dest: int, tag: int = 0) -> SimulatedRequest:
        return self._request(self._send("isend", pack(obj), dest, tag, pickled=True, blocking=False))

    def issend(self, obj: Any, dest: int, tag: int = 0) -> SimulatedRequest:
        return self._request(
            self._send("issend", pack(obj), dest, tag, pickled=True, synchronous=True, blocking=False)
        )

    def recv(
        self, buf: Any = None, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: Any = None
    ) -> Any:
        return self._complete(self._receive("recv", OBJECT, source, tag), status)

    def irecv(
        self, buf: Any = None, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG
    ) -> SimulatedRequest:
        return self._request(self._receive("irecv", OBJECT, source, tag, blocking=False))

    def sendrecv(
        self,
        sendobj: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = MPI.ANY_SOURCE,
        recvtag: int = MPI.ANY_TAG,
        status: Any = None,
    ) -> Any:
        receive = self._receive("sendrecv", OBJECT, source, recvtag)
        return self._complete(
            receive, status, self._send("sendrecv", pack(sendobj), dest, sendtag, pickled=True)
        )

    # Looking before receiving

    def Probe(self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: Any = None) -> bool:
        self._await_message("Probe", source, tag, status)
        return True

    def Iprobe(self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: Any = None) -> bool:
        if constants.source(source) == MPI.PROC_NULL:
            return self.Probe(source, tag, status)  # nothing is there at once
        return self._look_for_message("Iprobe", source, tag, status) is not None

    def Mprobe(
        self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: Any = None
    ) -> MatchedMessage:
        return self._match(self._await_message("Mprobe", source, tag, status))

    def Improbe(
        self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: Any = None
    ) -> MatchedMessage | None:
        if constants.source(source) == MPI.PROC_NULL:
            return self.Mprobe(source, tag, status)
        message = self._look_for_message("Improbe", source, tag, status)
        return None if message is None else self._match(message)

    probe, iprobe, mprobe, improbe = Probe, Iprobe, Mprobe, Improbe

    # New communicators; Split, Dup, Create and Create_cart are among the collectives

    def Create_group(self, group: Group, tag: int = 0) -> Any:
        """Collective over the members of `group` alone."""
        call = self._call("Create_group", ("group", list(group.members)), ("tag", tag))
        self._begin()
        if not self.Get_group().includes(group):
            raise MPI.Exception(
                f"Invalid group {group}: not all its members are in the communicator", MPI.ERR_GROUP
            )
        entry = duplicate(self, group.members, kind="Create_group")
        place = self._run.meeting_place(self._context, group.members, tag)
        return self._complete(place.take_part(group.rank, self._task, call, entry))

    def view(self, context: Context | None) -> Any:
        """This rank's communicator on `context`, or `COMM_NULL` if it is not in it."""
        if context is None or self._task.rank not in context.places:
            return MPI.COMM_NULL
        self._run.unfreed.setdefault(self._task.rank, {})[context] = None
        kind = Communicator if context.grid is None else CartesianCommunicator
        return kind(self._run, self._task, context, context.places[self._task.rank])

    def new_context(self, members: Sequence[int], grid: Grid | None = None) -> Context:
        """What `members`, ranks of the run, will share in a new communicator."""
        context = self._run.new_context(tuple(members), grid)
        context.made = call_here("made")
        return context

    @property
    def grid(self) -> Grid | None:
        """The Cartesian topology, if there is one."""
        return self._context.grid

    def Get_topology(self) -> int:
        return MPI.UNDEFINED if self._context.grid is None else MPI.CART

    # The machinery

    def root(self, value: int) -> int:
        """`value`, if it is a rank here."""
        if not 0 <= value < self.size:
            raise MPI.Exception(
                f"Invalid root {value}: must be nonnegative and less than {self.size}", MPI.ERR_ROOT
            )
        return value

    def _begin(self) -> None:
        if self._freed:
            raise MPI.Exception("Invalid communicator: it has been freed", MPI.ERR_COMM)
        self._scheduler.enter(self._task)

    def _call(self, name: str, *arguments: tuple[str, Any]) -> SimulatedCall:
        return call_here(name, *arguments, *((("comm", self._name),) if self._name else ()))

    def _peer(self, value: int) -> int:
        peer = constants.source(value)
        if not 0 <= peer < self.size and peer not in (MPI.ANY_SOURCE, MPI.PROC_NULL):
            raise MPI.Exception(
                f"Invalid rank {value}: must be nonnegative and less than {self.size}", MPI.ERR_RANK
            )
        return peer

    def _send(
        self,
        name: str,
        buf: Any,
        dest: int,
        tag: int,
        *,
        pickled: bool = False,
        synchronous: bool = False,
        buffered: bool = False,
        blocking: bool = True,
    ) -> Pending:
        """Start a send."""
        dest = self._peer(dest)
        call = self._call(name, ("dest", dest), ("tag", tag))
        self._begin()
        if dest == MPI.PROC_NULL:
            return Null(self._task, call)
        if dest < 0:
            raise MPI.Exception("Invalid rank ANY_SOURCE: a message is sent to one rank", MPI.ERR_RANK)
        if tag < 0:
            raise MPI.Exception(f"Invalid tag {tag}: must be nonnegative", MPI.ERR_TAG)
        content = elements(buf, writable=False)
        message = Message(self._task, self.rank, tag, content, pickled, call)
        send = Send(self._task, call, message, self._context.members[dest])
        if not blocking and not pickled:
            send.watch()
        nondeterminism = self._run.nondeterminism
        if synchronous or (not buffered and nondeterminism.taken()):
            message.sent = send
            late = blocking or nondeterminism.taken()
        else:
            send.done = True
            late = not blocking and nondeterminism.taken()
        self._context.mailboxes[dest].put(message)
        if not late:
            message.capture()
        return send

    def _receive(self, name: str, buf: Any, source: int, tag: int, *, blocking: bool = True) -> Pending:
        """Start a receive."""
        source, tag = self._peer(source), constants.tag(tag)
        call = self._call(name, ("source", source), ("tag", tag))
        self._begin()
        if source == MPI.PROC_NULL:
            return Null(self._task, call)
        if tag < 0 and tag != MPI.ANY_TAG:
            raise MPI.Exception(f"Invalid tag {tag}: must be nonnegative or ANY_TAG", MPI.ERR_TAG)
        target = None if buf is OBJECT else elements(buf, writable=True)
        receive = Receive(self._task, call, source, tag, self._context.members, target)
        if not blocking and self._run.nondeterminism.taken():
            receive.delay()
        self._context.mailboxes[self.rank].post(receive)
        return receive

    def _receive_matched(self, name: str, buf: Any, message: Message | None) -> Pending:
        """Start the receive of a message that has been matched."""
        source, tag = (MPI.PROC_NULL, MPI.ANY_TAG) if message is None else (message.source, message.tag)
        call = self._call(name, ("source", source), ("tag", tag))
        self._begin()
        if message is None:
            return Null(self._task, call)
        target = None if buf is OBJECT else elements(buf, writable=True)
        receive = Receive(self._task, call, source, tag, self._context.members, target)
        self._context.mailboxes[self.rank].deliver(receive, message)
        return receive

    def _complete(self, pending: Pending, status: Any = None, send: Pending | None = None) -> Any:
        """Wait for `pending` (and for the `send` started with it); its result."""
        if send is not None:
            self._scheduler.wait(self._task, (pending, send), pending.call)
            send.finish()
        elif not pending.done:
            self._scheduler.wait(self._task, (pending,), pending.call)
        return self._run.finish(pending, status)

    def _request(self, pending: Pending) -> SimulatedRequest:
        return SimulatedRequest(self._run, pending)

    def _take_part(self, name: str, entry: Any, blocking: bool) -> Any:
        """Call a collective: its result, or a request."""
        root, op = entry.signature[:2]
        named = (("root", root), ("op", op), ("group", entry.group))
        arguments = [(key, value) for key, value in named if value is not None]
        call = self._call(name, *arguments)
        self._begin()
        if not blocking:
            entry.kind = name  # does not meet its blocking form
            entry.watch()
            if self._run.nondeterminism.taken():
                entry.delay()
            else:
                entry.hold()
        part = self._context.take_part(self.rank, self._task, call, entry, may_be_put_off=not blocking)
        return self._complete(part) if blocking else self._request(part)

    def _probe(self, name: str, source: int, tag: int) -> ProbeWait:
        source, tag = self._peer(source), constants.tag(tag)
        call = self._call(name, ("source", source), ("tag", tag))
        self._begin()
        return ProbeWait(self._task, call, source, tag, self._context.members)

    def _await_message(self, name: str, source: int, tag: int, status: Any) -> Message | None:
        probe = self._probe(name, source, tag)
        if probe.source == MPI.PROC_NULL:
            constants.fill_status(status, MPI.PROC_NULL, MPI.ANY_TAG, 0)
            return None
        mailbox = self._context.mailboxes[self.rank]
        if mailbox.find(probe) is None:
            mailbox.watch(probe)
            self._scheduler.wait(self._task, (probe,), probe.call)
        return self._tell(probe, mailbox.find(probe), status)

    def _look_for_message(self, name: str, source: int, tag: int, status: Any) -> Message | None:
        probe = self._probe(name, source, tag)
        message = self._context.mailboxes[self.rank].find(probe)
        if message is None:
            self._scheduler.polled(self._task, probe.call)
        return self._tell(probe, message, status)

    def _tell(self, probe: ProbeWait, message: Message | None, status: Any) -> Message | None:
        if message is not None:
            if probe.source == MPI.ANY_SOURCE:
                matched = f"hears rank {message.sender.rank}"
                self._scheduler.matched.append(Matched(self._task.rank, probe.call, matched))
            constants.fill_status(status, message.source, message.tag, message.nbytes)
        return message

    def _match(self, message: Message | None) -> MatchedMessage:
        if message is not None:
            self._context.mailboxes[self.rank].arrived.remove(message)
        return MatchedMessage(self, message)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Communicator) and self._context is other._context and self.rank == other.rank

    __hash__ = None  # type: ignore[assignment]

    def __getattr__(self, name: str) -> NoReturn:
        there = [each for each in dir(type(self)) if not each.startswith("_") and each not in _INTERNAL]
        raise missing("simulated", name, there, "that of the MPI world" if name in ONLY_MPI else "")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} rank {self.rank} of {self.size} {self._name}".rstrip() + ">"


class CartesianCommunicator(Communicator):
    """A communicator that carries a grid."""

    @property
    def _grid(self) -> Grid:
        grid = self._context.grid
        assert grid is not None
        return grid

    def Get_dim(self) -> int:
        return len(self._grid.dims)

    def Get_coords(self, rank: int) -> list[int]:
        return self._grid.coordinates(rank)

    def Get_cart_rank(self, coords: Sequence[int]) -> int:
        return self._grid.rank(coords)

    def Get_topo(self) -> tuple[list[int], list[int], list[int]]:
        return list(self._grid.dims), [int(period) for period in self._grid.periods], self.coords

    def Shift(self, direction: int, disp: int) -> tuple[int, int]:
        return self._grid.shift(self.rank, direction, disp)

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


class MatchedMessage:
    """A message that `Mprobe` has taken out of the queue, still to be received."""

    def __init__(self, comm: Communicator, message: Message | None) -> None:
        self._comm = comm
        self._message = message  # None: from nobody

    def Recv(self, buf: Any, status: Any = None) -> None:
        self._comm._complete(self._receive("Recv", buf), status)

    def Irecv(self, buf: Any) -> SimulatedRequest:
        return self._comm._request(self._receive("Irecv", buf))

    def recv(self, status: Any = None) -> Any:
        return self._comm._complete(self._receive("recv", OBJECT), status)

    def irecv(self) -> SimulatedRequest:
        return self._comm._request(self._receive("irecv", OBJECT))

    def _receive(self, name: str, buf: Any) -> Pending:
        return self._comm._receive_matched(name, buf, self._message)


def _collective(name: str, read: Callable[..., Any], *, blocking: bool) -> Callable[..., Any]:
    @wraps(read)
    def call(self: Communicator, *arguments: Any, **keywords: Any) -> Any:
        return self._take_part(name, read(self, *arguments, **keywords), blocking)

    call.__name__ = name
    call.__qualname__ = f"Communicator.{name}"
    return call


for _name, _read in (BUFFER_COLLECTIVES | OBJECT_COLLECTIVES | COMMUNICATOR_MAKERS).items():
    setattr(Communicator, _name, _collective(_name, _read, blocking=True))
for _name, _read in BUFFER_COLLECTIVES.items():
    setattr(Communicator, f"I{_name.lower()}", _collective(f"I{_name.lower()}", _read, blocking=False))
for _name, _read in GRID_MAKERS.items():
    setattr(CartesianCommunicator, _name, _collective(_name, _read, blocking=True))
