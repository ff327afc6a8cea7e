"""The guarded communicator: mpi4py's names, and no wait that cannot be called off.

A blocking call is the non-blocking one and a revocable wait. The methods are built from tables when first used
(:meth:`GuardedComm.__getattr__`), and then found like any attribute. Constants of :mod:`adjointlab.MPI` are translated
on the way in. Freeing is put off until the run is known to have left the communicator clean.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NoReturn

import numpy as np
from mpi4py import MPI

from adjointlab import MPI as ours
from adjointlab.worlds.attributes import Attributes
from adjointlab.worlds.buffers import elements
from adjointlab.worlds.constants import to_mpi4py
from adjointlab.worlds.mpi.agreement import Agreements
from adjointlab.worlds.mpi.call_log import Note, noter, shorthand
from adjointlab.worlds.mpi.calls import Call, Place, caller
from adjointlab.worlds.mpi.guard import Guard
from adjointlab.worlds.mpi.object_calls import OBJECT_FORMS
from adjointlab.worlds.mpi.requests import GuardedRequest, ObjectReceive, fill
from adjointlab.worlds.unsupported import ONLY_SIMULATED, missing

__all__ = ["Family", "GuardedCartcomm", "GuardedComm", "native"]

_OPERATIONS: Final = {op: to_mpi4py(op) for op in ours.Op}

_COLLECTIVES: Final = (
    "Barrier",
    "Bcast",
    "Gather",
    "Gatherv",
    "Scatter",
    "Scatterv",
    "Allgather",
    "Allgatherv",
    "Alltoall",
    "Alltoallv",
    "Alltoallw",
    "Reduce",
    "Allreduce",
    "Reduce_scatter",
    "Reduce_scatter_block",
    "Scan",
    "Exscan",
)


# Open MPI makes a group's communicator with messages of the tag that it is given, on the parent: so one that no user
# code's messages have. (The makers have agreed on the tag that was asked for before.)
_CREATION_TAG: Final = 32_003


def native(value: Any) -> Any:
    """`value` as mpi4py knows it: constants of ours translated, also inside buffer specifications."""
    kind = type(value)
    if kind is int:
        return value if value > -9000 else to_mpi4py(value)
    if kind is ours.Constant:
        return to_mpi4py(value)
    if kind is ours.Op:
        return _OPERATIONS[value]
    if kind is ours.Buffer or kind is ours.Datatype:
        return to_mpi4py(value)
    if kind is list or kind is tuple:
        return kind(map(native, value))
    return value


class Family:
    """A communicator of the world, with all that user code derives from it in one run."""

    def __init__(self, guard: Guard, agreements: Agreements) -> None:
        self.guard = guard
        self.agreements = agreements
        self.derived: list[GuardedComm] = []
        self._counts: dict[Any, int] = {}

    def begin(self) -> None:
        """A run begins, with nothing derived yet."""
        self.derived = []
        self._counts = {}

    def serial(self, thing: Any) -> int:
        """How often this was asked for `thing` before.

        Members make communicators of the same ranks in the same order, so the ranks and their serial number name a
        communicator alike on all of them.
        """
        count = self._counts.get(thing, 0)
        self._counts[thing] = count + 1
        return count


class GuardedComm(Attributes):
    """A communicator whose waits end: in completion, in another rank's failure, or with patience."""

    def __init__(self, inner: Any, ranks: tuple[int, ...], family: Family) -> None:
        inner.Set_errhandler(MPI.ERRORS_RETURN)
        self.inner = inner
        self.ranks = ranks  # of the run, by rank of this communicator
        self.rank: int = inner.rank
        self.size: int = inner.size
        self.family = family
        self.guard = family.guard
        self.made: Place | None = None  # by which line of user code
        self.freed: Any = None  # the communicator of MPI, once user code has called Free
        self.begin()

    def begin(self) -> None:
        """A run begins on this communicator."""
        self.key = (self.ranks, self.family.serial(self.ranks))
        self.label = ""  # what reports call it, where it is not the run's own
        self.trail: list[Note] = []  # the collectives called
        self.guard.trails[self.key] = self.trail
        self.posted: list[ObjectReceive] = []
        self.creations = 0
        self._attributes = {}  # the world keeps its communicator from run to run, and user code must not find it changed

    def retire(self, reason: str) -> None:
        """Make every further use an error that says `reason`."""
        for name in [name for name in self.__dict__ if name in _BUILDERS]:
            del self.__dict__[name]
        self.inner = _Retired(reason)

    def __getattr__(self, name: str) -> Any:
        build = _BUILDERS.get(name)
        if build is None:
            there = {*dir(type(self)), *_BUILDERS, "rank", "size"} - _INTERNAL
            raise missing(
                "guarded",
                name,
                [each for each in there if not each.startswith("_")],
                "that of the simulated world" if name in ONLY_SIMULATED else "",
            )
        method = build(self, name)
        self.__dict__[name] = method
        return method

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *_BUILDERS})

    def __repr__(self) -> str:
        return f"<{type(self).__name__} rank {self.rank} of {self.size}, ranks {self.ranks} of the run>"

    def __str__(self) -> str:
        made = "" if self.made is None else f", made at {self.made}"
        return f"the communicator of ranks {' '.join(map(str, self.ranks))}{made}"

    def Get_rank(self) -> int:
        return self.rank

    def Get_size(self) -> int:
        return self.size

    def Get_name(self) -> str:
        return self.label

    def Set_name(self, name: str) -> None:
        self.label = name

    name = property(Get_name, Set_name)

    def Get_group(self) -> MPI.Group:
        """mpi4py's group (its operations are local)."""
        group: MPI.Group = self.inner.Get_group()
        return group

    group = property(Get_group)

    def _predefined(self, key: int | ours.Keyval) -> Any:
        return None if isinstance(key, ours.Keyval) else self.inner.Get_attr(key)

    def Is_inter(self) -> bool:
        return False

    def Is_intra(self) -> bool:
        return True

    is_inter = property(Is_inter)
    is_intra = property(Is_intra)

    def Abort(self, errorcode: int = 0) -> NoReturn:
        """End the job. (The case is on disk, and `adjointlab run` goes on with it.)"""
        rank = self.guard.control.rank
        os.write(2, f"adjointlab: rank {rank} called Abort({errorcode}) at {caller()}\n".encode())
        MPI.COMM_WORLD.Abort(errorcode)
        raise SystemExit(errorcode)

    def Get_topology(self) -> int:
        return int(self.inner.Get_topology())

    # Two-sided exchange

    def Sendrecv_replace(
        self,
        buf: Any,
        dest: int,
        sendtag: int = 0,
        source: int = ours.ANY_SOURCE,
        recvtag: int = ours.ANY_TAG,
        status: Any = None,
    ) -> None:
        """Send what is in `buf` and receive into it."""
        source, dest, recvtag = native(source), native(dest), native(recvtag)
        shown = {"dest": dest, "sendtag": sendtag, "source": source, "recvtag": recvtag}
        self.count(dest, is_send=True)
        self.count(source, is_send=False)
        # Not Isendrecv_replace: its status is none that MPICH has filled.
        array, kind = elements(buf, writable=True)
        sending = self.inner.Isend([array.copy(), to_mpi4py(kind)], dest, sendtag)
        receiving = self.inner.Irecv([array, to_mpi4py(kind)], source, recvtag)
        self.finish(
            (receiving, Call(self, "Sendrecv_replace", (buf,), shown, peer=source), status),
            (sending, Call(self, "Sendrecv_replace", (buf,), shown, peer=dest), None),
        )

    def Probe(self, source: int = ours.ANY_SOURCE, tag: int = ours.ANY_TAG, status: Any = None) -> bool:
        """Wait until a message can be received."""
        source, tag, found = native(source), native(tag), MPI.Status()
        probe = self.inner.Iprobe
        self.guard.until(
            lambda: probe(source, tag, found), Call(self, "Probe", (source, tag), peer=_peer(source))
        )
        fill(status, found)
        return True

    def Iprobe(self, source: int = ours.ANY_SOURCE, tag: int = ours.ANY_TAG, status: Any = None) -> bool:
        """Whether a message can be received."""
        source, tag, found = native(source), native(tag), MPI.Status()
        if self.inner.Iprobe(source, tag, found):
            self.guard.polls = 0
            fill(status, found)
            return True
        self.guard.polled(Call(self, "Iprobe", (source, tag), peer=_peer(source)))
        return False

    probe, iprobe = Probe, Iprobe

    # New communicators

    def Dup(self) -> Any:
        """A second communicator of the same ranks."""
        return self._derive("Dup", None, lambda _: self.inner.Dup())

    Clone = Dup

    def Split(self, color: int = 0, key: int = 0) -> Any:
        """A communicator for each colour, ordered by `key`."""
        color = native(color)

        def create(arguments: Sequence[Any]) -> Any:
            wrong = [given for given in arguments if given[0] < 0 and given[0] != MPI.UNDEFINED]
            if wrong:
                raise ValueError(f"Split: color is {wrong[0][0]}; it must not be negative")
            return self.inner.Split(color, key)

        return self._derive("Split", (color, key), create, Call(self, "Split", (), {}), alike=False)

    def Create(self, group: MPI.Group) -> Any:
        """A communicator of the ranks in `group`; all ranks of this one call it."""
        ranks = _members(group, self)
        call = Call(self, "Create", (), {"group": list(ranks)})

        def create(given: Sequence[tuple[int, ...]]) -> Any:
            if any(given[self.ranks.index(member)] != mine for mine in given for member in mine):
                # Now it is one that the others' do not match.
                name, *rest = self.trail.pop()
                self.trail.append((f"{name}(group={list(ranks)})", *rest))
                self.guard.leave(call)
            return self.inner.Create(group)

        return self._derive("Create", ranks, create, call, alike=False)

    def Create_group(self, group: MPI.Group, tag: int = 0) -> Any:
        """A communicator of the ranks in `group`; only they call it."""
        ranks = _members(group, self)
        if self.guard.control.rank not in ranks:
            return ours.COMM_NULL
        family = self.family
        creation = ("group", ranks, tag)
        inner = family.agreements.agree(
            (*creation, family.serial(creation)),
            ranks,
            None,
            lambda _: self.inner.Create_group(group, _CREATION_TAG),
            Call(self, "Create_group"),
        )
        return self._adopt(inner)

    def Create_cart(self, dims: Sequence[int], periods: Any = None, reorder: bool = False) -> Any:
        """A Cartesian grid of the first ranks."""
        dims = [int(extent) for extent in dims]
        if periods is None or isinstance(periods, bool):
            periods = [bool(periods)] * len(dims)
        periods = [bool(period) for period in periods]
        return self._derive(
            "Create_cart",
            (dims, periods, bool(reorder)),
            lambda _: self.inner.Create_cart(dims, periods, reorder),
        )

    def Free(self) -> None:
        """Do not use it any more. (It is freed when the run has ended well.)"""
        if self not in self.family.derived:
            raise RuntimeError("the run's own communicator belongs to the world and cannot be freed")
        inner = self.inner
        self.retire("it has been freed")
        self.freed = inner

    Disconnect = Free

    def unfreed(self) -> list[GuardedComm]:
        """What this rank has made in this run, from whichever communicator, and not freed."""
        return [comm for comm in self.family.derived if comm.freed is None]

    # What the builders and the files beside this one need

    def _derive(
        self,
        name: str,
        arguments: Any,
        create: Callable[[Sequence[Any]], Any],
        call: Call | None = None,
        *,
        alike: bool = True,
    ) -> Any:
        call = call or Call(self, name)
        shown = f"{name}{'' if arguments is None or not alike else arguments}"

        def checked(given: Sequence[Any]) -> Any:
            if any(other != shown for other, _ in given):
                self.guard.leave(call)
            return create([other for _, other in given])

        self.note(shown, compared=False)
        self.creations += 1
        key = ("comm", self.key, self.creations)
        return self._adopt(self.family.agreements.agree(key, self.ranks, (shown, arguments), checked, call))

    def note(
        self, name: str, root: int | None = None, operation: Any = None, *, compared: bool = True
    ) -> None:
        """Put down a collective call that user code makes; compare it with the other ranks' where that is asked for."""
        place = caller()
        note = (name, root, operation, None, None, place.code, place.line)
        self.trail.append(note)
        if compared and self.guard.strict:
            self.compare(note, Call(self, name, (), None if root is None else {"root": root}))

    def compare(self, note: Note, call: Call) -> None:
        """Wait until all ranks stand before this collective, and leave it where they call different ones."""
        if self.size == 1:
            return
        self.creations += 1
        key, mine = ("collective", self.key, self.creations), self.guard.in_words(note)
        given = self.family.agreements.agree(key, self.ranks, mine, lambda given: given, call)
        if any(given[0].difference(other) for other in given):
            self.guard.leave(call)

    def _adopt(self, inner: Any) -> Any:
        if inner == MPI.COMM_NULL:
            return ours.COMM_NULL
        group = inner.Get_group()
        ranks = _members(group, self, inner.size)
        group.Free()
        kind = GuardedCartcomm if isinstance(inner, MPI.Cartcomm) else GuardedComm
        comm = kind(inner, ranks, self.family)
        comm.made = caller()
        comm.label = f"ranks {' '.join(map(str, ranks))}" + (f" #{comm.key[1]}" if comm.key[1] else "")
        self.family.derived.append(comm)
        return comm

    def count(self, peer: int, *, is_send: bool) -> None:
        if peer == MPI.PROC_NULL:
            return
        if not is_send:
            self.guard.received += 1
        elif 0 <= peer < self.size:
            self.guard.sent[self.ranks[peer]] += 1

    def finish(self, *waits: tuple[Any, Call, Any]) -> None:
        """Wait for all the requests of one call; those left when one is called off are kept."""
        open_requests = [(request, call) for request, call, _ in waits]
        try:
            for request, call, status in waits:
                found = status if status is None or isinstance(status, MPI.Status) else MPI.Status()
                self.guard.wait(request, call, found)
                open_requests.pop(0)
                if found is not None:
                    fill(status, found)
        except BaseException:
            for request, call in open_requests:
                if request:
                    GuardedRequest(request, call, self.guard)
            raise
        self.guard.polls = 0

    def unpack(self, message: MPI.Message, envelope: MPI.Status, call: Call) -> Any:
        """Receive a matched message and unpickle it. From PROC_NULL there comes nothing: None."""
        if message == MPI.MESSAGE_NO_PROC:
            return None
        parcel = bytearray(envelope.Get_count(MPI.BYTE))
        self.guard.wait(message.Irecv([parcel, MPI.BYTE]), call)
        return MPI.pickle.loads(parcel)


class GuardedCartcomm(GuardedComm):
    """A guarded Cartesian grid."""

    def Get_topo(self) -> tuple[list[int], list[int], list[int]]:
        """Extents, periodicities and the coordinates of this rank."""
        topology: tuple[list[int], list[int], list[int]] = self.inner.Get_topo()
        return topology

    topo = property(Get_topo)

    def Get_dim(self) -> int:
        return int(self.inner.Get_dim())

    dim = ndim = property(Get_dim)

    @property
    def dims(self) -> list[int]:
        return self.Get_topo()[0]

    @property
    def periods(self) -> list[int]:
        return self.Get_topo()[1]

    @property
    def coords(self) -> list[int]:
        return self.Get_topo()[2]

    def Get_coords(self, rank: int) -> list[int]:
        coordinates: list[int] = self.inner.Get_coords(rank)
        return coordinates

    def Get_cart_rank(self, coords: Sequence[int]) -> int:
        return int(self.inner.Get_cart_rank(coords))

    def Shift(self, direction: int, disp: int) -> tuple[int, int]:
        """The ranks to receive from and to send to, `disp` steps along `direction`."""
        source, dest = self.inner.Shift(direction, disp)
        return _NoRank.of(source), _NoRank.of(dest)

    def Sub(self, remain_dims: Sequence[bool]) -> Any:
        """The grids of the dimensions that remain."""
        remain = [bool(dimension) for dimension in remain_dims]
        return self._derive("Sub", remain, lambda _: self.inner.Sub(remain))


class _NoRank(int):
    """`PROC_NULL` as it comes out of a call: equal to mpi4py's and to ours, whichever user code asks for."""

    @staticmethod
    def of(rank: int) -> int:
        return _NoRank(rank) if rank == MPI.PROC_NULL else rank

    def __eq__(self, other: object) -> bool:
        return other in (MPI.PROC_NULL, ours.PROC_NULL)

    def __hash__(self) -> int:
        return int.__hash__(self)


class _Retired:
    """Stands where MPI's communicator was."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def __getattr__(self, name: str) -> Any:
        raise ours.Exception(f"this communicator cannot be used: {self._reason}", ours.ERR_COMM)


def _members(group: MPI.Group, comm: GuardedComm, size: int | None = None) -> tuple[int, ...]:
    """The ranks of the run in a group of `comm`'s ranks; the first `size` of them, where it is given.

    (MPICH's group of a grid smaller than its parent has the ranks left out too, at its end.)
    """
    here = comm.inner.Get_group()
    local = MPI.Group.Translate_ranks(group, list(range(group.size if size is None else size)), here)
    here.Free()
    if MPI.UNDEFINED in local:
        raise ValueError(f"the group has ranks that are not in this communicator, which has {comm.size}")
    return tuple(comm.ranks[rank] for rank in local)


def _peer(rank: int) -> int | None:
    return rank if rank >= 0 else None


# Builders: each makes the method `name` of one communicator.


def _collective(comm: GuardedComm, name: str) -> Callable[..., None]:
    start = getattr(comm.inner, "I" + name.lower())
    guard, quick = comm.guard, comm.guard.quick
    note_of = noter(name, comm.size)
    plain, index, root, operation = shorthand(name)
    ndarray, getframe = np.ndarray, sys._getframe

    def compared(*arguments: Any, **keywords: Any) -> None:
        frame = sys._getframe(1)
        note = note_of(arguments, keywords, frame.f_code, ~frame.f_lasti)
        comm.trail.append(note)
        comm.compare(note, Call(comm, name, arguments, keywords))
        request = start(*map(native, arguments), **{key: native(value) for key, value in keywords.items()})
        guard.wait(request, Call(comm, name, arguments, keywords))

    def call(*arguments: Any, **keywords: Any) -> None:
        frame = getframe(1)
        # Nearly all calls have arrays and nothing else, and then microseconds count.
        if (
            len(arguments) == plain
            and not keywords
            and type(counted := arguments[index]) is ndarray
            and type(arguments[~index]) is ndarray
        ):
            request = start(*arguments)
            comm.trail.append(
                (name, root, operation, counted.dtype, counted.size, frame.f_code, ~frame.f_lasti)
            )
        else:
            request = start(
                *map(native, arguments), **{key: native(value) for key, value in keywords.items()}
            )
            comm.trail.append(note_of(arguments, keywords, frame.f_code, ~frame.f_lasti))
        guard.polls = 0
        test = request.Test
        for _ in quick:
            if test():
                return
        guard.wait(request, Call(comm, name, arguments, keywords))

    return compared if guard.strict else call


def _started_collective(comm: GuardedComm, name: str) -> Callable[..., GuardedRequest]:
    start, note_of = getattr(comm.inner, name), noter(name, comm.size)

    def call(*arguments: Any, **keywords: Any) -> GuardedRequest:
        request = start(*map(native, arguments), **{key: native(value) for key, value in keywords.items()})
        frame = sys._getframe(1)
        comm.trail.append(note_of(arguments, keywords, frame.f_code, ~frame.f_lasti))
        return GuardedRequest(request, Call(comm, name, arguments, keywords), comm.guard)

    return call


def _send(comm: GuardedComm, name: str) -> Callable[..., None]:
    start = getattr(comm.inner, {"Send": "Isend", "Ssend": "Issend"}[name])
    guard, quick = comm.guard, comm.guard.quick

    def call(buf: Any, dest: int, tag: int = 0) -> None:
        dest = native(dest)
        request = start(native(buf), dest, tag)
        comm.count(dest, is_send=True)
        guard.polls = 0
        test = request.Test
        for _ in quick:
            if test():
                return
        guard.wait(request, Call(comm, name, (buf, dest, tag), peer=_peer(dest)))

    return call


def _started_send(comm: GuardedComm, name: str) -> Callable[..., GuardedRequest]:
    start = getattr(comm.inner, name)

    def call(buf: Any, dest: int, tag: int = 0) -> GuardedRequest:
        dest = native(dest)
        request = start(native(buf), dest, tag)
        comm.count(dest, is_send=True)
        return GuardedRequest(request, Call(comm, name, (buf, dest, tag), peer=_peer(dest)), comm.guard)

    return call


def _receive(comm: GuardedComm, name: str) -> Callable[..., None]:
    start = comm.inner.Irecv
    guard = comm.guard

    def call(buf: Any, source: int = ours.ANY_SOURCE, tag: int = ours.ANY_TAG, status: Any = None) -> None:
        source, tag = native(source), native(tag)
        request = start(native(buf), source, tag)
        comm.count(source, is_send=False)
        guard.polls = 0
        if status is None:
            test = request.Test
            for _ in guard.quick:
                if test():
                    return
        comm.finish((request, Call(comm, name, (buf, source, tag), peer=_peer(source)), status))

    return call


def _started_receive(comm: GuardedComm, name: str) -> Callable[..., GuardedRequest]:
    start = comm.inner.Irecv

    def call(buf: Any, source: int = ours.ANY_SOURCE, tag: int = ours.ANY_TAG) -> GuardedRequest:
        source, tag = native(source), native(tag)
        request = start(native(buf), source, tag)
        comm.count(source, is_send=False)
        return GuardedRequest(request, Call(comm, name, (buf, source, tag), peer=_peer(source)), comm.guard)

    return call


def _sendrecv(comm: GuardedComm, name: str) -> Callable[..., None]:
    start_receive, start_send = comm.inner.Irecv, comm.inner.Isend
    guard, quick = comm.guard, comm.guard.quick

    def call(
        sendbuf: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = ours.ANY_SOURCE,
        recvtag: int = ours.ANY_TAG,
        status: Any = None,
    ) -> None:
        dest, source, recvtag = native(dest), native(source), native(recvtag)
        arguments = (sendbuf, dest, sendtag, recvbuf, source, recvtag)
        receiving = start_receive(native(recvbuf), source, recvtag)
        comm.count(source, is_send=False)
        try:
            sending = start_send(native(sendbuf), dest, sendtag)
        except BaseException:
            GuardedRequest(receiving, Call(comm, name, arguments, peer=_peer(source)), guard)
            raise
        comm.count(dest, is_send=True)
        guard.polls = 0
        if status is None:
            test = receiving.Test
            for _ in quick:
                if test():
                    if sending.Test():
                        return
                    break
        comm.finish(
            (receiving, Call(comm, name, arguments, peer=_peer(source)), status),
            (sending, Call(comm, name, arguments, peer=_peer(dest)), None),
        )

    return call


def _object_form(comm: GuardedComm, name: str) -> Callable[..., Any]:
    return partial(OBJECT_FORMS[name], comm)


_BUILDERS: Final[dict[str, Callable[[GuardedComm, str], Callable[..., Any]]]] = {
    **dict.fromkeys(_COLLECTIVES, _collective),
    **dict.fromkeys(("I" + name.lower() for name in _COLLECTIVES), _started_collective),
    **dict.fromkeys(("Send", "Ssend"), _send),
    **dict.fromkeys(("Isend", "Issend"), _started_send),
    "Recv": _receive,
    "Sendrecv": _sendrecv,
    "Irecv": _started_receive,
    **dict.fromkeys(OBJECT_FORMS, _object_form),
}
_INTERNAL: Final = frozenset({"begin", "compare", "count", "finish", "note", "retire", "unfreed", "unpack"})
