"""Communicators for groups of ranks, cached on the communicator that they come from.

A group's communicator is made once for each *set* of ranks, in sorted order, however many operators use it and in
whatever order their partitions list its ranks: at most 2^P of them, because an MPI library has few (MPICH 2,046).
They are released by :func:`close` alone: freeing a communicator is collective, and garbage collection runs on each
rank when it likes.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

from adjointlab import MPI

__all__ = ["close", "communicator", "rank_in"]

Ranks = tuple[int, ...]

_KEYVAL: Final = MPI.Create_keyval()


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
    """The communicators made from `comm`, by their members: kept as its attribute, which ends with its run."""
    known: dict[Ranks, Any] | None = comm.Get_attr(_KEYVAL)
    if known is None:
        comm.Set_attr(_KEYVAL, known := {})
    return known
