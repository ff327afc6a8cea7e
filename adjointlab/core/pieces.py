"""Equal pieces of a fused weight, such as gate and up in one, or q, k and v, of which every rank holds its part of each.

The indices of a rank are no interval then. With a dimension more, which counts the pieces, they are::

    gate and up of 4 rows on 2 ranks        rank 0      g0 g1 u0 u1        as a tensor of 2 x 4 rows    g0 g1 | g2 g3
                                            rank 1      g2 g3 u2 u3                                     u0 u1 | u2 u3
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

__all__ = ["Pieces"]


class _Reshaped(Protocol):
    """The part of an array that is needed to give it another shape."""

    @property
    def shape(self) -> Any: ...

    def reshape(self, shape: Any, /) -> Any: ...


ArrayT = TypeVar("ArrayT", bound=_Reshaped)


class Pieces(NamedTuple):
    """So many equal pieces, one behind the other along a dimension."""

    dim: int
    number: int

    def shape_of(self, fused: Sequence[int]) -> tuple[int, ...]:
        """The shape of a tensor with the pieces apart, a whole or a local one, of its shape with the pieces in one."""
        return (*fused[: self.dim], self.number, fused[self.dim] // self.number, *fused[self.dim + 1 :])

    def apart(self, fused: ArrayT) -> ArrayT:
        """The array with the pieces apart, its elements in their order; as it is where it is not of so many, which its shape tells."""
        if len(fused.shape) <= self.dim or fused.shape[self.dim] % self.number:
            return fused
        apart: ArrayT = fused.reshape(self.shape_of(fused.shape))
        return apart
