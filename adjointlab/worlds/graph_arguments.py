"""Arguments of the calls that make Cartesian and graph topologies [MPI41, section 8.5], parsed in the same way for all worlds.

For an adjacent graph, each rank gives its own neighbours, so that both ends of an edge list it; for a general graph, any rank may give
any edges.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from operator import index
from typing import NamedTuple, TypeAlias

from adjointlab import MPI

__all__ = ["Edge", "Neighbours", "Weights", "edges", "grid", "neighbours", "unmatched_edge"]

Weights: TypeAlias = Sequence[int] | int | None
"""Weights of edges; `UNWEIGHTED` or `None` for none, `WEIGHTS_EMPTY` for a rank without edges in a weighted graph."""


class Neighbours(NamedTuple):
    """The ranks that a rank receives from and sends to, in the order of the blocks; the weights are None in an unweighted graph."""

    sources: tuple[int, ...] = ()
    destinations: tuple[int, ...] = ()
    source_weights: tuple[int, ...] | None = None
    destination_weights: tuple[int, ...] | None = None


class Edge(NamedTuple):
    """A directed edge, along which messages are sent; `weight` is None in an unweighted graph."""

    source: int
    destination: int
    weight: int | None = None


def grid(dims: Sequence[int], periods: Sequence[bool] | bool | None) -> tuple[list[int], list[bool]]:
    """Parsed arguments of ``Create_cart``: the extents, and one flag per dimension for periodicity."""
    extents = list(map(index, dims))
    if periods is None or isinstance(periods, bool):
        periods = [bool(periods)] * len(extents)
    _check_length(periods, len(extents))
    return extents, [bool(index(period)) for period in periods]  # mpi4py rejects NumPy's bool


def neighbours(
    size: int,
    sources: Sequence[int] | None,
    destinations: Sequence[int] | None,
    sourceweights: Weights = None,
    destweights: Weights = None,
) -> Neighbours:
    """Parsed arguments of ``Create_dist_graph_adjacent`` on a communicator of `size` ranks."""
    before, after = _ranks(size, sources or ()), _ranks(size, destinations or ())
    weights = _weights(sourceweights, before), _weights(destweights, after)
    if (weights[0] is None) != (weights[1] is None):
        raise ValueError("sourceweights and destweights: give both or neither")
    return Neighbours(before, after, *weights)


def edges(
    size: int,
    sources: Sequence[int],
    degrees: Sequence[int],
    destinations: Sequence[int],
    weights: Weights = None,
) -> tuple[Edge, ...]:
    """Parsed arguments of ``Create_dist_graph`` on a communicator of `size` ranks: `degrees` has the number of edges of each source."""
    named, lengths = _ranks(size, sources), tuple(map(index, degrees))
    _check_length(lengths, len(named))
    ends = _ranks(size, destinations)
    _check_length(ends, sum(lengths))
    given = _weights(weights, ends) or (None,) * len(ends)
    bounds = pairwise(accumulate(lengths, initial=0))
    return tuple(
        Edge(source, ends[place], given[place])
        for source, (first, last) in zip(named, bounds, strict=True)
        for place in range(first, last)
    )


def unmatched_edge(named: Sequence[Neighbours]) -> tuple[int, int, str] | None:
    """Two ranks that list an edge between them a different number of times, and a message about it; None if there are none."""
    sent = Counter((rank, to) for rank, each in enumerate(named) for to in each.destinations)
    awaited = Counter((source, rank) for rank, each in enumerate(named) for source in each.sources)
    for source, destination in sorted(sent | awaited):
        times = sent[source, destination], awaited[source, destination]
        if times[0] != times[1]:
            sentence = (
                f"rank {source} names rank {destination} {_times(times[0])} among its destinations, and rank {destination} names "
                f"rank {source} {_times(times[1])} among its sources"
            )
            return source, destination, sentence
    return None


def _times(number: int) -> str:
    return {0: "not", 1: "once", 2: "twice"}.get(number, f"{number} times")


def _ranks(size: int, given: Iterable[int]) -> tuple[int, ...]:
    ranks = tuple(map(index, given))
    for rank in ranks:
        if not 0 <= rank < size:
            raise MPI.Exception(
                f"Invalid rank {rank}: must be nonnegative and less than {size}", MPI.ERR_RANK
            )
    return ranks


def _weights(given: Weights, ranks: Sequence[int]) -> tuple[int, ...] | None:
    if given is None or (isinstance(given, int) and given == MPI.UNWEIGHTED):
        return None
    weights = () if isinstance(given, int) else tuple(map(index, given))  # WEIGHTS_EMPTY
    _check_length(weights, len(ranks))
    return weights


def _check_length(given: Sequence[int], expected: int) -> None:
    if len(given) != expected:
        raise ValueError(f"expecting {expected} items, got {len(given)}")
