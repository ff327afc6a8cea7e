"""Scales: the mapping from the indices of a long dimension to the cells of a picture.

A dimension that fits has a cell for each index. A longer one is compressed between the *breaks*, the indices at which a window
starts or stops or a cell is marked: each stretch between two breaks keeps at least one cell, so that nothing disappears.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

__all__ = ["Scale", "scale"]


@dataclass(frozen=True)
class Scale:
    """Cells for the indices from the first break to the last; stretch k, from break k to k + 1, has ``sizes[k]`` cells."""

    breaks: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def cells(self) -> int:
        return sum(self.sizes)

    @property
    def is_exact(self) -> bool:
        """True if there is a cell for each index."""
        return self.cells == self.breaks[-1] - self.breaks[0]

    def cell(self, index: int) -> int:
        """Return the cell in which `index` lies; for an index past the end, the number of cells."""
        return int(self.position(index))

    def position(self, index: int) -> float:
        """Return the distance of `index` from the beginning, in cells."""
        if index <= self.breaks[0]:
            return 0.0
        if index >= self.breaks[-1]:
            return float(self.cells)
        stretch = bisect_right(self.breaks, index) - 1
        start, stop = self.breaks[stretch], self.breaks[stretch + 1]
        inside = self.sizes[stretch] * (index - start) / (stop - start)
        return sum(self.sizes[:stretch]) + inside

    @property
    def ticks(self) -> tuple[tuple[int, int], ...]:
        """Pairs of a cell and the index at which it begins, for cells where that is known."""
        if self.is_exact:
            return tuple(enumerate(range(self.breaks[0], self.breaks[-1])))
        return tuple((self.cell(index), index) for index in self.breaks[:-1])


def scale(start: int, stop: int, breaks: Iterable[int], limit: int) -> Scale:
    """Return a scale of the indices [start, stop) with about `limit` cells at most, and at least one for each stretch."""
    ends = sorted({start, stop, *(index for index in breaks if start < index < stop)})
    lengths = [right - left for left, right in pairwise(ends)]
    total = stop - start
    if total <= limit:
        return Scale(tuple(ends), tuple(lengths))
    spare = max(0, limit - len(lengths))
    sizes = (min(length, 1 + spare * length // total) for length in lengths)
    return Scale(tuple(ends), tuple(sizes))
