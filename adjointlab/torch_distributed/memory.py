"""Memory of tensors as communicators accept it: NumPy arrays of MPI's element types.

A contiguous host tensor is passed without a copy, so that the world notices if user code touches it while an operation is pending.
Any other tensor is *staged*: copied into an array, and back when the operation completes. So are tensors on a device, in the order of
the current stream.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

import numpy as np
import torch

from adjointlab.typing import NumpyArray

__all__ = [
    "Staged",
    "blocks",
    "copy_into",
    "elements_of",
    "fill_undefined",
    "gathered",
    "moved",
    "received",
    "scattered",
    "share_memory",
]

_BITS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

_AS_IT_IS: Final = frozenset(
    {
        torch.float32,
        torch.float64,
        torch.complex64,
        torch.complex128,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
    }
)
"""Element types that NumPy and MPI have too. Elements of other types are moved as integers of their size."""


class Staged(NamedTuple):
    """An array to communicate, and a function to call when that is complete."""

    array: NumpyArray
    finish: Callable[[], None] | None = None


def fill_undefined(tensor: torch.Tensor) -> None:
    """Fill memory that a library leaves undefined with NaN, or the largest integer; booleans stay."""
    if tensor.dtype is torch.bool:
        return
    if tensor.is_complex():
        value: complex = complex(math.nan, math.nan)
    else:
        value = math.nan if tensor.is_floating_point() else torch.iinfo(tensor.dtype).max
    # Through `data`, because a collective does not notify autograd of its writes either.
    tensor.data.fill_(value)


def share_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return True if the memory ranges of two dense tensors overlap."""
    (start, end), (first, last) = (
        (each.data_ptr(), each.data_ptr() + each.numel() * each.element_size()) for each in (one, other)
    )
    return start < last and first < end


def elements_of(tensor: torch.Tensor) -> torch.Tensor:
    """The elements of `tensor` in row-major order, one-dimensional, on the host; a view if it has this order there."""
    plain = tensor.detach().resolve_conj().resolve_neg()
    if plain.layout is not torch.strided or plain.is_quantized:
        raise NotImplementedError(
            f"a process group of adjointlab moves dense tensors, not {plain.layout} ones"
        )
    if plain.is_meta:
        raise NotImplementedError(
            "a process group of adjointlab moves tensors that have memory, not those of meta"
        )
    return plain.reshape(-1).contiguous().cpu()


def moved(tensor: torch.Tensor) -> NumpyArray:
    """The elements of `tensor` for an operation that moves them and computes nothing."""
    return _bits(elements_of(tensor))


def received(tensor: torch.Tensor) -> Staged:
    """Room for the elements of `tensor`."""
    flat = elements_of(tensor)
    if _shares_memory(flat, tensor):
        return Staged(_bits(flat))
    return Staged(_bits(flat), lambda: copy_into(tensor, flat))


def scattered(tensors: Sequence[torch.Tensor]) -> NumpyArray:
    """The elements of several tensors, one after the other."""
    return np.concatenate([moved(tensor) for tensor in tensors])


def gathered(tensors: Sequence[torch.Tensor]) -> Staged:
    """Room for the elements of several tensors, one after the other."""
    flat = torch.cat([elements_of(tensor) for tensor in tensors])

    def finish() -> None:
        starts = accumulate((tensor.numel() for tensor in tensors), initial=0)
        for tensor, start in zip(tensors, starts, strict=False):
            copy_into(tensor, flat[start : start + tensor.numel()])

    return Staged(_bits(flat), finish)


def blocks(array: NumpyArray, counts: Sequence[int]) -> object:
    """`array` as an MPI buffer with `counts` elements for the ranks."""
    return [array, (list(counts), [0, *accumulate(counts[:-1])])]


def copy_into(tensor: torch.Tensor, flat: torch.Tensor) -> None:
    """Write the elements `flat` into `tensor`, bypassing autograd."""
    tensor.detach().copy_(flat.view(tensor.shape))


def _shares_memory(flat: torch.Tensor, tensor: torch.Tensor) -> bool:
    return flat.numel() == 0 or (flat.data_ptr() == tensor.data_ptr() and tensor.is_contiguous())


def _bits(flat: torch.Tensor) -> NumpyArray:
    if flat.dtype not in _AS_IT_IS:
        flat = flat.view(_BITS[flat.element_size()])
    array: NumpyArray = flat.numpy()
    return array
