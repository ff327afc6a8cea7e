"""Comparing elements of a space that were assembled from all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from adjointlab.core.space import Space, Tensor

__all__ = ["EXACT", "Local", "Tolerance", "first_difference", "first_unequal_copy", "summed"]

Local = tuple[np.ndarray[Any, Any], ...]
"""What one rank holds of an element of a space, in NumPy: one array for each tensor."""


@dataclass(frozen=True)
class Tolerance:
    """How far two computations of one value may differ: `relative` to the largest value that was expected, or to
    `reach`, the largest that can be, where values may cancel.
    """

    relative: float
    reach: float = 0.0

    def allowed(self, largest: float) -> float:
        """The difference that may be, where `largest` is expected."""
        return self.relative * max(largest, self.reach)


EXACT = Tolerance(0.0)
"""Not at all."""


def first_difference(
    space: Space, actual: Sequence[Local], expected: Sequence[Local], tolerance: Tolerance = EXACT
) -> tuple[str, str, str] | None:
    """Where two elements of `space` first differ: the place, the actual and the expected value; `None` if nowhere.

    Partial tensors are compared after summation, never rank by rank. Differences within `tolerance` pass; NaN never
    does.
    """
    for position, tensor in enumerate(space.tensors):
        got = summed(tensor, [local[position] for local in actual])
        want = summed(tensor, [local[position] for local in expected])
        scale = max((_largest(array) for array in want.values()), default=0.0)
        for rank, array in got.items():
            if array.shape != want[rank].shape:
                return f"{tensor.name} (rank {rank})", f"shape {array.shape}", f"shape {want[rank].shape}"
            near = np.abs(array - want[rank]) <= tolerance.allowed(scale)
            wrong = ~np.asarray(near, dtype=bool)  # objects of order 0 compare as Python's numbers
            if wrong.any():
                local = tuple(int(i) for i in np.argwhere(wrong)[0])
                return place(tensor, rank, local), _number(array[local]), _number(want[rank][local])
    return None


def first_unequal_copy(space: Space, local: Sequence[Local]) -> tuple[str, str, str] | None:
    """The first element whose declared-equal copies differ: the place, its value, and the first copy's value."""
    for position, tensor in enumerate(space.tensors):
        for rank, first in tensor.groups.items():
            mine, other = local[rank][position], local[first][position]
            wrong = ~((mine == other) | (np.isnan(mine) & np.isnan(other)))
            if wrong.any():
                index = tuple(int(i) for i in np.argwhere(wrong)[0])
                return (
                    place(tensor, rank, index),
                    _number(mine[index]),
                    f"{_number(other[index])} on rank {first}",
                )
    return None


def summed(tensor: Tensor, local: Sequence[np.ndarray[Any, Any]]) -> dict[int, np.ndarray[Any, Any]]:
    """The local tensor of each active rank, the summands of a partial one added up on the first of their ranks."""
    totals: dict[int, np.ndarray[Any, Any]] = {}
    for rank, first in tensor.summands.items():
        values = np.asarray(local[rank], dtype=_wide(local[rank].dtype))
        # An array also of order 0, where NumPy makes a number of a sum.
        totals[first] = np.asarray(totals[first] + values, values.dtype) if first in totals else values
    return totals


def place(tensor: Tensor, rank: int, local: Sequence[int]) -> str:
    """How reports name an element: by its global index, and the rank that holds it."""
    index = tensor.layout.to_global(rank, local)
    return f"{tensor.name}[{', '.join(map(str, index))}] (rank {rank})"


def _largest(array: np.ndarray[Any, Any]) -> float:
    return float(np.max(np.abs(array).ravel(), initial=0.0) if array.ndim else abs(array[()]))


def _wide(dtype: np.dtype[Any]) -> np.dtype[Any]:
    if dtype.kind in "iu":
        return np.dtype(object)  # exact, whatever the size
    return np.dtype(np.complex128 if dtype.kind == "c" else np.float64)


def _number(value: Any) -> str:
    number = complex(value)
    if number.imag:
        return f"{number:g}"
    return f"{number.real:.17g}"
