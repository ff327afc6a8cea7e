"""Conversions between the libraries, and to the buffers that MPI moves and sums."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from adjointlab.core.arrays.element_types import DTYPES, dtype
from adjointlab.core.arrays.libraries import is_torch, library_of, module, name_of, native, supports
from adjointlab.core.arrays.memory import copy_into, empty
from adjointlab.typing import Array, NumpyArray

if TYPE_CHECKING:
    import torch

__all__ = ["from_numpy", "from_summable", "in_numpy", "message", "summable", "to_numpy"]


def from_numpy(array: NumpyArray, name: str, library: str) -> Array:
    """Return a new array of `library` and type `name` with the values of `array`."""
    if library == "torch":
        import torch

        return torch.from_numpy(np.array(array, order="C")).to(native(library, name))
    return module(library).array(array, dtype=native(library, name), order="C")


def to_numpy(array: Array) -> NumpyArray:
    """Return the values as a NumPy array, which may share memory; bfloat16 widens to float32, which holds it exactly."""
    if isinstance(array, np.ndarray):
        return np.asarray(array)
    if is_torch(array):
        detached = _resolved(array)
        return np.asarray((detached.float() if _is_bfloat16(detached) else detached).cpu().numpy())
    native: Any = array
    return np.asarray(native.get() if library_of(array) == "cupy" else native)


def message(array: Array) -> NumpyArray:
    """Return a row-major NumPy buffer that MPI can move: `array`'s own memory where that is row-major, else a copy.

    Element types that MPI or NumPy has no name for (float16, bfloat16) become bytes: they can be moved, not summed; see
    :func:`summable`.
    """
    if isinstance(array, np.ndarray) and array.flags.c_contiguous and array.dtype != np.float16:
        return array  # first: nearly every call
    if is_torch(array):
        detached = _resolved(array).contiguous()
        # NumPy has no bfloat16. float16 is as wide, and the bytes are all that is moved.
        contiguous = (
            detached.view(native("torch", "float16")) if _is_bfloat16(detached) else detached
        ).numpy()
    else:
        contiguous = np.ascontiguousarray(to_numpy(array)).reshape(array.shape)
    if contiguous.dtype == np.float16:
        return contiguous.reshape(contiguous.shape or (1,)).view(np.uint8)
    return contiguous


def in_numpy(*given: Array) -> tuple[Array, ...]:
    """Return views of the arrays' memory as NumPy arrays, outside any graph, if NumPy can hold all of them, else `given`.

    Views and copies of these cost a fifth of what torch takes for them. What is written here is no change that torch
    knows of: see :func:`note_change`.
    """
    views: list[Array] = []
    for array in given:
        if isinstance(array, np.ndarray):
            views.append(array)
        elif is_torch(array) and array.dtype in _of_numpy_too():
            try:
                views.append((array.detach() if array.requires_grad else array).numpy())
            except (RuntimeError, TypeError):  # a lazy conjugate or negative, or on another device
                return given
        else:
            return given
    return tuple(views)


def summable(array: Array) -> NumpyArray:
    """Return the values as a row-major NumPy buffer of a type that MPI can sum: half precisions widen to float32.

    May share memory with `array`, or may not: a result must not be received here.
    """
    values = to_numpy(array)
    wide = np.float32 if values.dtype == np.float16 else values.dtype
    return np.ascontiguousarray(values, dtype=wide).reshape(values.shape)


def from_summable(values: NumpyArray, name: str, like: Array) -> Array:
    """Invert :func:`summable`: return an array of `like`'s library with the values rounded to type `name`."""
    wide = "float32" if dtype(name).itemsize == 2 else name
    result = empty(values.shape, name, like)
    copy_into(result, from_numpy(values, wide, library_of(like)))
    return result


@cache
def _of_numpy_too() -> frozenset[object]:
    """Return torch's element types that NumPy has too."""
    return frozenset(native("torch", name) for name in DTYPES if supports("numpy", name))


def _is_bfloat16(tensor: torch.Tensor) -> bool:
    return name_of(tensor.dtype) == "bfloat16"


def _resolved(tensor: torch.Tensor) -> torch.Tensor:
    """Return `tensor` outside the graph, with pending conjugations and negations carried out."""
    # Tensor.numpy() refuses a tensor that requires a gradient or that is a lazy conjugate or negative.
    return tensor.detach().resolve_conj().resolve_neg()
