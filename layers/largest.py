"""The largest element along a dimension that may be cut, for functions that do not depend on it: no gradient goes through."""

from __future__ import annotations

from typing import cast

import torch

from adjointlab.core import arrays, transport
from adjointlab.core.layout import Layout
from adjointlab.layers.grids import without_dims
from adjointlab.layers.torch_modules import dtype_name
from adjointlab.primitives import groups
from adjointlab.typing import Communicator

__all__ = ["Largest"]


class Largest:
    """The maximum over dimension `dim` of a tensor that `x` lays over its workers, each dimension along one.

    Collective over the workers along `dim`, where there are several and they have slices; on ranks that `x` leaves idle, not to be called.
    """

    def __init__(self, comm: Communicator, x: Layout, dim: int) -> None:
        slices, rank = without_dims(x, dim), comm.Get_rank()
        self.dim, self._shape = dim, slices.local_shape(rank)
        self._workers: Communicator | None = None
        # Workers along `dim` have the same slices, so either all of a group make its communicator or none does.
        if x.partition.is_active(rank) and x.partition.shape[dim] > 1 and slices.local_size(rank) > 0:
            self._workers = groups.communicator(comm, x.partition.subpartition((dim,), rank).ranks)

    def of(self, x: torch.Tensor) -> torch.Tensor:
        """The maximum of each slice, without dimension `dim`; -∞ of slices without elements on all workers."""
        x = x.detach()
        if x.shape[self.dim] == 0:
            # A worker without elements takes part in the reduction, with a number that is never the largest.
            largest = x.new_full(self._shape, -torch.inf)
        else:
            largest = x.amax(self.dim)
        if self._workers is None:
            return largest
        own, name = arrays.summable(largest), dtype_name(x.dtype)
        # Gathered, not reduced: MPI leaves open what its maximum makes of NaN.
        every = arrays.summing_memory((self._workers.Get_size(), *own.shape), name, largest)
        transport.over(self._workers, own).Allgather(own, every)
        return cast("torch.Tensor", arrays.from_summable(every, name, largest)).amax(0)
