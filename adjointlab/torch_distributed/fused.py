"""Fused weights among the parameters of a parallel module, given by torch's ``_StridedShard``, or by sizes together with a ``Shard``."""

from __future__ import annotations

from collections.abc import Sequence

from torch.distributed.tensor import Placement, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from adjointlab.core.declaration import SubjectError
from adjointlab.core.pieces import Pieces, UnequalPieces

__all__ = ["pieces_apart", "pieces_of_sizes"]


def pieces_apart(
    placements: Sequence[Placement], shape: Sequence[int]
) -> tuple[Pieces | None, Sequence[Placement]]:
    """Return the pieces of a tensor of global `shape`, `None` if it has none, and placements of the tensor with separate pieces.

    A ``_StridedShard`` together with other shards of its dimension does not mean pieces. Raises `ValueError` for pieces that are not equal.
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


def pieces_of_sizes(
    name: str,
    sizes: Sequence[int],
    placements: Sequence[Placement],
    shape: Sequence[int],
    mesh: Sequence[int],
) -> UnequalPieces:
    """The pieces of the parameter `name`, of global `shape`, which one placement cuts on a mesh of these extents.

    Raises :class:`SubjectError` for pieces that do not make up the side that is cut, or that cannot be cut into equal parts.
    """
    role = f"parameter_pieces[{name!r}]"
    cuts = [(each, extent) for each, extent in zip(placements, mesh, strict=True) if isinstance(each, Shard)]
    if len(cuts) != 1:
        raise SubjectError(
            f"{role}: its pieces are cut by one Shard, and parameter_placements[{name!r}] has {len(cuts)}"
        )
    ((cut, ranks),) = cuts
    dim = cut.dim % len(shape)
    if sum(sizes) != shape[dim]:
        raise SubjectError(
            f"{role}: pieces of {', '.join(map(str, sizes))} are {sum(sizes)} together, and dimension {dim} has {shape[dim]}"
        )
    if uneven := [size for size in sizes if size % ranks]:
        raise SubjectError(f"{role}: a piece of {uneven[0]} has no equal parts on {ranks} ranks")
    return UnequalPieces(dim, tuple(sizes), ranks)


def _behind(placement: Placement, dim: int, order: int) -> Placement:
    """The placement on a tensor of this `order` after a dimension is inserted at `dim`."""
    if not isinstance(placement, Shard | _StridedShard):
        return placement
    own = placement.dim % order
    return Shard(own + (own >= dim))
