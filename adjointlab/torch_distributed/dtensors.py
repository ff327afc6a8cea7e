"""DTensors of global shapes, and the spaces of tensors on a mesh."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate

from adjointlab.core.arrays import type_in_space
from adjointlab.core.operator import WrongClaim
from adjointlab.core.partition import Partition
from adjointlab.core.placements import placed
from adjointlab.core.space import LocalType, Space, Tensor

__all__ = [
    "Placements",
    "check_claim",
    "extended",
    "from_local",
    "placements_text",
    "restricted",
    "space_on",
    "tensor_on",
]

Placements = Sequence[Placement]


def from_local(
    local: torch.Tensor, mesh: DeviceMesh, placements: Placements, shape: Sequence[int]
) -> DTensor:
    """The DTensor of a global `shape` of which this rank holds `local`."""
    stride = tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))
    return DTensor.from_local(
        local, mesh, placements, shape=torch.Size(shape), stride=stride, run_check=False
    )


def tensor_on(
    mesh: DeviceMesh | Partition, placements: Placements, shape: Sequence[int], dtype: str, name: str
) -> Tensor:
    """One tensor on a mesh or a grid of ranks."""
    layout, types = placed(mesh, placements, shape)
    return Tensor(layout, type_in_space(dtype), tuple(map(LocalType, types)), name)


def space_on(
    mesh: DeviceMesh,
    name: str,
    placements: Sequence[Placements],
    shapes: Sequence[Sequence[int]],
    dtypes: Sequence[str],
) -> Space:
    """Tensors on a mesh of all ranks, called `name`, with a number from the second on."""
    tensors = zip(placements, shapes, dtypes, strict=True)
    return Space(
        *(
            tensor_on(mesh, placement, shape, dtype, f"{name}{number or ''}")
            for number, (placement, shape, dtype) in enumerate(tensors)
        )
    )


def check_claim(tensor: DTensor) -> None:
    """Raise :class:`WrongClaim` if a DTensor's local shape does not follow from its global shape and placements."""
    if any(getattr(placement, "split_factor", 1) > 1 for placement in tensor.placements):
        return  # torch does not define uneven shards of this kind
    rank = torch.distributed.get_rank()
    claimed = _claimed_shape(tensor.device_mesh, tuple(tensor.placements), tuple(tensor.shape), rank)
    held = tuple(tensor._local_tensor.shape)
    if claimed is not None and held != claimed:
        raise WrongClaim(
            f"a DTensor claims shape {tuple(tensor.shape)} with placements {placements_text(tensor.placements)}, so {claimed} on rank {rank}, "
            f"and it holds {held} there"
        )


@lru_cache(maxsize=64)  # torch is slow to list the ranks of a mesh, and a function is called often
def _claimed_shape(
    mesh: DeviceMesh, placements: tuple[Placement, ...], shape: tuple[int, ...], rank: int
) -> tuple[int, ...] | None:
    """The local shape of a DTensor; None for reductions without a local type, whose local shapes are not checked."""
    try:
        return placed(mesh, placements, shape).layout.local_shape(rank)
    except ValueError:
        return None


def placements_text(placements: Placements) -> str:
    """Placements as shown in messages."""
    return f"({', '.join(map(repr, placements))})"


def extended(mesh: DeviceMesh, own: DeviceMesh, placements: Placements) -> list[Placement]:
    """Placements on `own`, a part of `mesh`, as placements on the whole."""
    extended: list[Placement] = [Replicate()] * mesh.ndim
    for placement, dims in zip(placements, _dims_of(mesh, own), strict=True):
        if len(dims) > 1 and not isinstance(placement, Replicate):
            raise NotImplementedError(
                f"{placement} on a mesh that flattens dimensions {dims} of the whole one"
            )
        for dim in dims:
            extended[dim] = placement
    return extended


def restricted(mesh: DeviceMesh, own: DeviceMesh, placements: Placements) -> list[Placement]:
    """Placements on the whole `mesh` as placements on `own`, a part of it."""
    return [placements[dims[0]] if len(dims) == 1 else Replicate() for dims in _dims_of(mesh, own)]


@lru_cache(maxsize=64)  # as above, and it is called for each parameter
def _dims_of(mesh: DeviceMesh, own: DeviceMesh) -> tuple[tuple[int, ...], ...]:
    """For each dimension of `own`, those of `mesh` along which its ranks differ."""
    if own.mesh.shape == mesh.mesh.shape and torch.equal(own.mesh, mesh.mesh):
        return tuple((dim,) for dim in range(mesh.ndim))
    found = []
    for dim in range(own.ndim):
        ranks = own.mesh.movedim(dim, 0).reshape(own.size(dim), -1)[:, 0]
        places = torch.stack([(mesh.mesh == rank).nonzero()[0] for rank in ranks])
        found.append(tuple(k for k in range(mesh.ndim) if (places[:, k] != places[0, k]).any()))
    return tuple(found)
