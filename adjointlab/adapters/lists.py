"""Single-controller code, which keeps the shards of all ranks in lists in one process.

A function of such a list takes one array for each virtual rank and returns one for each::

    @adjointlab.subject.pair(*of_lists(shift, shift_back))
    def shifts(draw, ranks):
        space = adjointlab.Space(draw(adjointlab.strategies.layouts(ranks)))
        return dict(domain=space, codomain=space)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeAlias

from adjointlab.typing import Communicator

__all__ = ["of_lists"]

OfLists: TypeAlias = Callable[..., Sequence[Any]]
"""``function(shards, **arguments)`` returns shards: one for each rank, in order."""


def of_lists(*functions: OfLists) -> tuple[Callable[..., Any], ...]:
    """Turn functions of the list of all shards into functions ``(comm, x, **arguments)`` of the local one; each rank calls them with all."""
    return tuple(map(_of_list, functions))


def _of_list(function: OfLists) -> Callable[..., Any]:
    @wraps(function)
    def on_rank(comm: Communicator, x: Any, /, **arguments: object) -> Any:
        rank, shards = comm.Get_rank(), comm.allgather(x)
        shards[rank] = x  # not a copy, so that writes of the function into its shards show
        result = function(shards, **arguments)
        if len(result) != comm.Get_size():
            raise ValueError(f"{function.__name__} returned {len(result)} shards for {comm.Get_size()} ranks")
        return result[rank]

    return on_rank
