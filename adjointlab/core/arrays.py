"""Arrays of NumPy, torch and (where installed) CuPy, and their element types.

This is the one module that knows the libraries: no other file asks which of them an array belongs to. The libraries share
no base class, so signatures are written with the protocol :class:`adjointlab.typing.Array`, and `_is_torch` narrows it where
torch has a spelling of its own.
"""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeGuard, cast

import array_api_compat
import numpy as np

from adjointlab.typing import Array, NumpyArray

if TYPE_CHECKING:
    import torch

__all__ = [
    "DTYPES", "LIBRARIES", "Dtype", "add", "add_into", "clear", "conjugate", "copy", "copy_into", "dtype",
    "dtype_name", "dtype_of", "empty", "from_numpy", "from_summable", "in_numpy", "installed", "is_array",
    "is_dtensor", "is_row_major", "is_writable", "kept", "library_of", "local_gradient", "local_part", "matches",
    "may_share_memory", "message", "note_change", "scale", "summable", "supports", "to_numpy", "warm_up_torch", "zeros",
]  # fmt: skip

LIBRARIES = ("numpy", "torch", "cupy")

_LIBRARY_OF: dict[type, str] = {}
"""Memo of :func:`library_of` by type: every call of every operator asks, and the libraries' own tests are slow."""

_HUGE_PAGE_BYTES = 2**22
"""Size from which NumPy advises the kernel to back an array with huge pages [numpy-14216]."""


@dataclass(frozen=True)
class Dtype:
    """An element type.

    `precision` is the number of bits p for which every integer of magnitude at most 2**p is represented exactly in each real
    component (below 2**p in an integer type); `itemsize` is in bytes; `real` names the type of a component.
    """

    name: str
    kind: Literal["real", "complex", "integer"]
    precision: int
    itemsize: int
    real: str

    @property
    def is_complex(self) -> bool:
        return self.kind == "complex"

    @property
    def is_integer(self) -> bool:
        return self.kind == "integer"

    @property
    def in_numpy(self) -> str:
        """The NumPy type that holds all values: of bfloat16, which NumPy lacks, float32."""
        return "float32" if self.name == "bfloat16" else self.name


# The precision of a bfloat16 is 8: a stored significand of 7 bits and the leading one. Of an integer type it is the number of bits
# without the sign.
DTYPES = {
    entry.name: entry
    for entry in (
        Dtype("float64", "real", 53, 8, "float64"),
        Dtype("float32", "real", 24, 4, "float32"),
        Dtype("float16", "real", 11, 2, "float16"),
        Dtype("bfloat16", "real", 8, 2, "bfloat16"),
        Dtype("complex128", "complex", 53, 16, "float64"),
        Dtype("complex64", "complex", 24, 8, "float32"),
        Dtype("int64", "integer", 63, 8, "int64"),
        Dtype("int32", "integer", 31, 4, "int32"),
    )
}


def dtype(name: str) -> Dtype:
    """Return the element type called `name`; raise `ValueError` naming the legal ones."""
    try:
        return DTYPES[name]
    except (KeyError, TypeError):
        raise ValueError(f"dtype: {name!r} is not one of {', '.join(DTYPES)}") from None


def installed(library: str) -> bool:
    """Return True if `library` can be imported, without importing it."""
    return importlib.util.find_spec(library) is not None


def supports(library: str, name: str) -> bool:
    """Return True if arrays of `library` come in the element type `name`."""
    return library == "torch" or name != "bfloat16"


def is_array(value: object) -> TypeGuard[Array]:
    """Return True for an array of one of the libraries."""
    try:
        library_of(value)
    except TypeError:
        return False
    return True


def matches(value: object, shape: tuple[int, ...], name: str) -> bool:
    """Return True for an array of any library with this shape and element type; anything else is False, not an error."""
    # A type that is in the memo is an array's: one look-up, where `is_array` is three calls. A torch.Size is a tuple.
    if type(value) not in _LIBRARY_OF and not is_array(value):
        return False
    array: Any = value
    return bool(array.shape == shape) and _dtype_name(array.dtype) == name


def library_of(array: object) -> str:
    """Return the library that `array` belongs to; raise `TypeError` for anything that is not an array.

    A NumPy scalar is an array of order 0: NumPy's arithmetic turns the one into the other.
    """
    library = _LIBRARY_OF.get(type(array))
    if library is None:
        library = _LIBRARY_OF[type(array)] = _library_of(array)
    return library


def dtype_name(array: Array) -> str:
    """Return the name of `array`'s element type, whether or not the lab knows it."""
    return _dtype_name(array.dtype)


def dtype_of(array: Array) -> Dtype:
    """Return the element type of `array`; raise `ValueError` for one that the lab does not know."""
    return dtype(_dtype_name(array.dtype))


def empty(shape: Sequence[int], name: str, like: Array | str) -> Array:
    """Return uninitialised memory in the library (and on the device) of `like`, an array or a library's name."""
    if isinstance(like, np.ndarray):  # first: nearly every call, and a test by type is the quickest
        return np.empty(tuple(shape), _native("numpy", name))
    if not isinstance(like, str) and _is_torch(like):
        if like.is_cpu and math.prod(shape) * dtype(name).itemsize >= _HUGE_PAGE_BYTES:
            return _empty_torch(tuple(shape), name)
        return like.new_empty(tuple(shape), dtype=_native("torch", name))
    library = like if isinstance(like, str) else library_of(like)
    return _module(library).empty(tuple(shape), dtype=_native(library, name))


def zeros(shape: Sequence[int], name: str, like: Array | str) -> Array:
    """Return zeros in the library (and on the device) of `like`, an array or a library's name."""
    result = empty(shape, name, like)
    clear(result)
    return result


def kept(like: Array) -> AbstractContextManager[None]:
    """Return a context in which memory of the library of `like` is made, and its views, to be reused by later calls."""
    # What torch makes in inference mode stays unusable in any graph, and a first call may come there.
    return sys.modules["torch"].inference_mode(False) if _is_torch(like) else nullcontext()


def copy(array: Array) -> Array:
    """Return a fresh row-major copy of `array`, whatever its memory order; torch copies are outside the graph."""
    # Not by torch's clone(), which keeps the memory order of a strided tensor: what MPI moves must be row-major.
    result = empty(array.shape, dtype_of(array).name, array)
    copy_into(result, array)
    return result


def clear(array: Array) -> None:
    """K_b: b <- 0 [Hewett21, eq. 6]."""
    # Assigned, not multiplied by 0 or subtracted from itself: NaN and inf would survive that [horovod-3505].
    array[...] = 0


def copy_into(target: Array, source: Array) -> None:
    """C_{a->b} in place: b <- a [Hewett21, eq. 9]."""
    # Detached, else torch would record the assignment as a step of the graph.
    target[...] = source if isinstance(source, np.ndarray) else _detached(source)


def add_into(target: Array, source: Array) -> None:
    """S_{a->b}: b <- b + a [Hewett21, eq. 7]."""
    if _is_scalar(target):
        # On a scalar += rebinds the name and the caller's memory stays as it was.
        raise TypeError("target: a NumPy scalar cannot be added into; index an array of order 0 with [...]")
    target += source if isinstance(source, np.ndarray) else _detached(source)


def add(a: Array, b: Array) -> Array:
    """Return a + b, an array of order 0 where NumPy gives a scalar."""
    return _not_scalar(a + b)


def scale(scalar: complex, array: Array) -> Array:
    """Return c a, an array of order 0 where NumPy gives a scalar."""
    return _not_scalar(scalar * array)


def conjugate(array: Array) -> Array:
    """Return the complex conjugate, a new array where the type is complex, `array` itself where it is real."""
    if not dtype_of(array).is_complex:
        return array
    # torch's conj() is a lazy view of the same memory with a flag, which code that takes raw memory would miss.
    return array.conj_physical() if _is_torch(array) else _not_scalar(np.conj(cast(Any, array)))


def from_numpy(array: NumpyArray, name: str, library: str) -> Array:
    """Return a new array of `library` and type `name` with the values of `array`."""
    if library == "torch":
        import torch

        return torch.from_numpy(np.array(array, order="C")).to(_native(library, name))
    return _module(library).array(array, dtype=_native(library, name), order="C")


def to_numpy(array: Array) -> NumpyArray:
    """Return the values as a NumPy array, which may share memory; bfloat16 widens to float32, which holds it exactly."""
    if isinstance(array, np.ndarray):
        return np.asarray(array)
    if _is_torch(array):
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
    if _is_torch(array):
        detached = _resolved(array).contiguous()
        # NumPy has no bfloat16. float16 is as wide, and the bytes are all that is moved.
        contiguous = (
            detached.view(_native("torch", "float16")) if _is_bfloat16(detached) else detached
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
        elif _is_torch(array) and array.dtype in _of_numpy_too():
            try:
                views.append((array.detach() if array.requires_grad else array).numpy())
            except (RuntimeError, TypeError):  # a lazy conjugate or negative, or on another device
                return given
        else:
            return given
    return tuple(views)


def note_change(array: Array) -> None:
    """Let torch know that `array` was written into through other views of its memory, if it is a tensor of torch.

    A graph that has saved the tensor for its backward pass then refuses it, as it does after torch's own assignments.
    """
    if _is_torch(array) and not array.is_inference():
        sys.modules["torch"].autograd.graph.increment_version(array)


def is_row_major(array: Array) -> bool:
    """Return True if :func:`message` of the array is its own memory, so that it can be received into."""
    if _is_torch(array):
        # A lazy conjugate or negative is contiguous, but its memory does not hold its values.
        return array.is_contiguous() and not array.is_conj() and not array.is_neg()
    native: Any = array
    return bool(native.flags.c_contiguous)


def is_writable(array: Array) -> bool:
    """Return True if `array` may be written into: neither read-only, nor a tensor for which torch would record it."""
    if _is_torch(array):
        # torch refuses to write into a leaf that requires a gradient, and records it elsewhere, unless gradients are off.
        return not array.requires_grad or not sys.modules["torch"].is_grad_enabled()
    native: Any = array
    return library_of(array) != "numpy" or bool(native.flags.writeable)


def may_share_memory(a: Array, b: Array) -> bool:
    """Return True if the address ranges that two arrays of one library lie in overlap."""
    # By ranges, not element by element: two interleaved views are taken to overlap. That refuses too much, never too little.
    if _is_torch(a) and _is_torch(b):
        (start, stop), (other_start, other_stop) = _address_range(a), _address_range(b)
        return max(start, other_start) < min(stop, other_stop)
    return bool(_module(library_of(a)).may_share_memory(a, b))


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


def _empty_torch(shape: tuple[int, ...], name: str) -> Array:
    """Return a torch tensor in NumPy's memory, which asks the system for huge pages.

    torch's own allocator takes large blocks from the system anew each time, in pages of 4 KiB; faulting these in costs
    several times what is then written there.
    """
    import torch

    numpy_name = "float16" if name == "bfloat16" else name  # as wide, and NumPy has it
    return torch.from_numpy(np.empty(shape, numpy_name)).view(_native("torch", name))


def _address_range(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the addresses [start, stop) between which a tensor's elements lie, start == stop if it has none."""
    start, span = tensor.data_ptr(), tensor.numel()
    if span and not tensor.is_contiguous():
        # The last element lies sum((n_k - 1) * stride_k) elements behind the first.
        span = 1 + sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + span * tensor.element_size()


@cache
def _of_numpy_too() -> frozenset[object]:
    """Return torch's element types that NumPy has too."""
    return frozenset(_native("torch", name) for name in DTYPES if supports("numpy", name))


def _not_scalar(value: Array) -> Array:
    return np.asarray(value) if _is_scalar(value) else value


def _is_scalar(value: object) -> bool:
    return isinstance(value, np.generic)


def _is_torch(array: object) -> TypeGuard[torch.Tensor]:
    return (_LIBRARY_OF.get(type(array)) or library_of(array)) == "torch"


def _is_bfloat16(tensor: torch.Tensor) -> bool:
    return _dtype_name(tensor.dtype) == "bfloat16"


def _resolved(tensor: torch.Tensor) -> torch.Tensor:
    """Return `tensor` outside the graph, with pending conjugations and negations carried out."""
    # Tensor.numpy() refuses a tensor that requires a gradient or that is a lazy conjugate or negative.
    return tensor.detach().resolve_conj().resolve_neg()


def _detached(array: Array) -> Array:
    if isinstance(array, np.ndarray):  # first: this is on the way of every copy and add
        return array
    return array.detach() if _is_torch(array) else array


def _library_of(array: object) -> str:
    # array-api-compat looks for torch and CuPy in sys.modules: an array of a library that nobody imported does not exist.
    if isinstance(array, np.ndarray | np.generic):
        return "numpy"
    if array_api_compat.is_torch_array(array):
        return "torch"
    if array_api_compat.is_cupy_array(array):
        return "cupy"
    raise TypeError(f"a {type(array).__name__} is no NumPy, torch or CuPy array")


@cache
def _dtype_name(native: object) -> str:
    return str(native).removeprefix("torch.")


@cache
def _native(library: str, name: str) -> Any:
    if not supports(library, dtype(name).name):
        raise ValueError(f"dtype: {library} has no {name}")
    return getattr(_module(library), name)


class _Namespace(Protocol):
    """The functions that are called of a library's module by one name; `order` and `may_share_memory` are not torch's."""

    def empty(self, shape: tuple[int, ...], *, dtype: object) -> Array: ...
    def array(self, values: object, *, dtype: object, order: str) -> Array: ...
    def may_share_memory(self, a: Array, b: Array, /) -> bool: ...


@cache
def _module(library: str) -> _Namespace:
    if library not in LIBRARIES:
        raise ValueError(f"library: {library!r} is not one of {', '.join(LIBRARIES)}")
    return cast(_Namespace, importlib.import_module(library))


def local_part(tensor: Any) -> Any:
    """The part of a torch tensor that this rank holds, of a DTensor; any other tensor as it is. Gradients pass through.

    A result of a functional collective waits when it is first used, which this is: a caller may need its graph alone.
    """
    local = tensor.to_local() if is_dtensor(tensor) else tensor
    getattr(local, "trigger_wait", lambda: None)()
    return local


def is_dtensor(tensor: object) -> bool:
    """Return True for a DTensor of torch."""
    return hasattr(tensor, "to_local") and hasattr(tensor, "placements")


def local_gradient(leaf: Any) -> Any:
    """The part that this rank holds of the gradient of a leaf; None if it has none.

    DTensor may leave the sum of a gradient for later: it has the placements of its leaf here. Collective then.
    """
    gradient = leaf.grad
    if is_dtensor(gradient) and gradient.placements != leaf.placements:
        gradient = gradient.redistribute(placements=leaf.placements)
    return None if gradient is None else local_part(gradient)


@cache
def warm_up_torch() -> None:
    """Differentiate something small, once in a process: the first time, torch imports modules and starts threads."""
    if not installed("torch"):
        return
    import torch

    with suppress(Exception), torch.enable_grad():  # what is wrong with it shows in the cases
        torch.autograd.backward((torch.ones(2, 2, requires_grad=True) @ torch.ones(2, 2)).sum())
