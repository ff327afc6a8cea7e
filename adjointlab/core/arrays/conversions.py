"""Conversions between the libraries, and to the buffers that MPI moves and sums."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from adjointlab.core.arrays.devices import is_on_device
from adjointlab.core.arrays.element_types import DTYPES
from adjointlab.core.arrays.libraries import dtype_of, is_torch, library_of, module, name_of, native, supports
from adjointlab.core.arrays.memory import copy, copy_into, empty, is_row_major
from adjointlab.typing import Array, NumpyArray

if TYPE_CHECKING:
    import torch

__all__ = [
    "HALVES", "elementwise", "empty_with_views", "from_numpy", "from_summable", "in_numpy", "message", "octets", "octets_of_values", "of_library", "resolved", "summable", "summable_values",
    "summing_memory", "to_numpy",
]  # fmt: skip


HALVES: Final = ("float16", "bfloat16")
"""The half precisions, in which MPI cannot sum: their sums are in float32."""


def from_numpy(array: NumpyArray, name: str, memory: str) -> Array:
    """Return a new array in `memory` (a library's name means its host memory), of type `name`, with the values of `array`."""
    if memory.startswith("torch"):
        import torch

        element_type = native("torch", name)
        if array.size:
            tensor = torch.from_numpy(np.array(array, order="C")).to(element_type)
        else:  # NumPy's strides of empty arrays are zero, and torch's `contiguous` would leave them so
            tensor = torch.empty(array.shape, dtype=element_type)
        return tensor.to("cuda") if memory == "torch-cuda" else tensor
    return module(memory).array(array, dtype=native(memory, name), order="C")


def to_numpy(array: Array) -> NumpyArray:
    """Return the values as a NumPy array, which may share memory; bfloat16 widens to float32, which holds it exactly."""
    if isinstance(array, np.ndarray):
        return np.asarray(array)
    (held,) = in_numpy(array)
    if isinstance(held, np.ndarray):
        return held
    if is_torch(array):
        detached = _resolved(array)
        return np.asarray((detached.float() if _is_bfloat16(detached) else detached).cpu().numpy())
    native: Any = array
    return np.asarray(native.get() if library_of(array) == "cupy" else native)


def message(array: Array) -> Array:
    """Return a row-major buffer that MPI can move: `array`'s own memory if that is row-major, else a copy.

    It is a NumPy array or, for an array on a device, one on that device, for :func:`adjointlab.core.transport.over`. Element
    types that MPI or NumPy has no name for (float16, bfloat16) become bytes: they can be moved, not summed; see :func:`summable`.
    """
    if isinstance(array, np.ndarray) and array.flags.c_contiguous and array.dtype != np.float16:
        return array  # first, since it is nearly every call
    if is_on_device(array):
        return _device_message(array, "uint8")
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


def octets_of_values(array: Array) -> bytes:
    """Return the bits of the values in row-major order, copied to the host."""
    (held,) = in_numpy(array)
    if not isinstance(held, np.ndarray):
        held = to_numpy(message(array))
    return bytes(held.tobytes())


def elementwise(array: Array) -> Array:
    """Return :func:`message` of an array with one entry for each element, so that counts are elements: half precisions as 16 bits."""
    if is_on_device(array):
        return _device_message(array, "int16")
    moved: Any = message(array)
    counted: Array = moved.view(np.int16) if moved.dtype == np.uint8 else moved
    return counted


def octets(array: Array) -> Array:
    """Return the bytes of a row-major array on a device, as an array of order 1 that shares its memory."""
    return _viewed(array, "uint8")


def _device_message(array: Array, half: str) -> Array:
    """Return row-major memory on the device of an array; half precisions become elements of the type `half`."""
    outside = resolved(array)
    contiguous = outside if is_row_major(outside) else copy(outside)
    return _viewed(contiguous, half) if name_of(contiguous.dtype) in HALVES else contiguous


def _viewed(array: Array, name: str) -> Array:
    flat: Any = array.reshape((-1,))
    if is_torch(flat) and flat.stride() != (1,):
        # The array has at most one element, so that its stride means nothing, but torch changes the element size only if it is 1.
        flat = flat.as_strided(flat.shape, (1,))
    viewed: Array = flat.view(getattr(module(library_of(flat)), name))
    return viewed


def in_numpy(*given: Array) -> tuple[Array, ...]:
    """Return views of the arrays' memory as NumPy arrays, outside any graph, if NumPy can hold all of them, else `given`.

    Views and copies of these take a fifth of torch's time. Torch does not notice that they are written into: see :func:`note_change`.
    """
    views = []
    for array in given:
        view = _view_in_numpy(array)
        if view is None:
            return given
        views.append(view)
    return tuple(views)


def _view_in_numpy(array: Array) -> NumpyArray | None:
    if isinstance(array, np.ndarray):
        return array
    if is_torch(array) and array.dtype in _of_numpy_too():
        try:
            return (array.detach() if array.requires_grad else array).numpy()
        except (RuntimeError, TypeError):  # a lazy conjugate or negative, or on another device
            return None
    return None


def empty_with_views(shape: tuple[int, ...], name: str, like: Array) -> tuple[Array, Array, Array]:
    """Return :func:`empty` memory, and the views of `like` and of it that :func:`in_numpy` returns.

    A host tensor is made from a NumPy array, which then is its view: torch takes longer to make one.
    """
    (held,) = in_numpy(like)
    if held is like:
        result = empty(shape, name, like)
        return result, like, result
    filled = np.empty(shape, native("numpy", name))
    return module("torch").from_numpy(filled), held, filled


def of_library(view: Array, like: Array) -> Array:
    """Undo :func:`in_numpy`: return `view` as an array of `like`'s library."""
    return module("torch").from_numpy(view) if isinstance(view, np.ndarray) and is_torch(like) else view


def summable(array: Array) -> Array:
    """Return the values as a row-major buffer of a type that MPI can sum: half precisions widen to float32.

    It is a NumPy array, or lies on the device of `array`. It may share memory with `array`, so no result must be received here.
    """
    if type(array) is np.ndarray and array.dtype != np.float16 and array.flags.c_contiguous:
        return array  # first, since it is nearly every call
    if is_on_device(array):
        return message(_widened(array) if dtype_of(array).name in HALVES else array)
    values = to_numpy(array)
    wide = np.float32 if values.dtype == np.float16 else values.dtype
    return np.ascontiguousarray(values, dtype=wide).reshape(values.shape)


def summable_values(array: Array) -> Array:
    """Return the values of :func:`summable` before they are widened or brought into row-major order."""
    return array if is_on_device(array) else to_numpy(array)


def summing_memory(shape: Sequence[int], name: str, like: Array) -> Array:
    """Return memory where `like` lies, to receive a sum of :func:`summable` buffers of values of type `name`."""
    wide = "float32" if name in HALVES else name
    return empty(shape, wide, like if is_on_device(like) else "numpy")


def from_summable(values: Array, name: str, like: Array) -> Array:
    """Invert :func:`summable`: return an array of `like`'s memory with the values rounded to type `name`."""
    result = empty(values.shape, name, like)
    if is_on_device(values):
        copy_into(result, values)
        return result
    host: Any = values
    copy_into(result, from_numpy(host, name, library_of(like)))
    return result


def _widened(array: Array) -> Array:
    result = empty(array.shape, "float32", array)
    copy_into(result, array)
    return result


@cache
def _of_numpy_too() -> frozenset[object]:
    """Return torch's element types that NumPy has too."""
    return frozenset(native("torch", name) for name in DTYPES if supports("numpy", name))


def _is_bfloat16(tensor: torch.Tensor) -> bool:
    return name_of(tensor.dtype) == "bfloat16"


def resolved(array: Array) -> Array:
    """Return an array whose memory holds its values: a tensor of torch outside the graph, and with lazy changes of sign carried out."""
    return _resolved(array) if is_torch(array) else array


def _resolved(tensor: torch.Tensor) -> torch.Tensor:
    """Return `tensor` outside the graph, with pending conjugations and negations carried out."""
    # Tensor.numpy() refuses a tensor that requires a gradient or that is a lazy conjugate or negative.
    return tensor.detach().resolve_conj().resolve_neg()
