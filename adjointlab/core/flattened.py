"""A flattened weight of which each rank has consecutive elements, as in torch's FullyShardedDataParallel.

a weight of 2 x 3       a b c           rank 0      a b c d         or padded       a b c d
                        d e f           rank 1      e f                             e f 0 0
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from adjointlab.core import arrays
from adjointlab.core.pieces import ArrayT

__all__ = ["Flattened"]


class Flattened(NamedTuple):
    """A weight of which this rank has `own` elements, followed by padding up to `held`."""

    own: int
    held: int

    def apart(self, fused: ArrayT) -> ArrayT:
        """Return the elements of the global weight, or of this rank's part without its padding."""
        if fused.shape == (self.held,):
            own: ArrayT = fused[: self.own]
            return own
        flat: ArrayT = fused.reshape((-1,))
        return flat

    def joined(self, apart: ArrayT, shape: Sequence[int]) -> ArrayT:
        """The inverse of `apart`, padded with zeros."""
        given: Any = apart
        if missing := math.prod(shape) - math.prod(apart.shape):
            given = arrays.joined([given, arrays.zeros((missing,), arrays.dtype_name(given), given)])
        joined: ArrayT = given.reshape(tuple(shape))
        return joined
