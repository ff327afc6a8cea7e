"""Topologies of communicators: Cartesian grids, and graphs [MPI41, chapter 8].

The neighbours of a rank of a grid are, dimension by dimension, the preceding rank and the following rank. Beyond an edge there is
none, and its block is neither sent nor changed. A block sent to the preceding rank arrives there as the block from the following one::

    rank 0  [ before | after ]      rank 1  [ before | after ]
                         '------------------->'

The neighbours of a rank of a graph are in the order in which they were given. Multiple edges between two ranks match in order: the
first one of the sender is the first one of the receiver.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, compress
from math import prod
from typing import Any, TypeAlias

from adjointlab import MPI
from adjointlab.worlds.graph_arguments import Edge, Neighbours

__all__ = ["Graph", "Grid", "Topology"]


@dataclass(frozen=True)
class Grid:
    """Cartesian topology: ranks in row-major order, as MPI orders them::

    dims (2, 3)      coordinates (0, 0) (0, 1) (0, 2)        ranks 0 1 2
                                 (1, 0) (1, 1) (1, 2)              3 4 5
    """

    dims: tuple[int, ...]
    periods: tuple[bool, ...]

    @property
    def size(self) -> int:
        """Number of ranks."""
        return prod(self.dims)

    def coordinates(self, rank: int) -> list[int]:
        """Coordinates of `rank`."""
        if not 0 <= rank < self.size:
            raise MPI.Exception(f"Invalid rank {rank} in a grid of {self.size}", MPI.ERR_RANK)
        found = []
        for extent in reversed(self.dims):
            rank, coordinate = divmod(rank, extent)
            found.append(coordinate)
        return found[::-1]

    def rank(self, coordinates: Sequence[int]) -> int:
        """Rank at `coordinates`, which wrap around in periodic dimensions."""
        rank = 0
        for dim, (coordinate, extent, period) in enumerate(
            zip(coordinates, self.dims, self.periods, strict=True)
        ):
            if not period and not 0 <= coordinate < extent:
                raise MPI.Exception(
                    f"coordinate {coordinate} of dimension {dim} must be between 0 and {extent - 1}",
                    MPI.ERR_ARG,
                )
            rank = rank * extent + coordinate % extent
        return rank

    def shift(self, rank: int, direction: int, displacement: int) -> tuple[int, int]:
        """Ranks that `rank` receives from and sends to in a shift along `direction`; `PROC_NULL` beyond an edge."""
        if not 0 <= direction < len(self.dims):
            raise MPI.Exception(
                f"Invalid direction {direction} in a grid of {len(self.dims)} dimensions", MPI.ERR_ARG
            )
        own = self.coordinates(rank)

        def neighbour(step: int) -> int:
            coordinates = list(own)
            coordinates[direction] += step
            if not self.periods[direction] and not 0 <= coordinates[direction] < self.dims[direction]:
                return MPI.PROC_NULL
            return self.rank(coordinates)

        return neighbour(-displacement), neighbour(displacement)

    def sources(self, rank: int) -> list[int]:
        """The neighbours of `rank`, which are both sources and destinations."""
        return list(
            chain.from_iterable(self.shift(rank, direction, 1) for direction in range(len(self.dims)))
        )

    destinations = sources

    def sent_place(self, rank: int, place: int) -> int:
        """Index, among the blocks of its sender, of the block that `rank` receives at index `place`."""
        return place ^ 1

    def keep(self, remain: Sequence[Any]) -> Grid:
        """Grid of the dimensions that remain."""
        return Grid(tuple(compress(self.dims, remain)), tuple(compress(self.periods, remain)))


@dataclass(frozen=True)
class Graph:
    """The neighbours of every rank."""

    neighbours: tuple[Neighbours, ...]

    @classmethod
    def of_edges(cls, size: int, edges: Sequence[Edge]) -> Graph:
        """The graph of these edges among `size` ranks."""
        return cls(tuple(_of_rank(rank, edges) for rank in range(size)))

    def sources(self, rank: int) -> list[int]:
        """The ranks that `rank` receives from."""
        return list(self.neighbours[rank].sources)

    def destinations(self, rank: int) -> list[int]:
        """The ranks that `rank` sends to."""
        return list(self.neighbours[rank].destinations)

    def sent_place(self, rank: int, place: int) -> int:
        """Index, among the blocks of its sender, of the block that `rank` receives at index `place`."""
        sources = self.neighbours[rank].sources
        earlier = sources[:place].count(sources[place])
        towards = [at for at, to in enumerate(self.neighbours[sources[place]].destinations) if to == rank]
        return towards[earlier]


def _of_rank(rank: int, edges: Sequence[Edge]) -> Neighbours:
    before = [edge for edge in edges if edge.destination == rank]
    after = [edge for edge in edges if edge.source == rank]
    return Neighbours(
        tuple(edge.source for edge in before),
        tuple(edge.destination for edge in after),
        _weights(edges, before),
        _weights(edges, after),
    )


def _weights(edges: Sequence[Edge], own: Sequence[Edge]) -> tuple[int, ...] | None:
    """The weights of a rank's `own` edges; None if no edge of the graph has one."""
    return None if all(edge.weight is None for edge in edges) else tuple(edge.weight or 0 for edge in own)


Topology: TypeAlias = Grid | Graph
