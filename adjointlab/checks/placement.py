"""Where an input lies in memory: the orders and strides that operators meet, between guard zones.

Every input is a view into a larger buffer filled with NaN (the largest integer, for integers), so that whoever reads
beside it poisons its result and whoever writes beside it is seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from adjointlab.core import arrays

__all__ = ["ORDERS", "Placed", "place", "placed_as_it_is"]

ORDERS = ("row-major", "column-major", "strided", "offset", "reversed")
"""Row-major first: the order that shrinking goes to. "reversed" strides are negative, which torch does not have."""


@dataclass(frozen=True)
class Placed:
    """An array in its place: the view that the operator gets, and the buffer around it with a copy of its bits.

    `values` are the same in NumPy, out of the operator's reach.
    """

    values: np.ndarray[Any, Any]
    view: Any
    base: Any
    before: np.ndarray[Any, Any]

    @property
    def unchanged(self) -> bool:
        """Whether every bit of the buffer, guard zones included, is as it was."""
        return bool(np.array_equal(_bits(self.base), self.before))


def place(values: np.ndarray[Any, Any], dtype: str, library: str, order: str) -> Placed:
    """`values` as an array of `library`, in the memory order that is asked for.

    Raises `ValueError` for an unknown order.
    """
    if order not in ORDERS:
        raise ValueError(f"order: {order!r} is not one of {', '.join(ORDERS)}")
    reverse = order == "reversed" and library != "torch"
    step = 2 if order == "strided" else 1
    lead = 1 if order in ("offset", "strided", "reversed") else 0
    padded = tuple(lead + step * side + 1 if side else 1 for side in values.shape)
    transposed = order == "column-major"
    fill = 1.0 if dtype.startswith("int") else np.nan
    shape = padded[::-1] if transposed else padded
    if order in ("row-major", "column-major"):
        # Contiguous memory with the guard zone behind it.
        flat = _filled((values.size + 2,), dtype, library, fill)
        inner = flat[: values.size].reshape(values.shape[::-1] if transposed else values.shape)
        base = flat
    else:
        base = _filled(shape, dtype, library, fill)
        inner = base[(..., *(slice(lead, lead + step * side, step) for side in values.shape))]
    if transposed and values.ndim > 1:
        inner = (
            inner.transpose(*range(values.ndim - 1, -1, -1))
            if library != "torch"
            else inner.permute(*range(values.ndim - 1, -1, -1))
        )
    if reverse and values.ndim:
        inner = inner[tuple(slice(None, None, -1) for _ in values.shape)]
    if values.size:
        arrays.copy_into(inner, arrays.from_numpy(values, dtype, library))
    return Placed(values, inner, base, _bits(base))


def placed_as_it_is(array: Any) -> Placed:
    """`array` where it lies, without guard zones."""
    return Placed(arrays.to_numpy(array).copy(), array, array, _bits(array))


def _filled(shape: tuple[int, ...], dtype: str, library: str, fill: float) -> Any:
    base = arrays.empty(shape, dtype, library)
    base[...] = np.iinfo(dtype).max if dtype.startswith("int") else fill
    return base


def _bits(array: Any) -> np.ndarray[Any, Any]:
    return np.frombuffer(arrays.message(array).tobytes(), dtype=np.uint8)
