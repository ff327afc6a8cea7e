"""Pieces of a fused weight, such as gate and up in one, or q, k and v, if every rank holds its part of each piece.

Then the indices of a rank are not an interval. If the pieces are equal, an additional dimension that counts them makes them one::

    gate and up of 4 rows on 2 ranks        rank 0      g0 g1 u0 u1        as a tensor of 2 x 4 rows    g0 g1 | g2 g3
                                            rank 1      g2 g3 u2 u3                                     u0 u1 | u2 u3

If they are not equal, the parts of the pieces are put into the order of the ranks::

    q of 4 rows, k and v of 2               rank 0      q0 q1 k0 v0        as a tensor of 8 rows        q0 q1 k0 v0 | q2 q3 k1 v1
                                            rank 1      q2 q3 k1 v1
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple, Protocol, TypeVar

__all__ = ["IN_ONE", "ArrayT", "Fused", "Pieces", "UnequalPieces"]


class _Reshaped(Protocol):
    """The methods of an array that are needed to give it another shape or order."""

    @property
    def shape(self) -> Any: ...

    def reshape(self, shape: Any, /) -> Any: ...
    def __getitem__(self, index: Any, /) -> Any: ...


ArrayT = TypeVar("ArrayT", bound=_Reshaped)


class Fused(Protocol):
    """A rearrangement of a global weight after which the ranks hold intervals of it; local parts keep their order."""

    def apart(self, fused: ArrayT) -> ArrayT:
        """Return the array as the weight's space has it; unchanged if its shape is that of neither the weight nor a part of it."""

    def joined(self, apart: ArrayT, shape: Sequence[int]) -> ArrayT:
        """The inverse, for a weight or a part of one that has this `shape` in the module."""


class _InOne:
    """A weight of one piece, as most are: the space has it unchanged."""

    def apart(self, fused: ArrayT) -> ArrayT:
        """Return the array."""
        return fused

    def joined(self, apart: ArrayT, shape: Sequence[int]) -> ArrayT:
        """Return the array in this shape, which may differ if it has no elements."""
        joined: ArrayT = apart.reshape(tuple(shape))
        return joined


IN_ONE: Final[Fused] = _InOne()


class Pieces(NamedTuple):
    """Equal pieces, one after the other along a dimension."""

    dim: int
    number: int

    def shape_of(self, fused: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of a global or local tensor with the pieces apart, from its shape with the pieces in one."""
        return (*fused[: self.dim], self.number, fused[self.dim] // self.number, *fused[self.dim + 1 :])

    def apart(self, fused: ArrayT) -> ArrayT:
        """Return the array with the pieces apart, its elements in the same order; unchanged if its shape cannot have these pieces."""
        if len(fused.shape) <= self.dim or fused.shape[self.dim] % self.number:
            return fused
        apart: ArrayT = fused.reshape(self.shape_of(fused.shape))
        return apart

    def joined(self, apart: ArrayT, shape: Sequence[int]) -> ArrayT:
        """Return the array with the pieces in one, its elements in the same order."""
        joined: ArrayT = apart.reshape(tuple(shape))
        return joined


class UnequalPieces(NamedTuple):
    """Pieces of these sizes, one after the other along a dimension; the ranks hold equal parts of each piece."""

    dim: int
    sizes: tuple[int, ...]
    ranks: int

    def apart(self, fused: ArrayT) -> ArrayT:
        """Return the global weight with the parts of the pieces in the order of the ranks, anything else unchanged."""
        return self._taken(fused, self._order())

    def joined(self, apart: ArrayT, shape: Sequence[int]) -> ArrayT:
        """The inverse of `apart`."""
        order = self._order()
        inverse = sorted(range(len(order)), key=order.__getitem__)
        joined: ArrayT = self._taken(apart, inverse).reshape(tuple(shape))
        return joined

    def _taken(self, array: ArrayT, indices: list[int]) -> ArrayT:
        if len(array.shape) <= self.dim or array.shape[self.dim] != len(indices):
            return array
        taken: ArrayT = array[(*[slice(None)] * self.dim, indices)]
        return taken

    def _order(self) -> list[int]:
        starts = [0, *accumulate(self.sizes)]
        return [
            start + rank * size // self.ranks + row
            for rank in range(self.ranks)
            for start, size in zip(starts, self.sizes, strict=False)
            for row in range(size // self.ranks)
        ]
