"""The partition of a tensor: a dimension of workers for each of its own, whatever the dimensions of the layout's partition are."""

from __future__ import annotations

import numpy as np

from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.layers.distributed import with_index_zero

__all__ = ["grid_of"]


def grid_of(layout: Layout) -> Partition:
    """The grid of the workers of a layout with a dimension for each of the tensor; of copies, the workers with the index 0."""
    partition = layout.partition
    along = [axis for axis in layout.axes if axis is not None]
    copies = [axis for axis in range(partition.order) if axis not in along]
    face = with_index_zero(partition, *copies)
    ranks = np.reshape(face.ranks, face.shape).transpose([*along, *copies])
    sides = [1 if axis is None else face.shape[axis] for axis in layout.axes]
    return Partition(sides, ranks.reshape(-1).tolist())
