"""Whether an array is what a space declares on a rank; operators ask before they send their first message."""

from __future__ import annotations

from typing import Any

from adjointlab import arrays
from adjointlab.space import Tensor

__all__ = ["batch_shape", "check_argument"]


def batch_shape(tensor: Tensor, array: Any, rank: int) -> tuple[int, ...]:
    """(b,) of an array with a dimension of at least 1 more than the local tensors of `tensor` on `rank`, else ()."""
    shape = tuple(map(int, array.shape))
    order = len(tensor.layout.local_shape(rank))
    return shape[order:] if len(shape) == order + 1 and shape[-1] > 0 else ()


def check_argument(tensor: Tensor, array: Any, rank: int, name: str = "") -> tuple[int, ...]:
    """Raise unless `array`, called `name` (default: the tensor's), can be the local tensor of `tensor` on `rank`.

    An active rank holds the layout's local shape in the declared element type, an inactive one any tensor without
    elements. A batch of local tensors has one trailing dimension more, on all ranks, and it is at least 1.

    Returns the shape of the batch, () or (b,). Raises `TypeError` for what is no array, else `ValueError`, each naming
    the argument and the rank.
    """
    name = name or tensor.name
    layout = tensor.layout
    if not arrays.is_array(array):
        raise TypeError(f"{name}: a {type(array).__name__} on rank {rank} is no array; pass its local tensor")
    if (
        tuple(array.shape) == layout.local_shape(rank)
        and layout.partition.is_active(rank)
        and arrays.dtype_of(array).name == tensor.dtype
    ):
        return ()  # nearly always, and every call of every operator comes by
    shape, batch = tuple(map(int, array.shape)), batch_shape(tensor, array, rank)
    if not layout.partition.is_active(rank):
        if 0 not in shape:
            raise ValueError(
                f"{name}: shape {shape} on rank {rank}, which is inactive in the partition {layout.partition}; "
                f"it holds a zero-volume tensor, such as one of shape {layout.local_shape(rank)}"
            )
        return batch
    if shape[: len(shape) - len(batch)] != layout.local_shape(rank):
        raise ValueError(
            f"{name}: shape {shape} on rank {rank}, but the layout {layout} over {layout.partition} gives it "
            f"{layout.local_shape(rank)}"
        )
    if arrays.dtype_of(array).name != tensor.dtype:
        raise ValueError(
            f"{name}: {arrays.dtype_of(array).name} on rank {rank}, but the operator was made for {tensor.dtype}"
        )
    return batch
