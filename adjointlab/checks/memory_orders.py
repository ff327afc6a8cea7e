"""Orders of memory in which an operator gets its inputs, within guard cells.

Every input is a view into a larger buffer, which is filled with NaN (the largest integer, for integers). So a read outside the
input poisons the result, and comparing the buffer's bits shows a write outside it. With guard cells `.`:

    row-major      a b c d e f . .        column-major   a d b e c f . .      of  a b c
                                                                                  d e f
    offset     . . . . .        strided   . . . . . . .        reversed   the view of offset,
               . a b c .                  . a . b . c .                   backwards in every dimension
               . d e f .                  . . . . . . .
               . . . . .                  . d . e . f .
                                          . . . . . . .
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from adjointlab.core import arrays
from adjointlab.typing import Array, NumpyArray

__all__ = [
    "LEGAL_ORDERS",
    "MIXED_ORDERS",
    "ORDERS",
    "RESTORED",
    "Placed",
    "mixed",
    "order_on",
    "place",
    "placed_as_it_is",
    "unmixed",
]

ORDERS = ("row-major", "column-major", "strided", "offset", "reversed")
"""Row-major first: shrinking leads to it. The strides of "reversed" are negative, which torch does not support."""

_ON_EVEN_RANKS = " on even ranks"

MIXED_ORDERS = tuple(f"{order}{_ON_EVEN_RANKS}" for order in ORDERS[1:])
"""Orders of ranks 0, 2, ...; the others have row-major memory. Code that sends memory as it lies is wrong if ranks differ."""

LEGAL_ORDERS = (*ORDERS, *MIXED_ORDERS)

_PLAIN = ("row-major", "column-major")

RESTORED = (
    "afterwards",
    "it has its old values again, but torch counts writes, and rejects tensors that other functions have saved of it for their backward passes",
)
"""A line on a tensor that was written into, and holds the same values again."""

_LEAD = 2
"""Guard cells before the first element of the last dimension: an even number, because torch's `view_as_complex` rejects odd offsets."""

_STEPS = {"strided": 2, "offset": 1, "reversed": 1}


@dataclass(frozen=True)
class Placed:
    """The view that the operator gets, and the buffer around it with a copy of its octets, and how often it had been written into then.

    `values` are the drawn values in NumPy, in memory that the operator never sees.
    """

    values: NumpyArray
    view: Any  # an Array, which torch's functions take too
    buffer: Array
    octets: bytes
    times_written: int

    @property
    def unchanged(self) -> bool:
        """True if torch has counted no write into the buffer and every bit of it, guard zones included, is unchanged; NaN equals itself here."""
        return not self._is_written and self._has_old_values

    @property
    def is_restored(self) -> bool:
        """True if torch has counted a write into the buffer, which has its old values again."""
        return self._is_written and self._has_old_values

    @property
    def _is_written(self) -> bool:
        return arrays.times_written(self.view) != self.times_written

    @property
    def _has_old_values(self) -> bool:
        return arrays.octets_of_values(self.buffer) == self.octets


def mixed(order: str) -> str:
    """Return the order with only even ranks having it."""
    return f"{order}{_ON_EVEN_RANKS}" if order in ORDERS[1:] else order


def unmixed(order: str) -> str:
    """Return the order of even ranks, for all ranks."""
    return order.removesuffix(_ON_EVEN_RANKS)


def order_on(rank: int, order: str) -> str:
    """Return the order of memory on a rank; `order` is one of :data:`ORDERS` or :data:`MIXED_ORDERS`."""
    return ORDERS[0] if order in MIXED_ORDERS and rank % 2 else unmixed(order)


def place(values: NumpyArray, dtype: str, memory: str, order: str) -> Placed:
    """Return `values` as an array in `memory`, in the given memory order.

    Raises `ValueError` for an unknown order.
    """
    if order not in ORDERS:
        raise ValueError(f"order: {order!r} is not one of {', '.join(ORDERS)}")
    is_torch, shape = memory.startswith("torch"), values.shape
    if is_torch and not values.size:
        order = ORDERS[0]  # torch's `contiguous` leaves strides and offsets of empty tensors as they are
    elif is_torch and order == "reversed":
        order = "offset"
    buffer = arrays.empty(_buffer_shape(shape, order), dtype, memory)
    view = _view(buffer, shape, order, is_torch)
    (held,) = arrays.in_numpy(buffer)  # NumPy writes several times as fast as torch
    held[...] = arrays.dtype(dtype).undefined
    if isinstance(held, np.ndarray):
        inner = view if held is buffer else _view(held, shape, order, is_torch=False)
        inner[...] = values
    elif values.size:
        arrays.copy_into(view, arrays.from_numpy(values, dtype, memory))
    return Placed(values, view, buffer, arrays.octets_of_values(held), arrays.times_written(view))


def placed_as_it_is(array: Array) -> Placed:
    """Return `array` where it lies, without guard zones."""
    octets = arrays.octets_of_values(array)
    return Placed(arrays.to_numpy(array).copy(), array, array, octets, arrays.times_written(array))


def _buffer_shape(shape: tuple[int, ...], order: str) -> tuple[int, ...]:
    if order in _PLAIN:
        # Guard cells only at the end: this is the plainest memory, with offset zero and no gaps.
        return (math.prod(shape) + 2,)
    step = _STEPS[order]
    sides = [step * side + 2 if side else 1 for side in shape]
    return (*sides[:-1], *(last + _LEAD for last in sides[-1:]))


def _view(buffer: Any, shape: tuple[int, ...], order: str, is_torch: bool) -> Any:
    """The part of a buffer that holds the values."""
    if order == "row-major" or (order == "column-major" and len(shape) < 2):
        return buffer[: math.prod(shape)].reshape(shape)
    if order == "column-major":
        transposed = buffer[: math.prod(shape)].reshape(shape[::-1])
        return transposed.permute(*reversed(range(len(shape)))) if is_torch else transposed.transpose()
    step = _STEPS[order]
    leads = [1] * (len(shape) - 1) + [_LEAD] * bool(shape)
    view = buffer[
        (..., *[slice(lead, lead + step * side, step) for lead, side in zip(leads, shape, strict=True)])
    ]
    return view[(slice(None, None, -1),) * len(shape)] if order == "reversed" and shape else view
