"""The collectives that make communicators: the last to come makes what all will share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from adjointlab import MPI
from adjointlab.worlds.constants import is_undefined
from adjointlab.worlds.simulated.collectives import Disagreement
from adjointlab.worlds.simulated.groups import Grid, Group
from adjointlab.worlds.simulated.object_collectives import ObjectEntry

__all__ = ["COMMUNICATOR_MAKERS", "GRID_MAKERS", "duplicate"]


def duplicate(comm: Any, members: Sequence[int], grid: Grid | None = None, kind: str = "Dup") -> ObjectEntry:
    """A new communicator of `members`, ranks of the run whom all that come know alike; the others get `COMM_NULL`."""

    def compute(entries: Sequence[ObjectEntry]) -> None:
        made = comm.new_context(members, grid)
        for entry in entries:
            entry.handed = made

    entry = ObjectEntry(kind, compute, result=comm.view)
    entry.signature = (None, None, None, (tuple(members), grid))
    return entry


def _by_color(comm: Any, kind: str, color: Any, key: int, grid: Grid | None = None) -> ObjectEntry:
    def compute(entries: Sequence[ObjectEntry]) -> None:
        members = comm.Get_group().members
        colors: dict[Any, list[tuple[int, int]]] = {}
        for rank, entry in enumerate(entries):
            its_color, its_key = entry.parcel
            if its_color is not None:
                colors.setdefault(its_color, []).append((its_key, rank))
        for each in colors.values():
            ranks = [rank for _key, rank in sorted(each)]
            made = comm.new_context([members[rank] for rank in ranks], grid)
            for rank in ranks:
                entries[rank].handed = made

    return ObjectEntry(kind, compute, (color, key), result=comm.view)


def Dup(comm: Any, info: Any = None) -> ObjectEntry:
    return duplicate(comm, comm.Get_group().members, comm.grid)


def Split(comm: Any, color: int = 0, key: int = 0) -> ObjectEntry:
    if is_undefined(color):
        return _by_color(comm, "Split", None, key)
    if color < 0:
        raise MPI.Exception(f"Invalid color {color}: must be nonnegative or UNDEFINED", MPI.ERR_ARG)
    return _by_color(comm, "Split", color, key)


def Split_type(comm: Any, split_type: int, key: int = 0, info: Any = None) -> ObjectEntry:
    """All simulated ranks are on one node."""
    return _by_color(comm, "Split_type", None if is_undefined(split_type) else 0, key)


def Create(comm: Any, group: Group) -> ObjectEntry:
    """Ranks may give groups of their own, as long as the members of each give the same."""
    if not comm.Get_group().includes(group):
        raise MPI.Exception(
            f"Invalid group {group}: not all its members are in the communicator", MPI.ERR_GROUP
        )

    def compute(entries: Sequence[ObjectEntry]) -> None:
        here = comm.Get_group().members
        for rank, entry in enumerate(entries):
            for member in entry.parcel:
                if entries[peer := here.index(member)].parcel != entry.parcel:
                    raise Disagreement(rank, peer, f"rank {member}, a member of the group, gives another one")
        groups = dict.fromkeys(entry.parcel for entry in entries if entry.parcel)
        made = {members: comm.new_context(members) for members in groups}
        for entry in entries:
            entry.handed = made.get(entry.parcel)

    entry = ObjectEntry("Create", compute, group.members, result=comm.view)
    entry.group = list(group.members)
    return entry


def Create_cart(
    comm: Any, dims: Sequence[int], periods: Sequence[bool] | bool | None = None, reorder: bool = False
) -> ObjectEntry:
    extents = tuple(int(extent) for extent in dims)
    if periods is None or isinstance(periods, bool):
        periods = [bool(periods)] * len(extents)
    if len(periods) != len(extents):
        raise ValueError(f"expecting {len(extents)} items, got {len(periods)}")
    grid = Grid(extents, tuple(bool(period) for period in periods))
    if grid.size > comm.size or min(extents, default=1) < 0:
        raise MPI.Exception(
            f"Invalid argument: the communicator has {comm.size} ranks, and the grid {extents} {grid.size}",
            MPI.ERR_ARG,
        )
    return duplicate(comm, comm.Get_group().members[: grid.size], grid, kind="Create_cart")


def Sub(comm: Any, remain_dims: Sequence[bool]) -> ObjectEntry:
    """The grids of the remaining dimensions, one for each place in the others."""
    if len(remain_dims) != len(comm.grid.dims):
        raise ValueError(f"expecting {len(comm.grid.dims)} items, got {len(remain_dims)}")
    here = comm.grid.coordinates(comm.rank)
    color = tuple(at for at, remains in zip(here, remain_dims, strict=True) if not remains)
    return _by_color(comm, "Sub", color, comm.rank, comm.grid.keep(remain_dims))


COMMUNICATOR_MAKERS: dict[str, Callable[..., ObjectEntry]] = {
    each.__name__: each for each in (Dup, Split, Split_type, Create, Create_cart)
}
GRID_MAKERS: dict[str, Callable[..., ObjectEntry]] = {"Sub": Sub}
