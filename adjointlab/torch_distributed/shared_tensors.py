"""The spaces of the parameters and buffers of a parallel module, from the ranks' descriptions of their parts of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate

from adjointlab.core import arrays
from adjointlab.core.pieces import Fused
from adjointlab.core.space import Space, Tensor
from adjointlab.torch_distributed.dtensors import Placements, check_claim, extended, tensor_on
from adjointlab.torch_distributed.flat_parts import begins_of, flattened
from adjointlab.torch_distributed.fused import pieces_apart, pieces_of_sizes
from adjointlab.torch_distributed.held_parts import HeldPart, agreed, as_held, grid_of_holders
from adjointlab.torch_distributed.names import missing
from adjointlab.typing import Communicator, NumpyArray

__all__ = ["DeclaredParameters", "SharedTensors"]


@dataclass(frozen=True)
class DeclaredParameters:
    """Declarations of parameters by name: the `placements` of plain ones that are not copies, the `sizes` of unequal pieces of fused ones,
    and the initial `values` of the sequential module, which show where flat parts belong.
    """

    placements: Mapping[str, Placements]
    sizes: Mapping[str, Sequence[int]]
    values: Mapping[str, NumpyArray] | None


@dataclass(frozen=True)
class SharedTensors:
    """Tensors of which the ranks of a mesh have parts or copies, or nothing."""

    mesh: DeviceMesh
    comm: Communicator

    def parameters(
        self,
        own: Mapping[str, nn.Parameter],
        shapes: Mapping[str, tuple[int, ...]],
        declared: DeclaredParameters,
    ) -> tuple[Space, Mapping[str, Fused]]:
        """The space of parameters with these sequential `shapes`, and the storage of fused, flattened or padded ones, by name. Collective."""
        accounts = {
            name: self._account_of_parameter(name, held, shapes[name], declared) for name, held in own.items()
        }
        tensors: list[Tensor] = []
        pieces_of: dict[str, Fused] = {}
        for name, parts in self._gathered("parameter", shapes, accounts):
            tensor, pieces = self._parameter(name, parts, declared.sizes.get(name))
            tensors.append(tensor)
            if pieces is not None:
                pieces_of[name] = pieces
        return Space(*tensors), pieces_of

    def buffers(self, own: Mapping[str, torch.Tensor], names: Sequence[str]) -> Space:
        """The space of buffers. Collective, if there are any."""
        if not names:
            return Space()
        copies = [Replicate()] * self.mesh.ndim
        accounts = {name: self._account(held, held.shape, copies) for name, held in own.items()}
        tensors = []
        for name, parts in self._gathered("buffer", names, accounts):
            first, grid = agreed(name, parts), grid_of_holders(self.mesh, name, parts)
            tensors.append(tensor_on(grid, first.placements, first.shape, first.dtype, name))
        return Space(*tensors)

    def nothing_of(self, tensor: Tensor) -> nn.Parameter:
        """A stand-in of zero volume for a tensor that only other ranks have; of integers, which never require a gradient."""
        shape = (0,) * max(1, tensor.layout.order)
        nothing = torch.empty(shape, dtype=torch.int64, device=self.mesh.device_type)
        return nn.Parameter(nothing, requires_grad=False)

    def _gathered(
        self, kind: str, names: Iterable[str], accounts: Mapping[str, HeldPart]
    ) -> Iterator[tuple[str, Mapping[int, HeldPart]]]:
        """The descriptions of each tensor, by the ranks that have it. Raises `TypeError` if none has."""
        every = self.comm.allgather(dict(accounts))
        for name in names:
            parts = {rank: held[name] for rank, held in enumerate(every) if name in held}
            if not parts:
                raise missing(kind, name, accounts)
            yield name, parts

    def _account_of_parameter(
        self, name: str, held: nn.Parameter, shape: Sequence[int], declared: DeclaredParameters
    ) -> HeldPart:
        is_plain_part = not isinstance(held, DTensor) and tuple(held.shape) != tuple(shape)
        # One-dimensional parts may be consecutive elements of a flattened parameter.
        if is_plain_part and name not in declared.placements and held.ndim != 1:
            raise _misfit(name, held.shape, shape, self.mesh)
        copies = [Replicate()] * self.mesh.ndim
        account = self._account(held, shape, declared.placements.get(name, copies))
        if not account.is_flat or declared.values is None:
            return account
        return replace(account, begins=begins_of(arrays.to_numpy(held.detach()), declared.values[name]))

    def _account(self, held: torch.Tensor, shape: Sequence[int], placements: Placements) -> HeldPart:
        """This rank's description of a tensor; a DTensor has its own shape and placements, others have the given ones."""
        dtype = arrays.dtype_name(held)
        if isinstance(held, DTensor):
            check_claim(held)
            own = extended(self.mesh, held.device_mesh, held.placements)
            return HeldPart(tuple(own), tuple(held.shape), None, dtype)
        return HeldPart(tuple(placements), tuple(shape), tuple(held.shape), dtype)

    def _parameter(
        self, name: str, parts: Mapping[int, HeldPart], sizes: Sequence[int] | None
    ) -> tuple[Tensor, Fused | None]:
        first, grid = agreed(name, parts), grid_of_holders(self.mesh, name, parts)
        if any(part.is_flat for part in parts.values()):
            if (flat := flattened(name, parts, grid, self.comm.Get_rank())) is None:
                raise _misfit(name, first.local_shape or (), first.shape, self.mesh)
            return flat
        pieces, placements = pieces_apart(first.placements, first.shape)
        if sizes is not None:
            tensor = tensor_on(grid, placements, first.shape, first.dtype, name)
            return tensor, pieces_of_sizes(name, sizes, placements, first.shape, grid.shape)
        if pieces is not None:
            return tensor_on(grid, placements, pieces.shape_of(first.shape), first.dtype, name), pieces
        cut = tensor_on(grid, placements, first.shape, first.dtype, name)
        return as_held(cut, parts, self.comm.Get_rank())


def _misfit(name: str, own: Sequence[int], shape: Sequence[int], mesh: DeviceMesh) -> TypeError:
    """The error for a plain part of a parameter of this `shape` without declared placements."""
    shapes = f"the parameter {name} has shape {tuple(own)}, and the sequential one {tuple(shape)}"
    if len(own) != len(shape):
        return TypeError(
            f"{shapes}: no placement changes the number of dimensions. Keep the ranks' parts as parameters with the dimensions of the whole, "
            "or as consecutive elements in one dimension, which may be padded to one length"
        )
    likely = _likely_placements(own, shape, mesh)
    return TypeError(
        f'{shapes}: say how the ranks share it, with parameter_placements={{"{name}": [{likely}]}}, '
        "an argument of check_parallel, and an entry of the dictionary that a strategy of cases returns"
    )


def _likely_placements(part: Sequence[int], shape: Sequence[int], mesh: DeviceMesh) -> str:
    """Likely placements of a plain part of a parameter of this `shape`: its first smaller dimension is cut along the last mesh dimension."""
    smaller = [dim for dim, (own, whole) in enumerate(zip(part, shape, strict=True)) if own < whole]
    cut = smaller[0] if smaller else 0
    return ", ".join(["Replicate()"] * (mesh.ndim - 1) + [f"Shard({cut})"])
