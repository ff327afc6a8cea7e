"""One rank's part of the basis vectors of a space, of their images under a linear map, and of coordinates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from adjointlab.core import arrays
from adjointlab.core.space import Space
from adjointlab.typing import Array, NumpyArray

__all__ = ["LinearMap", "basis_batch", "basis_vector", "combination", "coordinates"]

_BATCH_ELEMENTS = 1_048_576
"""Bound on the elements of a batch of basis vectors, or of their images, on all ranks together: 8 MiB in float64."""


def basis_vector(space: Space, index: int, rank: int, library: str = "numpy") -> tuple[Array, ...]:
    """Return the local tensors of `rank` of the basis vector e_index of `space`. Raises `ValueError` if there is none."""
    if not 0 <= index < space.dimension:
        raise ValueError(f"index: {index} is not in 0 ... {space.dimension - 1}, the basis of {space}")
    return tuple(array[..., 0] for array in basis_batch(space, (index,), rank, library))


def basis_batch(space: Space, indices: Sequence[int], rank: int, library: str = "numpy") -> tuple[Array, ...]:
    """Return the local tensors of `rank` of the basis vectors e_i, i in `indices`, as a batch: their shape is (..., b)."""
    local = []
    chosen = tuple(indices)
    for position, tensor in enumerate(space.tensors):
        # An inactive rank has no offset, and no element.
        first, size = space.offset(position, rank) or 0, tensor.layout.local_size(rank)
        units_of = _kept_units if size * len(chosen) <= _KEPT_UNITS else _units
        shaped = units_of(first, size, chosen).reshape(*tensor.layout.local_shape(rank), len(chosen))
        local.append(arrays.from_numpy(shaped, tensor.dtype, library))
    return tuple(local)


def _units(first: int, size: int, chosen: tuple[int, ...]) -> NumpyArray:
    """Return `size` elements, from element `first`, of each of the basis vectors e_i, i in `chosen`."""
    units: NumpyArray = np.arange(first, first + size)[:, None] == np.asarray(chosen)
    units.flags.writeable = False
    return units


_KEPT_UNITS = 1024
"""Size up to which parts of basis vectors are cached: thousands of small cases have the same ones."""

_kept_units = lru_cache(maxsize=256)(_units)


def combination(space: Space, weights: NumpyArray, rank: int, library: str = "numpy") -> tuple[Array, ...]:
    """Return the local tensors of `rank` of the sum of all basis vectors of `space`, each times its weight."""
    local = []
    for position, tensor in enumerate(space.tensors):
        first = space.offset(position, rank) or 0
        held = weights[first : first + tensor.layout.local_size(rank)]
        local.append(arrays.from_numpy(held.reshape(tensor.layout.local_shape(rank)), tensor.dtype, library))
    return tuple(local)


def coordinates(space: Space, local: Sequence[Array], rank: int, batch: tuple[int, ...] = ()) -> NumpyArray:
    """Return the contributions of `rank` to the pairings <v, f_j> of an element v of `space` with the basis of its dual.

    Their sums over the ranks are the coordinates of v: entries of varying and replicated tensors one by one, partial ones
    summed, invariant ones once. A batch (b,) of elements gives b columns.
    """
    result = np.zeros((space.dual.dimension, *batch), dtype=np.complex128 if space.is_complex else np.float64)
    for position, array in enumerate(local):
        if rows := space.coordinate_rows.get((position, rank)):
            result[rows] = arrays.to_numpy(array).reshape(rows.stop - rows.start, *batch)
    return result


@dataclass(frozen=True)
class LinearMap:
    """One rank's part of a linear map between two spaces, which the ranks apply together.

    `apply` maps local tensors to local tensors, in arrays of `library`; a `batched` map also takes and returns batches of them.
    """

    source: Space
    target: Space
    apply: Callable[[Sequence[Array]], tuple[Array, ...]]
    rank: int
    library: str
    batched: bool

    def images(self, indices: Sequence[int]) -> Iterator[tuple[tuple[Array, ...], tuple[int, ...]]]:
        """Yield this rank's local tensors of the images of the basis vectors e_i, i in `indices`, each with its batch shape.

        Collective: `apply` is called once for each basis vector, with the batch (), or for each batch (b,) of them.
        """
        if not self.batched:
            for index in indices:
                yield self.apply(basis_vector(self.source, index, self.rank, self.library)), ()
            return
        # From global sizes, not from those of this rank: every rank must apply the operator equally often.
        width = max(1, _BATCH_ELEMENTS // max(1, self.source.dimension, self.target.dual.dimension))
        for first in range(0, len(indices), width):
            chosen = indices[first : first + width]
            yield self.apply(basis_batch(self.source, chosen, self.rank, self.library)), (len(chosen),)

    def contributions(self, indices: Sequence[int]) -> NumpyArray:
        """Return this rank's contribution to the columns `indices` of the matrix of the map. Collective: see :meth:`images`."""
        height = self.target.dual.dimension
        columns = [np.zeros((height, 0))]
        for image, batch in self.images(indices):
            columns.append(
                coordinates(self.target, image, self.rank, batch).reshape(height, *(batch or (1,)))
            )
        return np.concatenate(columns, axis=1)
