"""Whole tensors and the parts that ranks hold: the arguments of a sequential function, and each rank's expected part of its results."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from adjointlab.checks.elements import Local
from adjointlab.checks.verdict import Inapplicable
from adjointlab.core.declaration import SubjectError
from adjointlab.core.layout import Layout
from adjointlab.core.space import LocalType, Space, Tensor
from adjointlab.core.vectors import Draw, local_values
from adjointlab.typing import NumpyArray

__all__ = [
    "has_copies_of_their_own",
    "held",
    "held_by_all",
    "no_sequential_tensor",
    "whole_array",
    "with_other_padding",
]


def whole_array(
    space: Space,
    position: int,
    key: Draw,
    changed: Callable[[NumpyArray], NumpyArray] = lambda summand: summand,
) -> NumpyArray:
    """Return a drawn tensor of `space` as a whole; summands are added, each after `changed` is applied.

    Raises :class:`Inapplicable` if ranks hold different values of one element, so that there is no whole tensor. In cotangents, values
    in overlapping windows are summands.
    """
    tensor = space.tensors[position]
    layout = tensor.layout
    first_values = local_values(space, position, layout.partition.ranks[0], key)
    whole = np.zeros(layout.shape, dtype=first_values.dtype)
    if has_copies_of_their_own(tensor, in_windows=key.side == "primal"):
        raise Inapplicable(no_sequential_tensor(tensor, position))
    for rank, first in tensor.groups.items():
        if rank == first:
            inside, part = _overlap(layout, rank)
            whole[part] += changed(local_values(space, position, rank, key))[inside]
    return whole


def has_copies_of_their_own(tensor: Tensor, *, in_windows: bool = False) -> bool:
    """Return True if ranks hold different values of one element in copies, or `in_windows` that overlap; then there is no whole tensor."""
    layout = tensor.layout
    # Windows of a cut may be equal too, if all are empty, so that there are no copies.
    return 0 not in layout.shape and any(
        (copied or in_windows) and overlapping and entry is LocalType.VARYING
        for copied, overlapping, entry in zip(layout.copied, layout.overlapping, tensor.types, strict=True)
    )


def no_sequential_tensor(tensor: Tensor, position: int = 0) -> str:
    """The message that copies of a tensor have different values, with advice on the declaration if that is not meant."""
    return (
        f"the copies of {tensor.name or f'tensor {position}'} have values of their own, so there is no sequential tensor; if all "
        'ranks hold the same values, declare it with types of "replicated" or "invariant" along the dimensions that copy it'
    )


def held(tensor: Tensor, whole: NumpyArray, rank: int) -> NumpyArray:
    """Return the part of a whole tensor that `rank` should hold: its window, zero beyond the tensor.

    Summands of a partial tensor are compared after summation, so the first rank holds the whole tensor and the others zero.
    """
    layout = tensor.layout
    local = np.zeros(layout.local_shape(rank), dtype=whole.dtype)
    if rank in tensor.summands and tensor.summands[rank] == rank:
        if whole.shape != layout.shape:
            raise SubjectError(f"the reference returned shape {whole.shape}, but the codomain is {layout}")
        inside, part = _overlap(layout, rank)
        local[inside] = whole[part]
    return local


def held_by_all(space: Space, whole: Sequence[NumpyArray], size: int) -> tuple[Local, ...]:
    """Return the parts of whole tensors of `space` that each of `size` ranks should hold."""
    return tuple(
        tuple(held(tensor, array, rank) for tensor, array in zip(space.tensors, whole, strict=True))
        for rank in range(size)
    )


def with_other_padding(space: Space, local: Sequence[Local], padding: Sequence[Local]) -> tuple[Local, ...]:
    """Return the local tensors of all ranks, with elements beyond the ends of their tensors replaced by those of `padding`."""
    changed = []
    for rank, (own, other) in enumerate(zip(local, padding, strict=True)):
        parts = []
        for tensor, array, outer in zip(space.tensors, own, other, strict=True):
            part = np.array(outer)
            if tensor.layout.window(rank) is not None:
                inside, _ = _overlap(tensor.layout, rank)
                part[inside] = array[inside]
            parts.append(part)
        changed.append(tuple(parts))
    return tuple(changed)


def _overlap(layout: Layout, rank: int) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """Part of a rank's window that lies in the tensor, as an index of the local and of the global tensor.

    window      [start          stop)        e.g. padding on the left: start < 0
    tensor           [0              side)
    overlap          [low       high)        empty, with low = high, if the window lies outside
    """
    window = layout.window(rank)
    assert window is not None
    overlap = []
    for (start, stop), side in zip(window, layout.shape, strict=True):
        low = min(max(start, 0), side)
        overlap.append((low, max(low, min(stop, side))))
    inside = tuple(
        slice(low - start, high - start) for (low, high), (start, _) in zip(overlap, window, strict=True)
    )
    return inside, tuple(slice(low, high) for low, high in overlap)
