"""The one module that knows the array libraries: NumPy, torch and (where installed) CuPy.

array-api-compat gives the common namespace; what it cannot say is a named function here. No other file asks
which library an array belongs to.
"""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

import array_api_compat
import numpy as np

from adjointlab.core.dtypes import DTYPES, Dtype, dtype

__all__ = [
    "LIBRARIES",
    "add",
    "add_into",
    "clear",
    "conjugate",
    "copy",
    "copy_into",
    "dtype_of",
    "empty",
    "from_message",
    "from_numpy",
    "installed",
    "is_array",
    "is_row_major",
    "is_writable",
    "library_of",
    "may_share_memory",
    "message",
    "scale",
    "supports",
    "to_numpy",
    "to_sum",
    "zeros",
]

Array = Any
"""An array of any of the libraries; they share no type."""

LIBRARIES = ("numpy", "torch", "cupy")

_LIBRARY_OF: dict[type, str] = {}
"""By type, those that were asked for: every call of every operator asks."""

_HUGE = 2**22
"""Bytes from which NumPy asks for huge pages."""

# torch and CuPy are looked for in sys.modules: an array of a library that nobody imported does not exist.


def installed(library: str) -> bool:
    """Whether `library` can be imported."""
    return importlib.util.find_spec(library) is not None


def supports(library: str, name: str) -> bool:
    """Whether arrays of `library` come in the element type `name`."""
    return library == "torch" or name != "bfloat16"


def is_array(value: object) -> bool:
    """Whether `value` is an array of one of the libraries."""
    try:
        library_of(value)
    except TypeError:
        return False
    return True


def library_of(array: Array) -> str:
    """The library that `array` belongs to; `TypeError` for anything that is not an array.

    A NumPy scalar is an array of order 0: NumPy's arithmetic turns the one into the other.
    """
    library = _LIBRARY_OF.get(type(array))
    if library is None:
        library = _LIBRARY_OF[type(array)] = _library_of(array)
    return library


def dtype_of(array: Array) -> Dtype:
    """The element type of `array`; `ValueError` for one that the lab does not know."""
    return _named(array.dtype)


def empty(shape: Sequence[int], name: str, like: Array | str) -> Array:
    """An array of uninitialised memory in the library (and on the device) of `like`."""
    if isinstance(like, str):
        module = _module(like)
        return module.empty(tuple(shape), dtype=_native(like, name))
    library = library_of(like)
    if library == "torch":
        if like.device.type == "cpu" and math.prod(shape) * dtype(name).itemsize >= _HUGE:
            return _empty_torch(tuple(shape), name)
        return like.new_empty(tuple(shape), dtype=_native(library, name))
    return _module(library).empty(tuple(shape), dtype=_native(library, name))


def zeros(shape: Sequence[int], name: str, like: Array | str) -> Array:
    """An array of zeros in the library (and on the device) of `like`."""
    result = empty(shape, name, like)
    clear(result)
    return result


def copy(array: Array) -> Array:
    """A fresh row-major copy of `array`, whatever its memory order; torch copies are outside the graph."""
    result = empty(array.shape, dtype_of(array).name, array)
    copy_into(result, array)
    return result


def clear(array: Array) -> None:
    """K_b: b <- 0 (eq. 6). Assignment, so that NaN and inf do not survive."""
    array[...] = 0


def copy_into(target: Array, source: Array) -> None:
    """C_{a->b} in place: b <- a (eq. 9)."""
    target[...] = _detached(source)


def add_into(target: Array, source: Array) -> None:
    """S_{a->b}: b <- b + a (eq. 7)."""
    if isinstance(target, np.generic):
        raise TypeError("target: a NumPy scalar cannot be added into; index an array of order 0 with [...]")
    target += _detached(source)


def add(a: Array, b: Array) -> Array:
    """a + b, an array of order 0 where NumPy gives a scalar."""
    return _not_scalar(a + b)


def scale(scalar: complex, array: Array) -> Array:
    """c a, an array of order 0 where NumPy gives a scalar."""
    return _not_scalar(scalar * array)


def conjugate(array: Array) -> Array:
    """The complex conjugate, as a new array where the type is complex, `array` itself where it is real."""
    if not dtype_of(array).is_complex:
        return array
    return array.conj_physical() if library_of(array) == "torch" else _not_scalar(array.conj())


def from_numpy(array: np.ndarray[Any, Any], name: str, library: str) -> Array:
    """A new array of `library` and type `name` with the values of `array`."""
    if library == "torch":
        import torch

        return torch.from_numpy(np.array(array, order="C")).to(_native(library, name))
    return _module(library).array(array, dtype=_native(library, name), order="C")


def to_numpy(array: Array) -> np.ndarray[Any, Any]:
    """The values as a NumPy array; bfloat16 widens to float32, which holds it exactly. May share memory."""
    library = library_of(array)
    if library == "numpy":
        return np.asarray(array)
    if library == "cupy":
        return np.asarray(array.get())
    detached = array.detach().resolve_conj().resolve_neg()
    if str(detached.dtype) == "torch.bfloat16":
        detached = detached.float()
    return np.asarray(detached.cpu().numpy())


def message(array: Array) -> np.ndarray[Any, Any]:
    """`array`'s memory as a row-major NumPy buffer that MPI can move, without a copy where it is row-major
    already.

    Element types that MPI or NumPy has no name for (float16, bfloat16) become bytes: they can be moved, not
    summed; see :func:`to_sum`.
    """
    if library_of(array) == "torch":
        import torch

        detached = array.detach().resolve_conj().resolve_neg().contiguous()
        if detached.dtype == torch.bfloat16:
            detached = detached.view(torch.float16)
        contiguous = np.asarray(detached.numpy())
    else:
        contiguous = np.ascontiguousarray(to_numpy(array)).reshape(array.shape)
    if contiguous.dtype == np.float16:
        return contiguous.reshape(contiguous.shape or (1,)).view(np.uint8)
    return contiguous


def is_row_major(array: Array) -> bool:
    """Whether :func:`message` of the array is its own memory, so that it can be received into."""
    if library_of(array) == "torch":
        return bool(array.is_contiguous() and not array.is_conj() and not array.is_neg())
    return bool(array.flags.c_contiguous)


def is_writable(array: Array) -> bool:
    """Whether `array` may be written into: not if it is read-only, nor if torch would record that."""
    library = library_of(array)
    if library == "torch":
        return not array.requires_grad or not sys.modules["torch"].is_grad_enabled()
    return library != "numpy" or bool(array.flags.writeable)


def may_share_memory(a: Array, b: Array) -> bool:
    """Whether the stretches of memory that two arrays of one library lie in overlap."""
    if (library := library_of(a)) != "torch":
        return bool(_module(library).may_share_memory(a, b))
    (start, stop), (first, last) = _stretch(a), _stretch(b)
    return max(start, first) < min(stop, last)


def to_sum(array: Array) -> np.ndarray[Any, Any]:
    """The values as a row-major NumPy buffer of a type that MPI can sum: half precisions widen to float32.

    May share memory with `array`: what is received must not be received here.
    """
    values = to_numpy(array)
    wide = np.float32 if values.dtype == np.float16 else values.dtype
    return np.ascontiguousarray(values, dtype=wide).reshape(values.shape)


def from_message(values: np.ndarray[Any, Any], name: str, like: Array) -> Array:
    """The inverse of :func:`to_sum`: an array of `like`'s library with the values rounded to type `name`."""
    result = empty(values.shape, name, like)
    copy_into(result, from_numpy(values, _wide(name), library_of(like)))
    return result


def _empty_torch(shape: tuple[int, ...], name: str) -> Array:
    """A torch tensor in NumPy's memory, which asks the system for huge pages.

    torch's own is taken from the system anew each time, in pages of 4 KiB; to fault these in costs several times what is then
    written there.
    """
    import torch

    plain = "float16" if name == "bfloat16" else name  # which NumPy has not, but as wide
    return torch.from_numpy(np.empty(shape, plain)).view(_native("torch", name))


def _stretch(tensor: Array) -> tuple[int, int]:
    """The addresses between which the elements of a torch tensor lie; the first one twice if it has none."""
    start, span = tensor.data_ptr(), tensor.numel()
    if span and not tensor.is_contiguous():
        span = 1 + sum(
            (side - 1) * stride for side, stride in zip(tensor.shape, tensor.stride(), strict=True)
        )
    return start, start + span * tensor.element_size()


def _not_scalar(value: Array) -> Array:
    return np.asarray(value) if isinstance(value, np.generic) else value


def _wide(name: str) -> str:
    return "float32" if DTYPES[name].itemsize == 2 else name


def _detached(array: Array) -> Array:
    return array.detach() if "torch" in sys.modules and library_of(array) == "torch" else array


def _library_of(array: object) -> str:
    if isinstance(array, np.ndarray | np.generic):
        return "numpy"
    if array_api_compat.is_torch_array(array):
        return "torch"
    if array_api_compat.is_cupy_array(array):
        return "cupy"
    raise TypeError(f"a {type(array).__name__} is no NumPy, torch or CuPy array")


@cache
def _named(native: Any) -> Dtype:
    return dtype(str(native).removeprefix("torch."))


@cache
def _native(library: str, name: str) -> Any:
    if not supports(library, dtype(name).name):
        raise ValueError(f"dtype: {library} has no {name}")
    return getattr(_module(library), name)


@cache
def _module(library: str) -> Any:
    if library not in LIBRARIES:
        raise ValueError(f"library: {library!r} is not one of {', '.join(LIBRARIES)}")
    return importlib.import_module(library)
