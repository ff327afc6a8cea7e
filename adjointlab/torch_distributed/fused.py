"""Fused weights among the parameters of a parallel module, as torch's ``_StridedShard`` tells them."""

from __future__ import annotations

from collections.abc import Sequence

from torch.distributed.tensor import Placement, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from adjointlab.core.pieces import Pieces

__all__ = ["pieces_apart"]


def pieces_apart(
    placements: Sequence[Placement], shape: Sequence[int]
) -> tuple[Pieces | None, Sequence[Placement]]:
    """Return the pieces of a tensor of global `shape`, `None` if it has none, and placements of the tensor with the pieces apart.

    A ``_StridedShard`` beside other shards of its dimension is of those, not of pieces. Raises `ValueError` for pieces that are not equal.
    """
    cuts = [each for each in placements if isinstance(each, Shard | _StridedShard)]
    dims = [cut.dim % len(shape) for cut in cuts]
    for cut, dim in zip(cuts, dims, strict=True):
        if not isinstance(cut, _StridedShard) or cut.split_factor == 1 or dims.count(dim) > 1:
            continue
        number = int(cut.split_factor)
        if shape[dim] % number:
            raise ValueError(
                f"placements: {cut!r} is of {number} pieces, which do not divide the side {shape[dim]}"
            )
        return Pieces(dim, number), [_behind(each, dim, len(shape)) for each in placements]
    return None, placements


def _behind(placement: Placement, dim: int, order: int) -> Placement:
    """The placement of a tensor of this `order` that has one dimension more, at `dim`."""
    if not isinstance(placement, Shard | _StridedShard):
        return placement
    own = placement.dim % order
    return Shard(own + (own >= dim))
