"""The ranks that hold a parameter of a parallel module, and its cut, from each rank's description of its own part.

Experts, or layers of a pipeline, may be parameters of some ranks only, and ranks may cut a parameter differently from ``torch.chunk``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise, product

from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Placement

from adjointlab.core.layout import Layout
from adjointlab.core.padded import Padded
from adjointlab.core.partition import Partition
from adjointlab.core.placements import grid_of
from adjointlab.core.space import Tensor

__all__ = ["HeldPart", "agreed", "as_held", "grid_of_holders"]


@dataclass(frozen=True)
class HeldPart:
    """A rank's description of a parameter that it holds: placements on the mesh, the global shape, and the shape of a plain part.

    `begins` has the elements of the whole at which a flat part may begin, by its values; `None` if that is unknown.
    """

    placements: tuple[Placement, ...]
    shape: tuple[int, ...]
    local_shape: tuple[int, ...] | None
    dtype: str
    begins: frozenset[int] | None = None

    @property
    def whole(self) -> tuple[object, ...]:
        """The properties that must be equal on all ranks."""
        return self.placements, self.shape, self.dtype

    @property
    def is_flat(self) -> bool:
        """True for a plain one-dimensional part that is not the whole and has no declared placements."""
        is_plain = self.local_shape is not None and all(map(Placement.is_replicate, self.placements))
        return is_plain and self.local_shape != self.shape and len(self.local_shape or ()) == 1


def agreed(name: str, parts: Mapping[int, HeldPart]) -> HeldPart:
    """Return the description by the first rank. Raises `TypeError` if another rank describes a different whole."""
    (rank, first), *others = parts.items()
    for other, part in others:
        if part.whole != first.whole:
            raise TypeError(
                f"the ranks have different parameters {name}: of {first.placements}, {first.shape}, {first.dtype} on rank {rank}, and of "
                f"{part.placements}, {part.shape}, {part.dtype} on rank {other}"
            )
    return first


def grid_of_holders(mesh: DeviceMesh, name: str, holders: Collection[int]) -> Partition:
    """The part of the mesh that consists of these ranks: in each dimension, the indices that any of them has.

    Raises `TypeError` if other ranks have only such indices too.
    """
    grid = grid_of(mesh)
    indices = [grid.index(rank) for rank in holders]
    kept = [sorted(set(of_dim)) for of_dim in zip(*indices, strict=True)]
    part = Partition(list(map(len, kept)), map(grid.rank, product(*kept)))
    if others := sorted(set(part.ranks) - set(holders)):
        raise TypeError(
            f"the parameter {name} is on ranks {sorted(holders)}, and not on {others}, which lie between them on the mesh of shape {grid.shape}"
        )
    return part


def as_held(tensor: Tensor, parts: Mapping[int, HeldPart], rank: int) -> tuple[Tensor, Padded | None]:
    """The tensor with the cut of the ranks' parts, and the padding of this rank's part.

    The cut is changed if plain parts along a dimension together have the length of the whole, but not the cut of ``torch.chunk``; or if they
    have one length and together are longer: then rows after the last of the whole are padding.
    """
    shapes = {rank: part.local_shape for rank, part in parts.items() if part.local_shape is not None}
    layout = tensor.layout
    if len(shapes) < len(parts) or any(len(shape) != layout.order for shape in shapes.values()):
        return tensor, None
    partition, windows = layout.partition, list(map(list, layout.windows))
    padding: Padded | None = None
    for dim, axis in enumerate(layout.axes):
        if axis is None:
            continue
        lengths = [
            {shapes[rank][dim] for rank in partition.ranks if partition.index(rank)[axis] == place}
            for place in range(partition.shape[axis])
        ]
        ends = list(accumulate((max(each) for each in lengths), initial=0))
        side = layout.shape[dim]
        if not all(len(each) == 1 for each in lengths) or ends[-1] < side:
            continue
        if ends[-1] == side:
            windows[dim] = list(pairwise(ends))
        # Parts as long as the whole are copies of it.
        elif padding is None and len(set(map(max, lengths))) == 1 and ends[1] != side:
            windows[dim] = list(pairwise(min(end, side) for end in ends))
            own = windows[dim][partition.index(rank)[axis]] if rank in parts else (0, 0)
            padding = Padded(dim, own[1] - own[0], ends[1])
    return replace(tensor, layout=Layout(layout.shape, partition, windows, layout.axes)), padding
