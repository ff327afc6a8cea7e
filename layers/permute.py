"""Permuting the dimensions of a tensor that is cut: the grid of the workers is permuted with it, and nothing is sent.

forward    y = x^π               on each worker, over the workers P_x^π
           y ← T y               to the wanted layout, if that is another one
adjoint    that of each step in the reverse order
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.layers.rearrangement import Rearrangement

__all__ = ["Permute", "Permuted", "Transpose", "Transposed"]


class Permuted(nn.Module):
    """`torch.permute` as a module."""

    def __init__(self, dims: Sequence[int]) -> None:
        super().__init__()
        self.dims = tuple(dims)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the tensor with its dimensions in the new order."""
        return torch.permute(x, self.dims)

    def extra_repr(self) -> str:
        return f"{self.dims}"


class Transposed(nn.Module):
    """`torch.transpose` as a module."""

    def __init__(self, dim0: int, dim1: int) -> None:
        super().__init__()
        self.dim0, self.dim1 = dim0, dim1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the tensor with two dimensions exchanged."""
        return torch.transpose(x, self.dim0, self.dim1)

    def extra_repr(self) -> str:
        return f"{self.dim0}, {self.dim1}"


class Permute(Rearrangement, torch_classes=(Permuted,)):
    """`torch.permute`; see :class:`Rearrangement`.

    Each worker keeps its elements: over a permuted grid, each dimension of the output is cut like the corresponding one of the input.
    With a balanced cut of a `target` over other dimensions, this is the all-to-all of a transposed tensor.
    """

    def plan(self, module: nn.Module, y_shape: tuple[int, ...]) -> None:
        # Distinct lengths show the permutation, whatever the arguments of the module are.
        lengths = tuple(range(1, len(y_shape) + 1))
        dims = [length - 1 for length in module.forward(torch.empty(lengths, device="meta")).shape]
        x = self.steps.layout
        ranks = np.reshape(x.partition.ranks, x.partition.shape).transpose(dims)
        permuted = Partition(ranks.shape, ranks.ravel().tolist())
        y = Layout(y_shape, permuted, [x.windows[dim] for dim in dims])
        self.steps.apply(lambda local: local.permute(dims) if local.ndim == len(dims) else local, y)


class Transpose(Permute, torch_classes=(Transposed,)):
    """`torch.transpose`; see :class:`Permute`."""
