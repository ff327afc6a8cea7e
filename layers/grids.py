"""Partitions and layouts derived from others: over a tensor's dimensions, over one face of a grid, and without some dimensions."""

from __future__ import annotations

import math
from functools import lru_cache

from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition

__all__ = ["grid_of", "with_index_zero", "without_dims"]


@lru_cache(maxsize=64)  # linear in the number of workers, and called by every rank
def grid_of(layout: Layout) -> Partition:
    """Return the grid of a layout's workers with a dimension for each of the tensor; of copies, it has the workers with index 0."""
    sides = [1 if axis is None else layout.partition.shape[axis] for axis in layout.axes]
    copies = layout.partition.size // math.prod(sides)
    return Partition(sides, layout.workers_in_order[::copies])


@lru_cache(maxsize=64)
def with_index_zero(partition: Partition, *dims: int) -> Partition:
    """Return the workers of `partition` whose index along `dims` is 0, as a partition of the same order with sides of 1 there."""
    shape = tuple(1 if dim in dims else side for dim, side in enumerate(partition.shape))
    (first, *_) = partition.subpartitions([dim for dim in range(partition.order) if dim not in dims])
    return Partition(shape, first.ranks)


@lru_cache(maxsize=64)
def without_dims(layout: Layout, *dims: int) -> Layout:
    """Return the layout of one value for each index in the other dimensions: in their windows, copied along `dims`."""
    kept = [dim for dim in range(layout.order) if dim not in dims]
    return Layout(
        [layout.shape[dim] for dim in kept],
        layout.partition,
        [layout.windows[dim] for dim in kept],
        [layout.axes[dim] for dim in kept],
    )
