"""The grid P_n x P_c x P_f x P_spatial of the stationary algorithms [Dryden19, section 3.4], as pure data."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.layers.channels import Windows

__all__ = ["ChannelGrid", "united"]

C, F = 1, 2
"""Dimensions of the grid."""


# The parts of x's channels and of y's on a grid 2 x 3, C downwards and F to the right:
#
#        x          0  1  2        an all-gather over F, along a row, makes parts that follow one another whole
#                   3  4  5
#        y          0  2  4        a reduce-scatter over C, along a column, cuts what is whole into such parts
#                   1  3  5
@dataclass(frozen=True)
class ChannelGrid:
    """A grid whose dimensions 1 and 2, P_c and P_f, both cut the channels of x and those of y."""

    partition: Partition

    @cached_property
    def exchanged(self) -> Partition:
        """The grid with P_c and P_f exchanged: that of a layer whose x has the layout of this one's y."""
        ranks = np.asarray(self.partition.ranks).reshape(self.partition.shape).swapaxes(C, F)
        return Partition(ranks.shape, ranks.ravel().tolist())

    @cached_property
    def of_x(self) -> Partition:
        """The partition of x, P_n x P_c P_f x P_spatial, P_f running fastest."""
        return _merged(self.partition)

    @cached_property
    def of_y(self) -> Partition:
        """The partition of y, P_n x P_f P_c x P_spatial, P_c running fastest."""
        return _merged(self.exchanged)

    def along_filters(self, x: Layout, rank: int) -> Layout:
        """Return the layout of the channels of x on the workers with this rank's index along P_c."""
        return self._held(x, C, rank)

    def along_channels(self, y: Layout, rank: int) -> Layout:
        """Return the layout of the channels of y on the workers with this rank's index along P_f."""
        return self._held(y, F, rank)

    def _held(self, whole: Layout, fixed: int, rank: int) -> Layout:
        grid = self.partition
        # An idle rank has no index; it is idle in every subgrid, so any index works.
        index = grid.index(rank)[fixed] if grid.is_active(rank) else 0
        subgrid = grid.subpartitions([dim for dim in range(grid.order) if dim != fixed])[index]
        parts = subgrid.shape[1]
        held = whole.windows[1][index * parts : (index + 1) * parts]
        first, last = held[0][0], held[-1][1]
        moved = [(start - first, stop - first) for start, stop in held]
        shape = (whole.shape[0], last - first, *whole.shape[2:])
        return Layout(shape, subgrid, [whole.windows[0], moved, *whole.windows[2:]])


def united(windows: Windows, parts: int) -> Windows:
    """Merge each `parts` consecutive windows into one."""
    return tuple(
        (windows[first][0], windows[first + parts - 1][1]) for first in range(0, len(windows), parts)
    )


def _merged(grid: Partition) -> Partition:
    n, c, f, *sides = grid.shape
    return Partition((n, c * f, *sides), grid.ranks)
