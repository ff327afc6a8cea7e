"""Communicators for groups of ranks, cached on the communicator that they come from.

A group's communicator is made once for each *set* of ranks, in sorted order, however many operators use it and in
whatever order their partitions list its ranks: at most 2^P of them, because an MPI library has few (MPICH 2,046).
They are released by :func:`close` alone: freeing a communicator is collective, and garbage collection runs on each
rank when it likes.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, lru_cache
from typing import Any

__all__ = ["close", "communicator", "rank_in"]

Ranks = tuple[int, ...]


def communicator(comm: Any, ranks: Iterable[int]) -> Any:
    """The communicator of `ranks` of `comm`, in sorted order; that of all ranks is `comm` itself.

    Collective over `ranks`, which must include the caller: each member makes its calls in the same order, since the
    first call for a set of ranks creates the communicator.
    """
    members = _in_order(tuple(ranks))
    if len(members) == comm.Get_size():
        return comm
    known = _cache(comm)
    if members not in known:
        known[members] = _create(comm, members)
    return known[members]


def rank_in(ranks: Iterable[int], rank: int) -> int:
    """The place of `rank` of the parent in the communicator of `ranks`: both know only the set."""
    return _in_order(tuple(ranks)).index(rank)


def close(comm: Any) -> None:
    """Collective over `comm`: free all communicators that were made from it. Operators that used them are void."""
    known = _cache(comm)
    for members in sorted(known):  # one order on all ranks
        known.pop(members).Free()


@lru_cache(maxsize=256)
def _in_order(ranks: Ranks) -> Ranks:
    """The set of `ranks`, sorted: once, and not by each of P simulated ranks."""
    return tuple(sorted(set(ranks)))


def _create(comm: Any, members: Ranks) -> Any:
    whole = comm.Get_group()
    part = whole.Incl(members)
    try:
        return comm.Create_group(part)
    finally:
        part.Free()
        whole.Free()


def _cache(comm: Any) -> dict[Ranks, Any]:
    """The communicators made from `comm`, by their members.

    A communicator of a world is a Python object with room for attributes, which it drops when a run ends (and frees
    what the run made). One of mpi4py is a handle, of which many objects can exist: what belongs to the communicator
    is an MPI attribute.
    """
    known: dict[Ranks, Any] | None
    if hasattr(comm, "__dict__"):
        known = vars(comm).setdefault("attributes", {}).setdefault("groups", {})
    elif (known := comm.Get_attr(_key())) is None:
        comm.Set_attr(_key(), known := {})
    return known


@cache
def _key() -> int:
    """MPI's key for the attribute: MPI hands it out once for the process."""
    from mpi4py import MPI

    return int(MPI.Comm.Create_keyval())
