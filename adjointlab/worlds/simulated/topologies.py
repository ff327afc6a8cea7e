"""Topologies that communicators carry: Cartesian grids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from math import prod
from typing import Any

from adjointlab import MPI

__all__ = ["Grid"]


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

    def keep(self, remain: Sequence[Any]) -> Grid:
        """Grid of the dimensions that remain."""
        return Grid(tuple(compress(self.dims, remain)), tuple(compress(self.periods, remain)))
