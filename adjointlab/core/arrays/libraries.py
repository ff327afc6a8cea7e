"""The library that an array belongs to, and its native element types.

The libraries share no base class, so signatures use the protocol :class:`adjointlab.typing.Array`, and :func:`is_torch` narrows it
where torch's interface differs.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard, cast

import array_api_compat
import numpy as np

from adjointlab.core.arrays.element_types import Dtype, dtype
from adjointlab.spelling import described_type
from adjointlab.typing import Array, NumpyArray

if TYPE_CHECKING:
    import torch

__all__ = [
    "LIBRARIES", "dtype_name", "dtype_of", "is_array", "is_scalar", "is_torch", "known_library", "library_of", "matches",
    "matches_on_host", "module", "name_of", "native", "supports",
]  # fmt: skip

LIBRARIES = ("numpy", "torch", "cupy")

_LIBRARY_OF: dict[type, str] = {}
"""Cache of :func:`library_of` by type: every call of every operator needs it, and the libraries' own tests are slow."""


def supports(memory: str, name: str) -> bool:
    """Return True if a library, or that of a memory, has the element type `name`."""
    return memory.startswith("torch") or name != "bfloat16"


def is_array(value: object) -> TypeGuard[Array]:
    """Return True for an array of one of the libraries."""
    try:
        library_of(value)
    except TypeError:
        return False
    return True


def matches(value: object, shape: tuple[int, ...], name: str) -> bool:
    """Return True for an array of any library with this shape and element type; anything else is False, not an error."""
    # Only types of arrays are in the cache: this takes one look-up, where `is_array` takes three calls. A torch.Size is a tuple.
    if type(value) not in _LIBRARY_OF and not is_array(value):
        return False
    array: Any = value
    return bool(array.shape == shape) and name_of(array.dtype) == name


def library_of(array: object) -> str:
    """Return the library that `array` belongs to; raise `TypeError` for anything that is not an array.

    A NumPy scalar is an array of order 0: NumPy's arithmetic turns the one into the other.
    """
    library = _LIBRARY_OF.get(type(array))
    if library is None:
        library = _LIBRARY_OF[type(array)] = _library_of(array)
    return library


def known_library(value: object) -> str | None:
    """Return the library that `value` belongs to, `None` if it is not an array."""
    library = _LIBRARY_OF.get(type(value))
    if library is None and is_array(value):
        library = library_of(value)
    return library


def dtype_name(array: Array) -> str:
    """Return the name of `array`'s element type, whether or not the lab knows it."""
    return name_of(array.dtype)


def dtype_of(array: Array) -> Dtype:
    """Return the element type of `array`; raise `ValueError` for one that the lab does not know."""
    return dtype(name_of(array.dtype))


def is_scalar(value: object) -> bool:
    """Return True for a NumPy scalar."""
    return isinstance(value, np.generic)


def is_torch(array: object) -> TypeGuard[torch.Tensor]:
    """Return True for a tensor of torch."""
    return (_LIBRARY_OF.get(type(array)) or library_of(array)) == "torch"


def _library_of(array: object) -> str:
    # array-api-compat looks for torch and CuPy in sys.modules: an array of a library that was not imported cannot exist.
    if isinstance(array, np.ndarray | np.generic):
        return "numpy"
    if array_api_compat.is_torch_array(array):
        return "torch"
    if array_api_compat.is_cupy_array(array):
        return "cupy"
    raise TypeError(f"{described_type(array)} is not a NumPy, torch or CuPy array")


def matches_on_host(value: object, shape: tuple[int, ...], name: str) -> bool:
    """Return :func:`matches` for a host array; False for one on a device.

    In a single function, for speed: every call of every operator comes here, and nearly always gets True.
    """
    library = _LIBRARY_OF.get(type(value)) or known_library(value)
    array: Any = value
    on_host = library == "numpy" or (library == "torch" and array.is_cpu and _is_strided(array.layout))
    return on_host and bool(array.shape == shape) and name_of(array.dtype) == name


@cache
def _is_strided(layout: object) -> bool:
    return str(layout) == "torch.strided"


def without_memory(array: object) -> str:
    """Describe a tensor without memory that other code can read, a sparse one or one on the meta device; "" for any other array."""
    tensor: Any = array
    if known_library(array) != "torch":
        return ""
    if tensor.is_meta:
        return "lies on the device meta, which has no values"
    return (
        "" if _is_strided(tensor.layout) else f"has the layout {tensor.layout}; give it as tensor.to_dense()"
    )


@cache
def name_of(native: object) -> str:
    """Return the name of a library's own element type."""
    return str(native).removeprefix("torch.")


@cache
def native(library: str, name: str) -> Any:
    """Return the library's own element type called `name`; raise `ValueError` if it has none."""
    if not supports(library, dtype(name).name):
        raise ValueError(f"dtype: {library} has no {name}")
    return getattr(module(library), name)


class _Namespace(Protocol):
    """Functions of the libraries' modules; only torch has `from_numpy`, and only the others have `order` and `may_share_memory`."""

    def empty(self, shape: tuple[int, ...], *, dtype: object) -> Array: ...
    def from_numpy(self, array: NumpyArray, /) -> Array: ...
    def array(self, values: object, *, dtype: object, order: str) -> Array: ...
    def may_share_memory(self, a: Array, b: Array, /) -> bool: ...


@cache
def module(library: str) -> _Namespace:
    """Return the library's module, imported if need be; raise `ValueError` for an unknown name."""
    if library not in LIBRARIES:
        raise ValueError(f"library: {library!r} is not one of {', '.join(LIBRARIES)}")
    return cast(_Namespace, importlib.import_module(library))
