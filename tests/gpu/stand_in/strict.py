"""CuPy's place taken by arrays of array-api-strict on its second device, which no operation mixes with memory of the host.

A :class:`StrictArray` has CuPy's names; every operation on values is one of array-api-strict on ``Device("device1")``, so that its refusals
are those of a library which is not the lab's. A copy to the host that a primitive asks for is an `AssertionError`. Work is done at
once: the order of streams is tested with the stand-in of :mod:`tests.gpu.stand_in.arrays`.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any
from unittest.mock import patch

import array_api_strict as xp
import numpy as np

from adjointlab.core import arrays
from adjointlab.core.arrays import kernels
from tests.gpu.stand_in.module import cupy_stand_in

__all__ = ["StrictArray", "operations", "strict_stand_in"]

operations: Counter[str] = Counter()
"""Functions of array-api-strict so far, by name."""

DEVICE, HOST = xp.Device("device1"), xp.Device("CPU_DEVICE")
_FUNCTIONS = {"conjugate": xp.conj, "add": xp.add, "multiply": xp.multiply, "subtract": xp.subtract}
_PACKAGE = arrays.__file__.removesuffix("core/arrays/__init__.py")


class StrictArray:
    """A view of memory of the device."""

    def __init__(self, values: Any) -> None:
        assert values.device == DEVICE
        self.values = values

    # What the host may know: where the memory lies, not what it holds.
    _layout = property(lambda self: self.values._array)
    shape = property(lambda self: self.values.shape)
    ndim = property(lambda self: self.values.ndim)
    size = property(lambda self: self.values.size)
    dtype = property(lambda self: self._layout.dtype)
    itemsize = property(lambda self: self._layout.itemsize)
    nbytes = property(lambda self: self._layout.nbytes)
    strides = property(lambda self: self._layout.strides)
    flags = property(lambda self: self._layout.flags)
    data = property(lambda self: _Named(ptr=self._layout.ctypes.data))
    device = property(lambda self: _Named(id=0))

    def __array__(self, *_: object, **__: object) -> Any:
        return np.asarray(self.values)  # which array-api-strict refuses

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, key: Any) -> StrictArray:
        return StrictArray(self.values[_complete(key)])

    def __setitem__(self, key: Any, value: Any) -> None:
        operations["assignment"] += 1
        self.values[_complete(key)] = _operand(value)

    def __iadd__(self, other: Any) -> StrictArray:
        operations["addition in place"] += 1
        self.values += _operand(other)
        return self

    def __add__(self, other: Any) -> Any:
        return _applied("add", self, other)

    def __mul__(self, other: Any) -> Any:
        return _applied("multiply", self, other)

    __radd__, __rmul__ = __add__, __mul__

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **keywords: Any) -> Any:
        assert method == "__call__"
        assert not keywords
        return _applied(ufunc.__name__, *inputs)

    def reshape(self, *shape: Any) -> StrictArray:
        return StrictArray(xp.reshape(self.values, shape[0] if isinstance(shape[0], tuple) else shape))

    def transpose(self, *dims: Any) -> StrictArray:
        order = dims[0] if len(dims) == 1 and isinstance(dims[0], list | tuple) else dims
        return StrictArray(xp.permute_dims(self.values, tuple(order or reversed(range(self.ndim)))))

    def copy(self) -> StrictArray:
        return StrictArray(xp.asarray(self.values, copy=True))

    def get(self) -> Any:
        assert not (asking := _primitive()), f"{asking} copies from the device to the host"
        return np.array(self.values.to_device(HOST))


class _Named:
    def __init__(self, **values: int) -> None:
        self.__dict__.update(values)


def _complete(key: Any) -> tuple[Any, ...]:
    # array-api-strict asks for an index of each dimension, or for an ellipsis.
    index = key if isinstance(key, tuple) else (key,)
    return index if any(each is Ellipsis for each in index) else (*index, ...)


def _operand(value: Any) -> Any:
    if isinstance(value, StrictArray):
        return value.values
    return value.item() if isinstance(value, np.generic) else value  # numbers go to a kernel by value


def _applied(name: str, *operands: Any) -> StrictArray:
    operations[name] += 1
    return StrictArray(_FUNCTIONS[name](*map(_operand, operands)))


def _primitive() -> str:
    """The file of a primitive that reads memory of the device; "" where a check does, or a simulated world, which watches its messages."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename.removeprefix(_PACKAGE)
        if name.startswith(("primitives/", "worlds/")):
            return name if name.startswith("primitives/") and "/subjects/" not in name else ""
        frame = frame.f_back
    return ""


def _dtype(given: Any) -> Any:
    return getattr(xp, np.dtype(given).name)


def _empty(shape: Any, dtype: Any = float, order: str = "C") -> StrictArray:
    return StrictArray(xp.empty(shape, dtype=_dtype(dtype), device=DEVICE))


def _array(values: Any, dtype: Any = None, copy: bool = True, order: str = "C") -> StrictArray:
    read = np.array(values, dtype)
    return StrictArray(xp.asarray(read, dtype=_dtype(read.dtype)).to_device(DEVICE))


def _concatenate(parts: Sequence[StrictArray], axis: int = 0) -> StrictArray:
    return StrictArray(xp.concat([part.values for part in parts], axis=axis))


def _may_share_memory(a: StrictArray, b: StrictArray) -> bool:
    return bool(np.may_share_memory(a._layout, b._layout))


def _supports(memory: str, name: str) -> bool:
    return memory.startswith("torch") or name not in ("bfloat16", *(("float16",) if memory == "cupy" else ()))


@contextmanager
def strict_stand_in() -> Iterator[None]:
    """Let array-api-strict's device be CuPy's, without kernels, which take addresses, and without its half precision, which it lacks."""
    with cupy_stand_in() as cupy, patch.object(kernels, "_has_kernels", lambda: False):
        operations.clear()
        functions = {"empty": _empty, "array": _array, "asarray": _array, "concatenate": _concatenate}
        with (
            patch.multiple(cupy, ndarray=StrictArray, may_share_memory=_may_share_memory, **functions),
            patch.object(arrays, "supports", _supports),
        ):
            yield
