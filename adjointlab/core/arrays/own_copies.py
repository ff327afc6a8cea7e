"""Copies of arrays that share memory with each other as the originals do."""

from __future__ import annotations

import copy
import sys
from typing import Any

import numpy as np

from adjointlab.typing import NumpyArray

__all__ = ["ArrayCopies"]


class ArrayCopies:
    """Copies of NumPy's arrays and torch's tensors: views of one array become views of one copy."""

    def __init__(self) -> None:
        self._originals: list[NumpyArray] = []  # kept alive, so that no other array gets their ids
        self._of_numpy: dict[int, NumpyArray] = {}
        self._of_torch: dict[int, Any] = {}

    def of(self, value: Any) -> Any:
        """Return the copy of `value`; `None` if it is not an array, or not writable."""
        if type(value) is np.ndarray and value.flags.writeable and not value.dtype.hasobject:
            return self._copied(value)
        torch = sys.modules.get("torch")
        if torch is not None and type(value) is torch.Tensor and not value.requires_grad:
            return copy.deepcopy(value, self._of_torch)
        return None

    def _copied(self, array: NumpyArray) -> NumpyArray:
        root = array
        while type(root.base) is np.ndarray:
            root = root.base
        if id(root) not in self._of_numpy:
            self._originals.append(root)
            self._of_numpy[id(root)] = root.copy(order="K")
        own = self._of_numpy[id(root)]
        if own.strides != root.strides:  # a copy of memory with gaps has none: then nothing is shared
            return array.copy()
        offset = array.__array_interface__["data"][0] - root.__array_interface__["data"][0]
        octets = own.ravel(order="K").view(np.uint8)
        return np.ndarray(array.shape, array.dtype, octets, offset, array.strides)
