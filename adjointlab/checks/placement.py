"""Placement of inputs in memory: the orders and strides that operators meet, between guard zones.

Every input is a view into a larger buffer, which is filled with NaN (the largest integer, for integers), so that whoever reads
beside the input poisons the result, and whoever writes beside it is found by comparing the buffer's bits. With guard cells `.`:

    row-major      a b c d e f . .        column-major   a d b e c f . .      of  a b c
                                                                                  d e f
    offset     . . . . .        strided   . . . . . . .        reversed   the view of offset,
               . a b c .                  . a . b . c .                   backwards in every dimension
               . d e f .                  . . . . . . .
               . . . . .                  . d . e . f .
                                          . . . . . . .
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from adjointlab.core import arrays
from adjointlab.typing import Array, NumpyArray

__all__ = ["ORDERS", "Placed", "place", "placed_as_it_is"]

ORDERS = ("row-major", "column-major", "strided", "offset", "reversed")
"""Row-major first: the order that shrinking goes to. "reversed" strides are negative, which torch does not have."""


@dataclass(frozen=True)
class Placed:
    """The view that the operator gets, and the buffer around it with a copy of its bits.

    `values` are the drawn values in NumPy, in memory that the operator never sees.
    """

    values: NumpyArray
    view: Any  # an Array, which torch's functions take too
    buffer: Array
    bits: NumpyArray

    @property
    def unchanged(self) -> bool:
        """True if every bit of the buffer, guard zones included, is as it was; NaN equals itself here."""
        return bool(np.array_equal(_bits(self.buffer), self.bits))


def place(values: NumpyArray, dtype: str, library: str, order: str) -> Placed:
    """Return `values` as an array of `library`, in the memory order that is asked for.

    Raises `ValueError` for an unknown order.
    """
    if order not in ORDERS:
        raise ValueError(f"order: {order!r} is not one of {', '.join(ORDERS)}")
    view: Any
    if order in ("row-major", "column-major"):
        # Guard cells at the end alone: this is the plainest memory there is, with nothing before it and no strides.
        buffer = _guard((values.size + 2,), dtype, library)
        transposed = order == "column-major" and values.ndim > 1
        view = buffer[: values.size].reshape(values.shape[::-1] if transposed else values.shape)
        if transposed:
            dims = range(values.ndim - 1, -1, -1)
            view = view.permute(*dims) if library == "torch" else view.transpose(*dims)
    else:
        step = 2 if order == "strided" else 1
        buffer = _guard(tuple(step * side + 2 if side else 1 for side in values.shape), dtype, library)
        view = buffer[(..., *(slice(1, 1 + step * side, step) for side in values.shape))]
        if order == "reversed" and library != "torch" and values.ndim:
            view = view[tuple(slice(None, None, -1) for _ in values.shape)]
    if values.size:
        arrays.copy_into(view, arrays.from_numpy(values, dtype, library))
    return Placed(values, view, buffer, _bits(buffer))


def placed_as_it_is(array: Array) -> Placed:
    """Return `array` where it lies, without guard zones."""
    return Placed(arrays.to_numpy(array).copy(), array, array, _bits(array))


def _guard(shape: tuple[int, ...], dtype: str, library: str) -> Array:
    buffer: Array = arrays.empty(shape, dtype, library)
    buffer[...] = np.iinfo(dtype).max if dtype.startswith("int") else np.nan
    return buffer


def _bits(array: Array) -> NumpyArray:
    return np.frombuffer(arrays.message(array).tobytes(), dtype=np.uint8)
