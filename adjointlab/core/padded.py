"""A weight whose parts have the same length on all ranks, padded after the last row, such as those of a padded vocabulary.

a weight of 3 rows on 2 ranks       rank 0      a a a
                                                b b b
                                    rank 1      c c c
                                                0 0 0
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from adjointlab.core import arrays
from adjointlab.core.pieces import ArrayT

__all__ = ["Padded"]


class Padded(NamedTuple):
    """A weight of which this rank has `own` indices along a dimension, followed by padding up to `held`."""

    dim: int
    own: int
    held: int

    def apart(self, fused: ArrayT) -> ArrayT:
        """Return the part of this rank without its padding; anything else, such as the global weight, unchanged."""
        if len(fused.shape) <= self.dim or fused.shape[self.dim] != self.held:
            return fused
        own: ArrayT = fused[self._own]
        return own

    def joined(self, apart: ArrayT, shape: Sequence[int]) -> ArrayT:
        """The inverse of `apart`, padded with zeros."""
        if tuple(apart.shape) == tuple(shape):
            return apart
        given: Any = apart
        padded: Any = arrays.zeros(shape, arrays.dtype_name(given), given)
        arrays.copy_into(padded[self._own], given)
        joined: ArrayT = padded
        return joined

    @property
    def _own(self) -> tuple[slice, ...]:
        return (*[slice(None)] * self.dim, slice(self.own))
