"""The largest element along a dimension that may be cut, for functions that do not depend on it: no gradient goes through."""

from __future__ import annotations

import torch

from adjointlab.core.layout import Layout
from adjointlab.layers.differentiable import without_gradient
from adjointlab.layers.torch_modules import dtype_name
from adjointlab.primitives.all_gather import AllGather
from adjointlab.typing import Communicator

__all__ = ["Largest"]


class Largest:
    """The maximum over dimension `dim` of a tensor of element type `dtype` and layout `x`, whose dimensions all lie along the partition's.

    Collective over the workers along `dim`; must not be called on ranks that are idle in `x`.
    """

    def __init__(self, comm: Communicator, x: Layout, dim: int, dtype: torch.dtype) -> None:
        self.dim, self._shape = dim, list(x.local_shape(comm.Get_rank()))
        self._shape[dim] = 1
        # Gathered, not reduced: MPI does not define its maximum for NaN.
        workers, shape, windows = x.partition.shape[dim], list(x.shape), list(x.windows)
        shape[dim], windows[dim] = workers, tuple((i, i + 1) for i in range(workers))
        self._gather = AllGather(comm, Layout(shape, x.partition, windows), dim, dtype=dtype_name(dtype))

    def of(self, x: torch.Tensor) -> torch.Tensor:
        """Return the maximum of each slice, a tensor whose dimension `dim` has length 1; -∞ for slices without elements on all workers."""
        x = x.detach()
        if x.shape[self.dim] == 0:
            # A worker without elements takes part, with a number that is never the largest.
            largest = x.new_full(self._shape, -torch.inf)
        else:
            largest = x.amax(self.dim, keepdim=True)
        return without_gradient(self._gather, largest).amax(self.dim, keepdim=True)
