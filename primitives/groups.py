"""Communicators for groups of ranks, cached on the communicator that they are made from.

A group's communicator is made once for each *set* of ranks, in sorted order, for all operators and for any order of the ranks in
their partitions: at most 2^P of them, because an MPI library has few (MPICH 2,046).
Only :func:`close` frees them: freeing a communicator is collective, and garbage collection runs at different times on different
ranks.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from adjointlab import MPI
from adjointlab.core import transport
from adjointlab.typing import Communicator

__all__ = ["close", "communicator", "rank_in"]

_Ranks = tuple[int, ...]

_KEYVAL: Final = MPI.Create_keyval()


def communicator(comm: Communicator, ranks: Iterable[int]) -> Communicator:
    """Return the communicator of `ranks` of `comm`, in sorted order; for all ranks, return `comm` itself.

    Collective over `ranks`, which must include the caller: each member makes its calls in the same order, since the
    first call for a set of ranks creates the communicator.
    """
    members = _in_order(tuple(ranks))
    if len(members) == comm.Get_size():
        return comm
    cached = _cache(comm)
    if members not in cached:
        cached[members] = _create(comm, members)
    return cached[members]


def rank_in(ranks: Iterable[int], rank: int) -> int:
    """Return the rank, in the communicator of `ranks`, of the parent's `rank`. Local: it follows from the sorted set."""
    return _in_order(tuple(ranks)).index(rank)


def close(comm: Communicator) -> None:
    """Collective over `comm`: free all communicators that were made from it. Operators that used them become unusable."""
    cached = _cache(comm)
    # Freeing is collective over each group: in the same order on all ranks, no two ranks wait for each other in different groups.
    for members in sorted(cached):
        cached.pop(members).Free()


@lru_cache(maxsize=256)  # P simulated ranks use the same sets
def _in_order(ranks: _Ranks) -> _Ranks:
    """The set of `ranks`, sorted."""
    return tuple(sorted(set(ranks)))


def _create(comm: Communicator, members: _Ranks) -> Communicator:
    # Create_group is collective only over the members, unlike Split: the other ranks do not take part.
    all_ranks = comm.Get_group()
    group = all_ranks.Incl(members)
    try:
        made = comm.Create_group(group)
    finally:
        group.Free()
        all_ranks.Free()
    transport.inherit(comm, made)
    return made


def _cache(comm: Communicator) -> dict[_Ranks, Communicator]:
    """Return the communicators made from `comm`, by their members.

    They are an attribute of the communicator: mpi4py's `comm` is a handle of which many Python objects may exist, and an
    attribute is shared by all of them and deleted with the communicator.
    """
    cached: dict[_Ranks, Communicator] | None = comm.Get_attr(_KEYVAL)
    if cached is None:
        comm.Set_attr(_KEYVAL, cached := {})
    return cached
