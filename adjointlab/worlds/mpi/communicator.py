"""The guarded communicator: mpi4py's interface, in which every wait can be revoked.

Methods that communicate are built from tables when first used (:meth:`GuardedComm.__getattr__`), and then found like any
attribute. Creating a communicator blocks inside MPI, so a revocable agreement precedes it. Freeing one may block too, so it is
deferred until the run is known to have left the communicator clean.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from operator import index
from typing import Any, ClassVar, Final, NoReturn, cast

from mpi4py import MPI

from adjointlab import MPI as ours
from adjointlab.exit_codes import ExitCode
from adjointlab.typing import Status
from adjointlab.worlds.call_labels import label_of_call
from adjointlab.worlds.call_sites import call_site
from adjointlab.worlds.comm_world import means_comm_world, own_handle
from adjointlab.worlds.exit_of_c import allow_exit_of_c
from adjointlab.worlds.graph_arguments import Neighbours, Weights, edges, grid, neighbours, unmatched_edge
from adjointlab.worlds.local_calls import LocalCalls
from adjointlab.worlds.mpi.buffer_calls import (
    BUFFER_CALLS,
    NEIGHBOUR_BUFFER_CALLS,
    native,
    peer_of,
    peer_or_tag,
)
from adjointlab.worlds.mpi.call_log import CallSignature
from adjointlab.worlds.mpi.calls import GuardedCall
from adjointlab.worlds.mpi.communicator_base import CommBase
from adjointlab.worlds.mpi.object_calls import NEIGHBOUR_OBJECT_CALLS, OBJECT_CALLS
from adjointlab.worlds.mpi.requests import fill
from adjointlab.worlds.refused_calls import ONLY_SIMULATED, missing

__all__ = ["GuardedCartcomm", "GuardedComm", "GuardedDistgraphcomm", "GuardedTopocomm"]

# Open MPI makes a group's communicator with messages of the given tag on the parent. They could match receives of user code
# with the same tag, so a reserved one is used. (The tag that user code gives is part of the agreement.)
_CREATION_TAG: Final = 32_003

_SECONDS_TO_PASS_ON: Final = 0.2
"""Time for the launcher to forward output: when a job ends, launchers drop output that they have not read yet."""

# As in mpi4py, calls that make communicators return it on ranks that are not members.
_NULL: Final = cast("GuardedComm", ours.COMM_NULL)


class GuardedComm(CommBase):
    """A communicator whose waits always end: by completion, by another rank's failure, or when the world's patience runs out."""

    local: ClassVar = frozenset({"Get_group", "Get_topology", "group", "is_topo", "topology"})
    """Names of local methods and properties, for which MPI's own are used."""

    buffer_calls: ClassVar = BUFFER_CALLS
    object_calls: ClassVar = OBJECT_CALLS

    @classmethod
    def offered(cls) -> set[str]:
        """mpi4py's names that user code may use."""
        internal = set(dir(CommBase)) - set(dir(LocalCalls))
        names = {*dir(cls), *cls.local, *cls.buffer_calls, *cls.object_calls, "rank", "size"} - internal
        own = {"buffer_calls", "local", "object_calls", "offered"}
        return {name for name in names - own if not name.startswith("_")}

    def __getattr__(self, name: str) -> Any:
        method: Callable[..., Any]
        if name in self.buffer_calls:
            method = self.buffer_calls[name](self, name)
        elif name in self.object_calls:
            method = partial(self.object_calls[name], self)
        elif name in self.local:
            return getattr(self.inner, name)
        else:
            elsewhere = "that of the simulated world" if name in ONLY_SIMULATED else ""
            raise missing("guarded", name, self.offered(), elsewhere)
        self.__dict__[name] = method
        self._built.append(name)
        return method

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.offered()})

    def __eq__(self, other: object) -> bool:
        if self.freed is not None and self is not other and other == ours.COMM_NULL:
            return True
        return self is other or (means_comm_world(other) and not self._name)

    def __bool__(self) -> bool:
        """Return False once it has been freed."""
        return self.freed is None

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"<{type(self).__name__} rank {self.rank} of {self.size}, ranks {self.ranks} of the run>"

    def __str__(self) -> str:
        made = "" if self.made_at is None else f", made at {self.made_at}"
        return f"the communicator of ranks {' '.join(map(str, self.ranks))}{made}"

    def Abort(self, errorcode: int = 0) -> NoReturn:
        """End the job. (The case is on disk, and `adjointlab run` goes on with it.)"""
        rank, site = self.guard.control.rank, call_site()
        # Not through sys.stderr: pytest captures it, and would never print it.
        os.write(2, f"adjointlab: rank {rank} called Abort({errorcode}) at {site}\n".encode())
        time.sleep(_SECONDS_TO_PASS_ON)
        allow_exit_of_c()
        # Abort(0) must not end the job with exit code 0.
        own_handle(MPI.COMM_WORLD).Abort(errorcode or ExitCode.UNJUDGED)
        raise SystemExit(errorcode)

    # Probes

    def Probe(
        self, source: int = ours.ANY_SOURCE, tag: int = ours.ANY_TAG, status: Status | None = None
    ) -> bool:
        """Wait until a message can be received."""
        source, tag, found = peer_or_tag(source), peer_or_tag(tag), MPI.Status()
        call = GuardedCall(self, "Probe", (source, tag), peer=peer_of(source))
        self.guard.wait_until(lambda: self.inner.Iprobe(source, tag, found), call)
        fill(status, found)
        return True

    def Iprobe(
        self, source: int = ours.ANY_SOURCE, tag: int = ours.ANY_TAG, status: Status | None = None
    ) -> bool:
        """Return True if a message can be received."""
        source, tag, found = peer_or_tag(source), peer_or_tag(tag), MPI.Status()
        if self.inner.Iprobe(source, tag, found):
            self.guard.failed_polls = 0
            fill(status, found)
            return True
        self.guard.poll_failed(GuardedCall(self, "Iprobe", (source, tag), peer=peer_of(source)))
        return False

    probe, iprobe = Probe, Iprobe

    # New communicators

    def Dup(self, info: object = None) -> GuardedComm:
        """Make a second communicator of the same ranks."""
        return self._derive("Dup", None, lambda _: self.inner.Dup())

    Clone = Dup

    def Dup_with_info(self, info: object) -> GuardedComm:
        """Make a second communicator of the same ranks. The hints are not passed on, because only speed depends on them."""
        return self.Dup()

    def Split(self, color: int = 0, key: int = 0) -> GuardedComm:
        """Make a communicator for each colour, its ranks ordered by `key`."""
        color = native(color)

        def create(arguments: Sequence[tuple[int, int]]) -> MPI.Comm:
            wrong = [given for given in arguments if given[0] < 0 and given[0] != MPI.UNDEFINED]
            if wrong:
                # All ranks have all colours, so all raise the same error. MPI would raise it on one rank only, and leave
                # the others in the call.
                raise ours.Exception(
                    f"Invalid color {wrong[0][0]}: must be nonnegative or UNDEFINED", ours.ERR_ARG
                )
            return self.inner.Split(color, key)

        return self._derive("Split", (color, key), create, GuardedCall(self, "Split"), is_alike=False)

    def Split_type(self, split_type: int, key: int = 0, info: object = None) -> GuardedComm:
        """Make a communicator for each node, its ranks ordered by `key`. The hints are not passed on."""
        split_type = native(split_type)
        return self._derive(
            "Split_type",
            (split_type, key),
            lambda _: self.inner.Split_type(split_type, key),
            GuardedCall(self, "Split_type"),
            is_alike=False,
        )

    def Create(self, group: MPI.Group) -> GuardedComm:
        """Make a communicator of the ranks in `group`; all ranks of this one call it."""
        ranks = _members(group, self)
        call = GuardedCall(self, "Create", (), {"group": list(ranks)})

        def create(groups: Sequence[tuple[int, ...]]) -> MPI.Comm:
            # MPI requires the same group from all of its members. (Other ranks may give another group, to make two at once.)
            if any(groups[self.ranks.index(member)] != given for given in groups for member in given):
                self._cancel_mismatched(call, f"group={list(ranks)}")
            return self.inner.Create(group)

        return self._derive("Create", ranks, create, call, is_alike=False)

    def Create_group(self, group: MPI.Group, tag: int = 0) -> GuardedComm:
        """Make a communicator of the ranks in `group`; only they call it."""
        ranks = _members(group, self)
        if self.guard.control.rank not in ranks:
            return _NULL
        key = ("group", ranks, tag)
        inner = self.registry.agreements.agree(
            (*key, self.registry.serial(key)),
            ranks,
            None,
            lambda _: self.inner.Create_group(group, _CREATION_TAG),
            GuardedCall(self, "Create_group", label=label_of_call()),
        )
        return self._adopt(inner)

    def Create_cart(
        self, dims: Sequence[int], periods: Sequence[bool] | bool | None = None, reorder: bool = False
    ) -> GuardedComm:
        """Make a Cartesian grid of the first ranks."""
        arguments = (*grid(dims, periods), bool(reorder))
        return self._derive("Create_cart", arguments, lambda _: self.inner.Create_cart(*arguments))

    def Create_dist_graph_adjacent(
        self,
        sources: Sequence[int] | None,
        destinations: Sequence[int] | None,
        sourceweights: Weights = None,
        destweights: Weights = None,
        info: MPI.Info = MPI.INFO_NULL,
        reorder: bool = False,
    ) -> GuardedComm:
        """Make a graph; each rank gives its own neighbours."""
        own = neighbours(self.size, sources, destinations, sourceweights, destweights)
        call = GuardedCall(self, "Create_dist_graph_adjacent")

        def create(named: Sequence[Neighbours]) -> MPI.Comm:
            if unmatched_edge(named):
                lists = f"sources={list(own.sources)}, destinations={list(own.destinations)}"
                self._cancel_mismatched(call, lists)
            return self.inner.Create_dist_graph_adjacent(*own, info, reorder)

        return self._derive("Create_dist_graph_adjacent", own, create, call, is_alike=False)

    def Create_dist_graph(
        self,
        sources: Sequence[int],
        degrees: Sequence[int],
        destinations: Sequence[int],
        weights: Weights = None,
        info: MPI.Info = MPI.INFO_NULL,
        reorder: bool = False,
    ) -> GuardedComm:
        """Make a graph; any rank may give any edges."""
        # Raises for bad arguments, before other ranks are waited for.
        edges(self.size, sources, degrees, destinations, weights)
        arguments = (list(sources), list(degrees), list(destinations), native(weights), info, reorder)

        def create(_: object) -> MPI.Comm:
            return self.inner.Create_dist_graph(*arguments)

        return self._derive("Create_dist_graph", None, create, is_alike=False)

    def Free(self) -> None:
        """Mark it as freed. (MPI's communicator is freed after the run, if that was clean.)"""
        if self not in self.registry.derived:
            raise RuntimeError("the run's own communicator belongs to the world and cannot be freed")
        if self.freed is not None:
            self.inner.Free()  # raises, as every call on it does
        # MPI_Comm_free is collective and may wait for the other members, which could not be revoked. So all ranks call it after
        # the run, if that was clean.
        self.freed = self.inner
        self.retire("it has been freed")

    Disconnect = Free

    def _cancel_mismatched(self, call: GuardedCall, arguments: str) -> NoReturn:
        """Cancel a call that was logged by its name, and add its arguments to the log entry, because these do not match."""
        entry = CallSignature(*self.log.pop())
        self.log.append(entry._replace(name=f"{entry.name}({arguments})"))
        self.guard.cancel_mismatched(call)

    def _derive(
        self,
        name: str,
        arguments: object,
        create: Callable[[Sequence[Any]], MPI.Comm],
        call: GuardedCall | None = None,
        *,
        is_alike: bool = True,
    ) -> GuardedComm:
        """Make a communicator with `create` once all ranks have called `name`, with equal arguments if `is_alike`."""
        call = call or GuardedCall(self, name)
        shown = f"{name}{'' if arguments is None or not is_alike else arguments}"

        def checked(given: Sequence[tuple[str, Any]]) -> MPI.Comm:
            # MPI need not detect that one rank calls Split and another one Dup: both may wait for ever.
            if any(other != shown for other, _ in given):
                self.guard.cancel_mismatched(call)
            return create([other for _, other in given])

        self.log_call(shown, is_compared=False)
        return self._adopt(self.agree("creation", (shown, arguments), checked, call))

    def _adopt(self, inner: MPI.Comm) -> GuardedComm:
        """The guarded communicator over a new one of MPI."""
        if inner == MPI.COMM_NULL:
            return _NULL
        assert isinstance(inner, MPI.Intracomm)
        inner = own_handle(inner)
        group = inner.Get_group()
        ranks = _members(group, self, inner.size)
        group.Free()
        comm = _kind_of(inner)(inner, ranks, self.registry)
        comm.made_at = call_site()
        comm._name = f"ranks {' '.join(map(str, ranks))}" + (f" #{comm.key[1]}" if comm.key[1] else "")
        self.registry.derived.append(comm)
        return comm


class GuardedTopocomm(GuardedComm):
    """A guarded communicator with a topology."""

    _kind: ClassVar = "Topocomm"

    inner: MPI.Topocomm

    local = GuardedComm.local | {"degrees", "indegree", "outdegree", "inedges", "outedges", "inoutedges"}
    buffer_calls: ClassVar = {**BUFFER_CALLS, **NEIGHBOUR_BUFFER_CALLS}
    object_calls: ClassVar = {**OBJECT_CALLS, **NEIGHBOUR_OBJECT_CALLS}


class GuardedDistgraphcomm(GuardedTopocomm):
    """A guarded graph."""

    _kind: ClassVar = "Distgraphcomm"

    inner: MPI.Distgraphcomm

    local = GuardedTopocomm.local | {"Get_dist_neighbors", "Get_dist_neighbors_count"}


class GuardedCartcomm(GuardedTopocomm):
    """A guarded Cartesian grid."""

    _kind: ClassVar = "Cartcomm"

    inner: MPI.Cartcomm

    local = GuardedTopocomm.local | {"Get_topo", "Get_dim", "Get_coords", "Get_cart_rank"}
    local |= {"topo", "dim", "ndim", "dims", "periods", "coords"}

    def Shift(self, direction: int, disp: int) -> tuple[int, int]:
        """Return the ranks to receive from and to send to, `disp` steps along `direction`."""
        source, dest = self.inner.Shift(direction, disp)
        return _NullRank.of(source), _NullRank.of(dest)

    def Sub(self, remain_dims: Sequence[bool]) -> GuardedComm:
        """Make the grids of the dimensions that remain."""
        remain = [bool(index(dimension)) for dimension in remain_dims]
        return self._derive("Sub", remain, lambda _: self.inner.Sub(remain))


def _kind_of(inner: MPI.Intracomm) -> type[GuardedComm]:
    if isinstance(inner, MPI.Cartcomm):
        return GuardedCartcomm
    return GuardedDistgraphcomm if isinstance(inner, MPI.Distgraphcomm) else GuardedComm


class _NullRank(int):
    """`PROC_NULL` as a result of a call: equal to both mpi4py's and ours, because user code may compare it with either."""

    @staticmethod
    def of(rank: int) -> int:
        return _NullRank(rank) if rank == MPI.PROC_NULL else rank

    def __eq__(self, other: object) -> bool:
        return other in (MPI.PROC_NULL, ours.PROC_NULL)

    def __ne__(self, other: object) -> bool:
        return not self == other  # needed because int defines __ne__ itself

    def __hash__(self) -> int:
        return int.__hash__(self)


def _members(group: MPI.Group, comm: CommBase, size: int | None = None) -> tuple[int, ...]:
    """Return the ranks of the run in a group of `comm`'s ranks; only the first `size` of them if it is given."""
    # For a new communicator, `size` is required: in MPICH 5.0.2, the group of a grid that is smaller than its parent also has,
    # at its end, the ranks left out (a grid of 2 of 3 ranks has size 2 and a group of size 3).
    of_comm = comm.inner.Get_group()
    local = MPI.Group.Translate_ranks(group, list(range(group.size if size is None else size)), of_comm)
    of_comm.Free()
    if MPI.UNDEFINED in local:
        raise ours.Exception(
            f"Invalid group: not all its members are in the communicator, which has {comm.size}",
            ours.ERR_GROUP,
        )
    return tuple(comm.ranks[rank] for rank in local)
