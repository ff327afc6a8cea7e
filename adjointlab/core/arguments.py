"""Checks that an array is what a space declares on a rank.

Operators check their arguments before their first message, so that a wrong one raises an error that names it on the rank that has it,
instead of a hang or a truncated message on another.
"""

from __future__ import annotations

from collections.abc import Sequence

from adjointlab.core import arrays
from adjointlab.core.space import Tensor
from adjointlab.spelling import described_type
from adjointlab.typing import Array

__all__ = [
    "batch_shape",
    "check_argument",
    "check_arguments",
    "check_number",
    "check_out",
    "check_writable",
    "mismatch",
]


def batch_shape(tensor: Tensor, array: Array, rank: int) -> tuple[int, ...]:
    """Return (b,) for an array of the shape (*local shape of `tensor` on `rank`, b) with b of at least 1, else ()."""
    shape = tuple(map(int, array.shape))
    outer, last = shape[:-1], shape[-1:]
    return last if outer == tensor.layout.local_shape(rank) and all(last) else ()


def mismatch(tensor: Tensor, value: object, rank: int, batch: tuple[int, ...] | None = None) -> str:
    """Describe how `value` differs from a local tensor of `tensor` on `rank`; "" if it does not.

    `batch` is the batch shape that it must have; by default any will do.
    """
    if not batch and _is_local(tensor, value, rank):
        return ""
    layout = tensor.layout
    if not arrays.is_array(value):
        return f"{described_type(value)} on rank {rank}, not a NumPy, torch or CuPy array (numpy.asarray makes one)"
    shape, local = tuple(map(int, value.shape)), layout.local_shape(rank)
    if not layout.partition.is_active(rank):
        if 0 in shape:
            return ""
        return (
            f"shape {shape} on rank {rank}, which is inactive in the partition {layout.partition}; it holds a zero-volume tensor, "
            f"such as one of shape {local}"
        )
    # A local shape has a fixed number of dimensions, so an additional one can only be a batch.
    if batch is None:
        batch = batch_shape(tensor, value, rank)
    if shape != local + batch:
        return (
            f"shape {shape} on rank {rank}, but the layout {layout.without_workers} over {layout.partition} gives it {local}"
            + (" in a batch of {}".format(*batch) if batch else "")
        )
    if (name := arrays.dtype_name(value)) != tensor.dtype:
        return f"{name} on rank {rank}, but the operator was made for {tensor.dtype}"
    return ""


def _is_local(tensor: Tensor, value: object, rank: int) -> bool:
    """Return True for the local tensor of `tensor` on `rank` without a batch dimension."""
    return arrays.matches(value, tensor.layout.local_shapes[rank], tensor.dtype)


def check_argument(tensor: Tensor, array: object, rank: int, name: str = "") -> tuple[int, ...]:
    """Raise unless `array`, called `name` (default: the tensor's), can be the local tensor of `tensor` on `rank`.

    An active rank holds the layout's local shape in the declared element type, an inactive one any tensor without elements. A
    batch of local tensors has an additional trailing dimension of at least 1 on all ranks. On an inactive rank the shape
    (*layout.local_shape(rank), b), which is (0, ..., 0, b), means that the others hold a batch of b; any other shape without
    elements means that there is no batch.

    Returns the batch shape, () or (b,). Raises `TypeError` if `array` is not an array, else `ValueError`, each naming the
    argument and the rank.
    """
    if arrays.matches_on_host(array, tensor.layout.local_shapes[rank], tensor.dtype):
        return ()
    if fault := arrays.without_memory(array):
        raise ValueError(f"{name or tensor.name}: on rank {rank} it {fault}")
    if where := arrays.foreign_device(array):
        raise ValueError(
            f"{name or tensor.name}: lies on rank {rank} {where}; move it there, or make that device the current one"
        )
    if _is_local(tensor, array, rank):
        return ()
    found = mismatch(tensor, array, rank)
    if not arrays.is_array(array):
        raise TypeError(f"{name or tensor.name}: {found}; pass its local tensor")
    if found:
        raise ValueError(f"{name or tensor.name}: {found}")
    return batch_shape(tensor, array, rank)


def check_arguments(tensors: Sequence[Tensor], given: Sequence[Array], rank: int) -> tuple[int, ...]:
    """Raise unless `given` are the local tensors of all the `tensors` on `rank`, in arrays of one library, with one batch shape.

    Returns the batch shape, () or (b,). Raises as :func:`check_argument` does.
    """
    if _are_plain(tensors, given, rank):
        return ()
    check_number(tensors, given, rank)
    (first, first_array), *others = zip(tensors, given, strict=True)
    batch = check_argument(first, first_array, rank)
    for tensor, array in others:
        if check_argument(tensor, array, rank) != batch:
            raise ValueError(
                f"{tensor.name}: shape {tuple(array.shape)} on rank {rank}, but {first.name} has {tuple(first_array.shape)}; "
                "all arguments come in one batch, or none does"
            )
        _check_library(tensor.name, array, first_array, first.name, rank)
    return batch


def _are_plain(tensors: Sequence[Tensor], given: Sequence[Array], rank: int) -> bool:
    """Return True for the local tensors of all `tensors`, of one class, on the host and not batched: the usual case."""
    if len(given) != len(tensors):
        return False
    for tensor, array in zip(tensors, given, strict=True):
        if type(array) is not type(given[0]):
            return False
        if not arrays.matches_on_host(array, tensor.layout.local_shapes[rank], tensor.dtype):
            return False
    return True


def check_number(tensors: Sequence[Tensor], given: Sequence[Array], rank: int) -> None:
    """Raise `ValueError` unless there are as many `given` arguments on `rank` as `tensors`."""
    if len(given) != len(tensors):
        names = ", ".join(tensor.name for tensor in tensors)
        raise ValueError(
            f"arguments: {len(given)} on rank {rank}, but the operator takes {len(tensors)}: {names}"
        )


def check_out(
    tensor: Tensor,
    out: Array,
    arguments: Sequence[Array],
    rank: int,
    batch: tuple[int, ...],
    name: str = "out",
) -> None:
    """Raise unless the local tensor of `tensor` that is computed from `arguments` can be written into `out`.

    `out` is such a local tensor, with the same batch shape, in writable memory of the arguments' library that they do not
    share. Raises as :func:`check_argument` does.
    """
    if check_argument(tensor, out, rank, name) != batch:
        raise ValueError(
            f"{name}: shape {tuple(out.shape)} on rank {rank}, but the argument comes in "
            + ("a batch of {}".format(*batch) if batch else "no batch")
        )
    check_writable(name, out, rank)
    for argument in arguments:
        _check_library(name, out, argument, "the argument", rank)
        if arrays.may_share_memory(out, argument):
            raise ValueError(
                f"{name}: shares memory with the argument on rank {rank}, which is read while it is written"
            )


def check_writable(name: str, array: Array, rank: int) -> None:
    """Raise `ValueError` for an array that must not be written into."""
    if not arrays.is_writable(array):
        raise ValueError(
            f"{name}: an array on rank {rank} that must not be written into: it is read-only, or torch records its gradient"
        )


def _check_library(name: str, array: Array, other: Array, other_name: str, rank: int) -> None:
    # The types are nearly always equal; they also differ for subclasses of one library's array class.
    if type(array) is not type(other):
        library, expected = arrays.library_of(array), arrays.library_of(other)
        if library != expected:
            raise ValueError(
                f"{name}: a {library} array on rank {rank}, but {other_name} is a {expected} array"
            )
    on_device = arrays.is_on_device(array) or arrays.is_on_device(other)
    if on_device and arrays.device_of(array) != arrays.device_of(other):
        place, expected_place = arrays.place_name(array), arrays.place_name(other)
        raise ValueError(f"{name}: lies on {place} on rank {rank}, but {other_name} lies on {expected_place}")
