"""Pieces of a fused weight, such as gate and up in one, or q, k and v, of which every rank holds its part of each.

The indices of a rank are no interval then. With a dimension more, which counts the pieces, they are, where these are equal::

    gate and up of 4 rows on 2 ranks        rank 0      g0 g1 u0 u1        as a tensor of 2 x 4 rows    g0 g1 | g2 g3
                                            rank 1      g2 g3 u2 u3                                     u0 u1 | u2 u3

And where they are not, they are with the parts in the order of the ranks::

    q of 4 rows, k and v of 2               rank 0      q0 q1 k0 v0        as a tensor of 8 rows        q0 q1 k0 v0 | q2 q3 k1 v1
                                            rank 1      q2 q3 k1 v1
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple, Protocol, TypeVar

__all__ = ["IN_ONE", "ArrayT", "Fused", "Pieces", "UnequalPieces"]


class _Reshaped(Protocol):
    """The part of an array that is needed to give it another shape or order."""

    @property
    def shape(self) -> Any: ...

    def reshape(self, shape: Any, /) -> Any: ...
    def __getitem__(self, index: Any, /) -> Any: ...


ArrayT = TypeVar("ArrayT", bound=_Reshaped)


class Fused(Protocol):
    """A weight of which the ranks hold intervals once it is rearranged, as a whole; parts of it keep their order."""

    def apart(self, fused: ArrayT) -> ArrayT:
        """The array as the space of the weight has it; as it is where its shape tells that it is no weight, nor part of one."""

    def joined(self, apart: ArrayT, shape: Sequence[int]) -> ArrayT:
        """The inverse, of an array that has this `shape` as a weight or part of one."""


class _InOne:
    """One piece alone, as most weights are: the space has it as it is."""

    def apart(self, fused: ArrayT) -> ArrayT:
        """The array."""
        return fused

    def joined(self, apart: ArrayT, shape: Sequence[int]) -> ArrayT:
        """The array in this shape, which may be another one of zero volume."""
        joined: ArrayT = apart.reshape(tuple(shape))
        return joined


IN_ONE: Final[Fused] = _InOne()


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

    def joined(self, apart: ArrayT, shape: Sequence[int]) -> ArrayT:
        """The array with the pieces in one, its elements in their order."""
        joined: ArrayT = apart.reshape(tuple(shape))
        return joined


class UnequalPieces(NamedTuple):
    """Pieces of these sizes, one behind the other along a dimension, each of which so many ranks have equal parts of."""

    dim: int
    sizes: tuple[int, ...]
    ranks: int

    def apart(self, fused: ArrayT) -> ArrayT:
        """The whole with the parts of the pieces in the order of the ranks; anything else as it is."""
        return self._taken(fused, self._order())

    def joined(self, apart: ArrayT, shape: Sequence[int]) -> ArrayT:
        """The inverse."""
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
