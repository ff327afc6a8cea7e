"""Repartition as a layer [Hewett21, section 3.2.4], between layers whose tensors have different layouts.

forward    y = T_{P_x→P_y} x
adjoint    δx = T* δy
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from adjointlab.core.layout import Layout
from adjointlab.core.space import LocalType
from adjointlab.layers.differentiable import apply
from adjointlab.layers.distributed import DistributedModule
from adjointlab.layers.torch_modules import dtype_name
from adjointlab.primitives import repartition
from adjointlab.primitives.validation import check_layout
from adjointlab.typing import Communicator

__all__ = ["Repartition"]


class Repartition(DistributedModule):
    """Carries a tensor from `layout` to `target`, two layouts of the same global tensor over any ranks.

    For example ``Repartition(comm, first.codomain.tensors[0].layout, second.domain.tensors[0].layout)`` between two
    layers. A rank that is in only one of the partitions takes, or returns, a tensor of zero volume. `types` and
    `target_types` are local types, as in :class:`adjointlab.primitives.repartition.Repartition`, which raises
    `ValueError` for illegal ones.
    """

    def __init__(
        self,
        comm: Communicator,
        layout: Layout,
        target: Layout,
        *,
        dtype: torch.dtype | None = None,
        types: Sequence[LocalType | str] = (),
        target_types: Sequence[LocalType | str] = (),
    ) -> None:
        check_layout("layout", layout, comm)
        super().__init__(comm, layout.partition, nn.Identity())
        name = dtype_name(dtype)
        self.move = repartition.Repartition(
            comm, layout, target, dtype=name, types=types, target_types=target_types
        )
        self.given = {"layout": layout, "target": target}
        self.domain, self.codomain = self.move.domain, self.move.codomain

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The local tensor of y, from that of x."""
        (x,) = self.check_inputs(x)
        result: torch.Tensor = apply(self.move, x)
        return result
