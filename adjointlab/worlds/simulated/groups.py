"""Groups of ranks."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from operator import index

from adjointlab import MPI
from adjointlab.core.partition import shared_property

__all__ = ["SimulatedGroup", "group_of"]


def group_of(value: object, own: int) -> SimulatedGroup:
    """Return `value` as a group of the simulated world; also accepts mpi4py's `GROUP_EMPTY`. Raises `TypeError` for anything else."""
    if isinstance(value, SimulatedGroup):
        return value
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and value == mpi.GROUP_EMPTY:
        return SimulatedGroup((), own)
    raise TypeError(f"{value!r} is not a group of ranks of the case; the communicator's Get_group() has one")


class SimulatedGroup:
    """Ordered set of ranks of the run, as seen by one of them, with mpi4py's names."""

    def __init__(self, members: Iterable[int], own: int) -> None:
        self.members = tuple(members)
        self._own = own

    def Get_size(self) -> int:
        return len(self.members)

    def Get_rank(self) -> int:
        return self._rank_of.get(self._own, MPI.UNDEFINED)

    size = property(Get_size)
    rank = property(Get_rank)

    def Incl(self, ranks: Sequence[int]) -> SimulatedGroup:
        return SimulatedGroup(self._members_at(ranks), self._own)

    def Excl(self, ranks: Sequence[int]) -> SimulatedGroup:
        out = set(self._members_at(ranks))
        if len(out) < len(ranks):
            raise MPI.Exception(f"Invalid ranks {list(ranks)}: one is there twice", MPI.ERR_RANK)
        return SimulatedGroup([member for member in self.members if member not in out], self._own)

    def Range_incl(self, ranks: Sequence[tuple[int, int, int]]) -> SimulatedGroup:
        return self.Incl(_listed(ranks))

    def Range_excl(self, ranks: Sequence[tuple[int, int, int]]) -> SimulatedGroup:
        return self.Excl(_listed(ranks))

    def Dup(self) -> SimulatedGroup:
        return SimulatedGroup(self.members, self._own)

    # mpi4py's are class methods, so these may be called with one group or with both.

    def Union(self, *groups: object) -> SimulatedGroup:
        one, other = self._two(groups)
        return SimulatedGroup(dict.fromkeys(one.members + other.members), self._own)

    def Intersection(self, *groups: object) -> SimulatedGroup:
        one, other = self._two(groups)
        return SimulatedGroup([member for member in one.members if member in other._rank_of], self._own)

    Intersect = Intersection

    def Difference(self, *groups: object) -> SimulatedGroup:
        one, other = self._two(groups)
        return SimulatedGroup([member for member in one.members if member not in other._rank_of], self._own)

    def _two(self, groups: tuple[object, ...]) -> tuple[SimulatedGroup, SimulatedGroup]:
        one, other = groups if len(groups) == 2 else (self, *groups)
        return group_of(one, self._own), group_of(other, self._own)

    def Compare(self, group: object) -> int:
        """Return `IDENT` for the same ranks in the same order, `SIMILAR` in another order, else `UNEQUAL`."""
        other = group_of(group, self._own)
        if self.members == other.members:
            return MPI.IDENT
        return MPI.SIMILAR if set(self.members) == set(other.members) else MPI.UNEQUAL

    def Translate_ranks(
        self, ranks: Sequence[int] | None = None, group: SimulatedGroup | None = None
    ) -> list[int]:
        """Rank in `group` (default: this one) of each of `ranks` of this group, or `UNDEFINED`."""
        listed = self.members if ranks is None else self._members_at(ranks)
        rank_of = self._rank_of if group is None else group._rank_of
        return [rank_of.get(member, MPI.UNDEFINED) for member in listed]

    def Free(self) -> None:
        """Do nothing: there is nothing to release."""

    free = Free

    def includes(self, other: SimulatedGroup) -> bool:
        """Return True if all members of the other group are members of this one."""
        return self._rank_of.keys() >= set(other.members)

    @shared_property
    def _rank_of(self) -> dict[int, int]:
        """Rank in this group of each member."""
        return {member: rank for rank, member in enumerate(self.members)}

    def _members_at(self, ranks: Sequence[int]) -> list[int]:
        ranks = list(map(index, ranks))
        for rank in (min(ranks), max(ranks)) if ranks else ():
            if not 0 <= rank < len(self.members):
                raise MPI.Exception(f"Invalid rank {rank} in a group of {len(self.members)}", MPI.ERR_RANK)
        return list(map(self.members.__getitem__, ranks))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SimulatedGroup) and self.members == other.members

    def __hash__(self) -> int:
        return hash(self.members)

    def __repr__(self) -> str:
        return f"Group({list(self.members)})"


def _listed(ranges: Sequence[tuple[int, int, int]]) -> list[int]:
    """The ranks of (first, last, stride) triples; the last rank is included."""
    ranks: list[int] = []
    for first, last, stride in ranges:
        if stride == 0:
            raise MPI.Exception(f"Invalid range ({first}, {last}, {stride}): the stride is 0", MPI.ERR_ARG)
        ranks += range(first, last + (1 if stride > 0 else -1), stride)
    return ranks
