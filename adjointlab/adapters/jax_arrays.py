"""Arrays of JAX, and conversions to and from those of other libraries."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, TypeAlias

import numpy as np

from adjointlab.core import arrays
from adjointlab.typing import Array, NumpyArray

__all__ = ["Global", "from_jax", "in_jax", "in_library", "precision", "put"]

_WIDE: Final = frozenset({"float64", "complex128", "int64"})

Global: TypeAlias = Any
"""A `jax.Array` with all its shards on a mesh."""


def precision(*given: Array) -> AbstractContextManager[Any]:
    """Context with 64-bit types if an array has one; else with the user's configuration."""
    import jax

    return jax.enable_x64(True) if not _WIDE.isdisjoint(map(arrays.dtype_name, given)) else nullcontext()


def in_jax(array: Array) -> Global:
    """An array of any library as one of JAX."""
    return put(arrays.to_numpy(array), arrays.dtype_name(array))


def put(array: NumpyArray, dtype: str, device: Any = None) -> Global:
    """An array of that element type on a device."""
    import jax

    return jax.device_put(array.astype(jax.numpy.dtype(dtype)), device or jax.devices("cpu")[0])


def in_library(like: Array, found: Sequence[Any], names: Sequence[str]) -> tuple[Array, ...]:
    """Arrays of JAX as arrays of the library of `like`, with the element types `names`."""
    library = arrays.library_of(like)
    return tuple(from_jax(each, name, library) for each, name in zip(found, names, strict=True))


def from_jax(array: Any, name: str, library: str) -> Array:
    """An array of JAX as one of `library`, with the element type `name`."""
    return arrays.from_numpy(np.array(array, arrays.dtype(name).in_numpy), name, library)
