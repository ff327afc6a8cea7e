"""Memory of arrays: allocated, cleared, copied and added to, in the library of a given array.

The generators of :mod:`adjointlab.core.program` on actual buffers.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from adjointlab.core.arrays.element_types import dtype
from adjointlab.core.arrays.libraries import dtype_of, is_scalar, is_torch, library_of, module, native
from adjointlab.typing import Array, NumpyArray

if TYPE_CHECKING:
    import torch

__all__ = [
    "add", "add_into", "clear", "conjugate", "copy", "copy_into", "empty", "empty_native", "is_row_major", "is_writable", "joined", "may_share_memory",
    "note_change", "outside_inference_mode", "scale", "zeros",
]  # fmt: skip

_HUGE_PAGE_BYTES = 2**22
"""Size from which NumPy advises the kernel to back an array with huge pages [numpy-14216]."""


def empty(shape: Sequence[int], name: str, like: Array | str) -> Array:
    """Return uninitialised memory in the library and on the device of `like`, an array or a memory's name."""
    if isinstance(like, np.ndarray):  # first: it is nearly every call, and a test by type is quickest
        return np.empty(tuple(shape), native("numpy", name))
    if not isinstance(like, str) and is_torch(like):
        if like.is_cpu and math.prod(shape) * dtype(name).itemsize >= _HUGE_PAGE_BYTES:
            return _empty_torch(tuple(shape), name)
        return like.new_empty(tuple(shape), dtype=native("torch", name))
    library = like if isinstance(like, str) else library_of(like)
    if library == "torch-cuda":
        import torch

        return torch.empty(tuple(shape), dtype=native("torch", name), device="cuda")
    return module(library).empty(tuple(shape), dtype=native(library, name))


def empty_native(like: Array, shape: Sequence[int], name: str) -> Array:
    """Return uninitialised memory where `like` lies, of its library's type called `name`, which the lab need not know."""
    if isinstance(like, np.ndarray):
        return np.empty(tuple(shape), name)
    library = library_of(like)
    kind = getattr(module(library), name)
    fresh: Array = (
        like.new_empty(tuple(shape), dtype=kind)
        if is_torch(like)
        else module(library).empty(tuple(shape), dtype=kind)
    )
    return fresh


def zeros(shape: Sequence[int], name: str, like: Array | str) -> Array:
    """Return zeros in the library (and on the device) of `like`, an array or a memory's name."""
    result = empty(shape, name, like)
    clear(result)
    return result


def outside_inference_mode(like: Array) -> AbstractContextManager[None]:
    """Return a context in which to make memory of `like`'s library, and views of it, that later calls reuse."""
    # A first call may come in inference mode, and tensors that torch makes there can never be used in a graph.
    return sys.modules["torch"].inference_mode(False) if is_torch(like) else nullcontext()


def copy(array: Array) -> Array:
    """Return a fresh row-major copy of `array`, whatever its memory order; torch copies are outside the graph."""
    # Not by torch's clone(), which keeps the memory order of a strided tensor: MPI needs row-major buffers.
    result = empty(array.shape, dtype_of(array).name, array)
    copy_into(result, array)
    return result


def joined(parts: Sequence[Array]) -> Array:
    """Concatenate the elements of all parts, of one library and element type, in fresh memory of order 1."""
    if isinstance(parts[0], np.ndarray):
        flat_of_numpy: Array = np.concatenate(cast("Sequence[NumpyArray]", parts), axis=None)
        return flat_of_numpy
    flat = empty((sum(math.prod(part.shape) for part in parts),), dtype_of(parts[0]).name, parts[0])
    start = 0
    for part in parts:
        stop = start + math.prod(part.shape)
        copy_into(flat[start:stop], part.reshape((-1,)))
        start = stop
    return flat


def clear(array: Array) -> None:
    """K_b: b <- 0 [Hewett21, eq. 6]."""
    # Assigned, not multiplied by 0 or subtracted from itself: NaN and inf would survive that [horovod-3505].
    array[...] = 0


def copy_into(target: Array, source: Array) -> None:
    """C_{a->b} in place: b <- a [Hewett21, eq. 9]."""
    # Detached, since torch would record the assignment in the graph.
    target[...] = source if isinstance(source, np.ndarray) else _detached(source)


def add_into(target: Array, source: Array) -> None:
    """S_{a->b}: b <- b + a [Hewett21, eq. 7]."""
    if type(target) is not np.ndarray and is_scalar(target):
        # On a scalar += rebinds the name, and the caller's memory does not change.
        raise TypeError("target: a NumPy scalar cannot be added into; index an array of order 0 with [...]")
    target += source if isinstance(source, np.ndarray) else _detached(source)


def add(a: Array, b: Array) -> Array:
    """Return a + b; an array of order 0 where NumPy gives a scalar."""
    return _not_scalar(a + b)


def scale(scalar: complex, array: Array) -> Array:
    """Return c a; an array of order 0 where NumPy gives a scalar."""
    return _not_scalar(scalar * array)


def conjugate(array: Array) -> Array:
    """Return the complex conjugate: a new array if the type is complex, `array` itself if it is real."""
    if not dtype_of(array).is_complex:
        return array
    # torch's conj() is a lazy view of the same memory with a flag, which code that reads raw memory would miss.
    return array.conj_physical() if is_torch(array) else _not_scalar(np.conj(cast(Any, array)))


def note_change(array: Array) -> None:
    """Tell torch that `array`, if it is a tensor, was written into through another view of its memory.

    A backward pass that has saved the tensor then raises, as it does after torch's own assignments.
    """
    if is_torch(array) and not array.is_inference():
        sys.modules["torch"].autograd.graph.increment_version(array)


def is_row_major(array: Array) -> bool:
    """Return True if :func:`message` of the array is its own memory, so that it can be received into."""
    if is_torch(array):
        # A lazy conjugate or negative is contiguous, but its memory does not hold its values.
        return array.is_contiguous() and not array.is_conj() and not array.is_neg()
    native: Any = array
    return bool(native.flags.c_contiguous)


def is_writable(array: Array) -> bool:
    """Return True if `array` may be written into: it is not read-only, and torch would not record the write."""
    if is_torch(array):
        # Unless gradients are off, torch rejects writes into a leaf that requires a gradient, and records those into other tensors.
        return not array.requires_grad or not sys.modules["torch"].is_grad_enabled()
    native: Any = array
    return bool(getattr(native.flags, "writeable", True))  # CuPy's arrays always are, and have no flag


def may_share_memory(a: Array, b: Array) -> bool:
    """Return True if the address ranges of two arrays of one library overlap."""
    # By ranges, not element by element: two interleaved views count as overlapping. That rejects too much, never too little.
    if is_torch(a) and is_torch(b):
        (start, stop), (other_start, other_stop) = _address_range(a), _address_range(b)
        return max(start, other_start) < min(stop, other_stop)
    return bool(module(library_of(a)).may_share_memory(a, b))


def _empty_torch(shape: tuple[int, ...], name: str) -> Array:
    """Return a torch tensor in NumPy's memory, which asks the system for huge pages.

    torch's own allocator requests large blocks from the system each time, in pages of 4 KiB; page faults then cost several times
    as much as writing the data.
    """
    import torch

    numpy_name = "float16" if name == "bfloat16" else name  # of the same width, and in NumPy
    return torch.from_numpy(np.empty(shape, numpy_name)).view(native("torch", name))


def _address_range(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the addresses [start, stop) between which a tensor's elements lie; start == stop if it has none."""
    start, span = tensor.data_ptr(), tensor.numel()
    if not tensor.is_contiguous():  # a tensor without elements always is
        # The last element lies sum((n_k - 1) * stride_k) elements after the first.
        span = 1 + sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + span * tensor.element_size()


def _not_scalar(value: Array) -> Array:
    return np.asarray(value) if is_scalar(value) else value


def _detached(array: Array) -> Array:
    if isinstance(array, np.ndarray):  # first: every copy and add comes here
        return array
    return array.detach() if is_torch(array) else array
