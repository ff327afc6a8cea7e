"""A function of DTensors as a module of local tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate

from adjointlab.core.arrays import dtype_name
from adjointlab.core.operator import WrongClaim, as_tuple
from adjointlab.core.space import Space
from adjointlab.spelling import described_type
from adjointlab.torch_distributed.dtensors import (
    Placements,
    check_claim,
    from_local,
    placements_text,
    tensor_on,
)

__all__ = ["DTensorFunction"]


class DTensorFunction(nn.Module):
    """A function of DTensors as a module of their local tensors. Its results and the gradients of its arguments must fit their placements.

    `placements` and `shapes` are those of its arguments, `whole_shapes` those of the results of the same function for plain tensors.
    Making one calls it with zeros: later results must have the same shapes and placements. Collective.
    """

    forward_mode = False

    def __init__(
        self,
        function: Callable[..., Any],
        mesh: DeviceMesh,
        placements: Sequence[Placements],
        shapes: Sequence[Sequence[int]],
        whole_shapes: Sequence[Sequence[int]],
        zeros: Sequence[torch.Tensor],
    ) -> None:
        super().__init__()
        self._function, self._mesh = function, mesh
        self._placements, self._shapes = placements, shapes
        self._whole_shapes = [tuple(shape) for shape in whole_shapes]
        self._claims: list[_Claim] | None = None
        with torch.no_grad():
            self(*zeros)

    @property
    def codomain(self) -> Space:
        """The space of its outputs by their claims."""
        assert self._claims is not None
        return Space(
            *(
                tensor_on(claim.mesh, claim.placements, claim.shape, claim.dtype, f"y{number or ''}")
                for number, claim in enumerate(self._claims)
            )
        )

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outputs = as_tuple(self._function(*map(self._given, range(len(inputs)), inputs)))
        for output in outputs:
            if not isinstance(output, DTensor):
                raise WrongClaim(f"the function returned {described_type(output)}, not a DTensor")
            check_claim(output)
        if (shapes := [tuple(output.shape) for output in outputs]) != self._whole_shapes:
            raise WrongClaim(
                f"DTensors claim shapes {shapes}, and the plain function's have {self._whole_shapes}"
            )
        outputs = tuple(map(_with_local_types, outputs))
        claims = [_Claim.of(output) for output in outputs]
        if self._claims is None:
            self._claims = claims
        if claims != self._claims:
            raise WrongClaim(f"DTensors claim {claims}, and claimed {self._claims} in an earlier call")
        return tuple(output.to_local() for output in outputs)

    def _given(self, number: int, local: torch.Tensor) -> DTensor:
        given = from_local(local, self._mesh, self._placements[number], self._shapes[number])
        if given.requires_grad:
            hooked: Any = given
            hooked.register_hook(_check_gradient)
        return given


@dataclass(frozen=True)
class _Claim:
    """The properties that a DTensor claims to have."""

    mesh: DeviceMesh
    placements: tuple[Placement, ...]
    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, tensor: DTensor) -> _Claim:
        return cls(tensor.device_mesh, tuple(tensor.placements), tuple(tensor.shape), dtype_name(tensor))

    def __repr__(self) -> str:
        return f"{self.dtype} {self.shape} {placements_text(self.placements)}"


def _with_local_types(tensor: DTensor) -> DTensor:
    """The DTensor after reductions without a local type, such as a maximum, are carried out."""
    wanted = [Replicate() if _is_other_reduction(p) else p for p in tensor.placements]
    return tensor.redistribute(placements=wanted) if wanted != list(tensor.placements) else tensor


def _is_other_reduction(placement: Placement) -> bool:
    return placement.is_partial() and getattr(placement, "reduce_op", "") != "sum"


def _check_gradient(gradient: torch.Tensor) -> None:
    if isinstance(gradient, DTensor):
        check_claim(gradient)
