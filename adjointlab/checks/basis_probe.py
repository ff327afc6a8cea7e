"""The matrix of an operator with small integer entries, from few applications.

Applied to a sum of basis vectors, each times a different power of 16, such an operator returns the entries of several columns at
once, as digits::

    F (e_0 + 16 e_1 + 256 e_2)  =  f_0 + 16 f_1 + 256 f_2           digits from -7 to 7: each f_i can be read off

An entry that is larger, or not an integer, changes adjacent digits. So the matrix is compared with one more application, to random
integers, and discarded unless they agree exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from adjointlab.core.bases import combination, coordinates
from adjointlab.core.communicators import sum_of_ranks
from adjointlab.core.operator import LinearOperator
from adjointlab.typing import Array, NumpyArray

__all__ = ["packed_matrix"]

_BITS = 4
"""Bits of a digit. A number of 53 bits holds 12 digits, with a bit left for the sign."""

_LARGEST = 2**10
"""Bound of the random integers: their sums stay exact in the smallest element type that is packed."""


def packed_matrix(
    operator: LinearOperator,
    library: str,
    precision: int,
    seed: int,
    apply: Callable[[Sequence[Array]], tuple[Array, ...]],
) -> NumpyArray | None:
    """The matrix <F e_i, f_j>, the same on every rank; None if it cannot be read off digits, or this saves no work.

    Collective over ``operator.comm``. `precision` is that of the operator's tensors in bits; `apply` is its forward direction.
    """
    domain, codomain, comm = operator.domain, operator.codomain, operator.comm
    if operator.batched or domain.is_complex or codomain.is_complex or precision < 24:
        return None
    rank, width = comm.Get_rank(), (min(precision, 53) - 2) // _BITS
    applications = -(-domain.dimension // width)
    if applications + 1 >= domain.dimension:
        return None
    generator = np.random.default_rng(seed)
    columns = [np.zeros(domain.dimension) for _ in range(applications)]
    for index in range(domain.dimension):
        columns[index // width][index] = 16.0 ** (index % width)
    columns.append(generator.integers(-_LARGEST, _LARGEST, domain.dimension, endpoint=True).astype(float))
    with np.errstate(all="ignore"):
        images = [
            coordinates(codomain, apply(combination(domain, column, rank, library)), rank)
            for column in columns
        ]
        *packed, wanted = sum_of_ranks(comm, np.stack(images))
        if not np.isfinite(packed).all():
            return None
        matrix = np.concatenate([_digits(image, width) for image in packed], axis=1)[:, : domain.dimension]
        return matrix if np.array_equal(matrix @ columns[-1], wanted) else None


def _digits(image: NumpyArray, width: int) -> NumpyArray:
    """The digits of every number of `image`, the lowest first, as columns."""
    digits, rest = [], np.array(image)
    for _ in range(width):
        higher = np.round(rest / 16.0)
        digits.append(rest - 16.0 * higher)
        rest = higher
    return np.stack(digits, axis=1)
