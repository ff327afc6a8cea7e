"""Non-contiguous elements of a flat buffer, as a derived datatype selects them, with the part of NumPy's interface that the worlds use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from adjointlab.typing import NumpyArray

__all__ = ["ScatteredElements", "is_scattered", "scattered"]

Positions = npt.NDArray[np.int64]


class ScatteredElements:
    """A view of some elements of a flat array, with the interface of a one-dimensional NumPy array; writes go to the array."""

    def __init__(self, whole: Any, positions: Positions) -> None:
        self._whole = whole  # a NumPy array or a buffer in device memory
        self._positions = positions
        self.dtype: np.dtype[Any] = whole.dtype
        self.size = int(positions.size)
        self.nbytes = self.size * self.dtype.itemsize

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, key: slice) -> ScatteredElements:
        return ScatteredElements(self._whole, self._positions[key])

    def __setitem__(self, key: Any, value: object) -> None:
        self._whole[self._positions[key]] = value

    def __array__(self, dtype: object = None, copy: bool | None = None) -> NumpyArray:
        return np.asarray(self.copy())

    def copy(self) -> Any:
        """The elements, contiguous in fresh memory."""
        return self._whole[self._positions]

    def view(self, dtype: Any) -> ScatteredElements:
        """The same memory as elements of a smaller type."""
        parts = self.dtype.itemsize // np.dtype(dtype).itemsize
        positions = np.add.outer(self._positions * parts, np.arange(parts)).ravel()
        return ScatteredElements(self._whole.view(dtype), positions)

    def tobytes(self) -> bytes:
        """The contents of the elements, packed."""
        contents: bytes = self.copy().tobytes()
        return contents

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, out: Sequence[Any] = (), **keywords: Any
    ) -> Any:
        result = getattr(ufunc, method)(*map(_in_numpy, inputs), **keywords)
        if not out:
            return result
        out[0][...] = result
        return out[0]

    def __array_function__(
        self,
        function: Callable[..., Any],
        _: Iterable[type],
        arguments: Sequence[Any],
        keywords: dict[str, Any],
    ) -> Any:
        if function is np.concatenate:
            return np.concatenate([_in_numpy(each) for each in arguments[0]])
        if function is np.may_share_memory:
            return bool(np.intersect1d(_addresses(arguments[0]), _addresses(arguments[1])).size)
        return NotImplemented


def scattered(whole: Any, positions: Positions) -> Any:
    """The elements of a flat array at `positions`; a plain slice if they are contiguous."""
    if not positions.size:
        return whole[:0]
    first = int(positions[0])
    if np.array_equal(positions, np.arange(first, first + positions.size)):
        return whole[first : first + positions.size]
    return ScatteredElements(whole, positions)


def is_scattered(array: object) -> bool:
    """Return True if `array` is a :class:`ScatteredElements`."""
    return isinstance(array, ScatteredElements)


def _in_numpy(value: Any) -> Any:
    return value.copy() if isinstance(value, ScatteredElements) else value


def _addresses(array: Any) -> Positions:
    """The address of every byte of a buffer."""
    if isinstance(array, ScatteredElements):
        start, positions, itemsize = array._whole, array._positions, array.dtype.itemsize
    else:
        start, positions, itemsize = array, np.arange(array.size), array.dtype.itemsize
    address = start.__array_interface__["data"][0]
    addresses: Positions = address + np.add.outer(positions * itemsize, np.arange(itemsize)).ravel()
    return addresses
