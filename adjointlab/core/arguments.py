"""Whether an array is what a space declares on a rank; operators ask before they send their first message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from adjointlab.core import arrays
from adjointlab.core.space import Tensor

__all__ = ["batch_shape", "check_argument", "check_arguments", "check_out", "check_writable"]


def batch_shape(tensor: Tensor, array: Any, rank: int) -> tuple[int, ...]:
    """(b,) of an array of the shape (*local shape of `tensor` on `rank`, b) with b of at least 1, else ()."""
    shape, local = tuple(map(int, array.shape)), tensor.layout.local_shape(rank)
    return shape[-1:] if len(shape) == len(local) + 1 and shape[:-1] == local and shape[-1] > 0 else ()


def check_argument(tensor: Tensor, array: Any, rank: int, name: str = "") -> tuple[int, ...]:
    """Raise unless `array`, called `name` (default: the tensor's), can be the local tensor of `tensor` on `rank`.

    An active rank holds the layout's local shape in the declared element type, an inactive one any tensor without
    elements. A batch of local tensors has one trailing dimension more, on all ranks, and it is at least 1. On an inactive
    rank the shape (*layout.local_shape(rank), b), which is (0, ..., 0, b), says that the others hold a batch of b; any other
    shape without elements says that there is none.

    Returns the shape of the batch, () or (b,). Raises `TypeError` for what is no array, else `ValueError`, each naming
    the argument and the rank.
    """
    name = name or tensor.name
    layout = tensor.layout
    if layout.partition.is_active(rank) and arrays.matches(array, layout.local_shape(rank), tensor.dtype):
        return ()  # nearly always, and every call of every operator comes by
    if not arrays.is_array(array):
        raise TypeError(f"{name}: a {type(array).__name__} on rank {rank} is no array; pass its local tensor")
    shape, batch = tuple(map(int, array.shape)), batch_shape(tensor, array, rank)
    if not layout.partition.is_active(rank):
        if 0 not in shape:
            raise ValueError(
                f"{name}: shape {shape} on rank {rank}, which is inactive in the partition {layout.partition}; "
                f"it holds a zero-volume tensor, such as one of shape {layout.local_shape(rank)}"
            )
        return batch
    if not batch and shape != layout.local_shape(rank):
        raise ValueError(
            f"{name}: shape {shape} on rank {rank}, but the layout {layout} over {layout.partition} gives it "
            f"{layout.local_shape(rank)}"
        )
    if arrays.dtype_of(array).name != tensor.dtype:
        raise ValueError(
            f"{name}: {arrays.dtype_of(array).name} on rank {rank}, but the operator was made for {tensor.dtype}"
        )
    return batch


def check_arguments(tensors: Sequence[Tensor], given: Sequence[Any], rank: int) -> tuple[int, ...]:
    """Raise unless `given` are the local tensors of all the `tensors` on `rank`, in arrays of one library, in one batch.

    Returns the shape of the batch, () or (b,). Raises as :func:`check_argument` does.
    """
    if len(given) != len(tensors):
        names = ", ".join(tensor.name for tensor in tensors)
        raise ValueError(
            f"arguments: {len(given)} on rank {rank}, but the operator takes {len(tensors)}: {names}"
        )
    first, *others = zip(tensors, given, strict=True)
    batch = check_argument(*first, rank)
    for tensor, array in others:
        if check_argument(tensor, array, rank) != batch:
            raise ValueError(
                f"{tensor.name}: shape {tuple(array.shape)} on rank {rank}, but {first[0].name} has {tuple(first[1].shape)}; "
                "all arguments come in one batch, or none does"
            )
        _check_library(tensor.name, array, first[1], first[0].name, rank)
    return batch


def check_out(
    tensor: Tensor, out: Any, arguments: Sequence[Any], rank: int, batch: tuple[int, ...], name: str = "out"
) -> None:
    """Raise unless the local tensor of `tensor` that is made of `arguments` can be written into `out`.

    It is such a local tensor, in the same batch, in memory of the arguments' library that can be written and shares
    nothing with theirs. Raises as :func:`check_argument` does.
    """
    if check_argument(tensor, out, rank, name) != batch:
        raise ValueError(
            f"{name}: shape {tuple(out.shape)} on rank {rank}, but the argument comes in "
            + (f"a batch of {batch[0]}" if batch else "no batch")
        )
    check_writable(name, out, rank)
    for argument in arguments:
        _check_library(name, out, argument, "the argument", rank)
        if arrays.may_share_memory(out, argument):
            raise ValueError(
                f"{name}: shares memory with the argument on rank {rank}, which is read while it is written"
            )


def check_writable(name: str, array: Any, rank: int) -> None:
    """Raise `ValueError` for an array that must not be written into."""
    if not arrays.is_writable(array):
        raise ValueError(
            f"{name}: an array on rank {rank} that must not be written into: it is read-only, or torch records its gradient"
        )


def _check_library(name: str, array: Any, other: Any, whose: str, rank: int) -> None:
    if type(array) is type(other):
        return
    one, theirs = arrays.library_of(array), arrays.library_of(other)
    if one != theirs:
        raise ValueError(f"{name}: a {one} array on rank {rank}, but {whose} is a {theirs} array")
