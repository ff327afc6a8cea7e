"""Placements of DTensor on a device mesh as a layout and local types.

DTensor cuts a dimension with ``torch.chunk``: every part but the last has ceil(n / parts) elements, and the last ones may be empty::

    5 rows over 4 ranks     0 1 | 2 3 | 4 |         (a balanced cut would be 0 1 | 2 | 3 | 4)

If several mesh dimensions shard a dimension, the first of them cuts it, and the next cuts each part again. A ``_StridedShard`` cuts
later than its position says: after ``split_factor`` shards of the mesh dimensions behind it, as FSDP cuts the shards of tensor parallelism.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate, product
from operator import mul
from typing import Any, Final, NamedTuple, Protocol, cast

from adjointlab.core.layout import Layout, Window
from adjointlab.core.partition import Partition, PartitionLike, as_partition, entries, integers

__all__ = ["Placed", "chunks", "grid_of", "placed", "sharded"]


class _Mesh(Protocol):
    """The attribute of a DeviceMesh that is read here."""

    @property
    def mesh(self) -> Any: ...


class Placed(NamedTuple):
    """A layout, and the local type of each dimension of its partition."""

    layout: Layout
    types: tuple[str, ...]


_SHARD: Final = "shard"
_LOCAL_TYPES: Final = ("varying", "replicated", "partial", "invariant")


def placed(mesh: _Mesh | PartitionLike, placements: Sequence[object], shape: Sequence[int]) -> Placed:
    """Return the layout of a DTensor of global `shape` with `placements` on `mesh`, a DeviceMesh, the shape of one, or a grid of ranks.

    The name of a local type is accepted as a placement: whole tensors of that type along the mesh dimension. Raises `ValueError`
    for placements that the mesh or the tensor cannot have, and for those that have no local type.
    """
    grid, shape = grid_of(mesh), integers("shape", shape)
    extents = grid.shape
    placements = entries("placements", placements, "a placement for each dimension of the mesh")
    kinds = [_kind(placement) for placement in placements]
    if len(kinds) != len(extents):
        raise ValueError(
            f"placements: {len(kinds)} of them for a mesh of shape {extents}; give one for each dimension of the mesh"
        )
    cut_by: dict[int, list[int]] = {}  # by tensor dimension: the mesh dimensions that shard it, in order
    for mesh_dim, (placement, kind) in enumerate(zip(placements, kinds, strict=True)):
        if kind == _SHARD:
            dim: int = placement.dim  # type: ignore[attr-defined]
            if not -len(shape) <= dim < len(shape):
                raise ValueError(f"placements: {placement} cannot hold a tensor of shape {tuple(shape)}")
            cut_by.setdefault(dim % len(shape), []).append(mesh_dim)
    cut_by = {dim: _in_order(mesh_dims, placements, extents) for dim, mesh_dims in cut_by.items()}
    kinds_of_copies = (kind for kind in kinds if kind != _SHARD)
    return Placed(sharded(grid, cut_by, shape), ("varying",) * len(cut_by) + tuple(kinds_of_copies))


def sharded(grid: Partition, cut_by: Mapping[int, Sequence[int]], shape: Sequence[int]) -> Layout:
    """Return the layout of a tensor whose dimension k is sharded by the grid dimensions ``cut_by[k]`` in turn, as ``torch.chunk`` does.

    Its partition has a dimension for each entry of `cut_by`, followed by one for each other grid dimension, which holds copies.
    """
    extents, cutting = grid.shape, {grid_dim for grid_dims in cut_by.values() for grid_dim in grid_dims}
    copied = [grid_dim for grid_dim in range(grid.order) if grid_dim not in cutting]
    parts_of = [*cut_by.values(), *([grid_dim] for grid_dim in copied)]
    sides = [math.prod(extents[grid_dim] for grid_dim in grid_dims) for grid_dims in parts_of]
    in_partition_order = [grid_dim for grid_dims in parts_of for grid_dim in grid_dims]
    members = []
    for index in product(*(range(extents[grid_dim]) for grid_dim in in_partition_order)):
        at = dict(zip(in_partition_order, index, strict=True))
        members.append(grid.rank([at[grid_dim] for grid_dim in range(grid.order)]))
    axes = {dim: axis for axis, dim in enumerate(cut_by)}
    windows = [
        _nested_chunks((0, side), [extents[grid_dim] for grid_dim in cut_by.get(dim, ())])
        for dim, side in enumerate(shape)
    ]
    return Layout(
        tuple(shape), Partition(sides, members), windows, [axes.get(dim) for dim in range(len(shape))]
    )


def chunks(window: Window, parts: int) -> list[Window]:
    """Return the windows into which ``torch.chunk`` cuts `window` for `parts` ranks, with empty ones at its end."""
    start, stop = window
    size = math.ceil((stop - start) / parts)
    return [(min(stop, start + part * size), min(stop, start + (part + 1) * size)) for part in range(parts)]


def _in_order(mesh_dims: Sequence[int], placements: Sequence[object], extents: Sequence[int]) -> list[int]:
    """Return the mesh dimensions that shard one tensor dimension, in the order in which they cut it."""
    order: list[int] = []
    for mesh_dim in reversed(mesh_dims):
        shards_before: int = getattr(placements[mesh_dim], "split_factor", 1)
        shards = list(accumulate((extents[other] for other in order), mul, initial=1))
        if shards_before not in shards:
            raise ValueError(
                f"placements: {placements[mesh_dim]!r} comes after {shards_before} shards, and the mesh dimensions behind it make "
                f"{[extents[other] for other in order]}; a tensor of which a rank holds several pieces, such as fused weights, has no layout: "
                "keep the pieces as parameters of their own"
            )
        order.insert(shards.index(shards_before), mesh_dim)
    return order


def _nested_chunks(window: Window, counts: Sequence[int]) -> list[Window]:
    windows = [window]
    for parts in counts:
        windows = [inner for outer in windows for inner in chunks(outer, parts)]
    return windows


def grid_of(mesh: _Mesh | PartitionLike) -> Partition:
    """Return the grid of the mesh's ranks."""
    ranks = getattr(mesh, "mesh", None)
    if ranks is None:
        try:
            return as_partition("mesh", cast("PartitionLike", mesh))
        except TypeError:
            raise TypeError(
                f"mesh: {mesh!r} is neither a DeviceMesh nor the shape of one, such as (2, 2)"
            ) from None
    return Partition(ranks.shape, ranks.flatten().tolist())


def _kind(placement: Any) -> str:
    """Return the local type along the mesh dimension, or :data:`_SHARD`."""
    if isinstance(placement, str) and placement in _LOCAL_TYPES:
        return placement
    name = type(placement).__name__
    if name in ("Shard", "_StridedShard"):
        return _SHARD
    if name == "Replicate":
        return "invariant"
    if name == "Partial" and placement.reduce_op == "sum":
        return "partial"
    raise ValueError(
        f"placements: {placement!r} has no local type; those of Shard(dim), _StridedShard, Replicate() and Partial('sum') are known, and "
        f"the names {', '.join(_LOCAL_TYPES)}"
    )
