"""Whole tensors and what ranks hold of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from adjointlab.checks.verdict import Inapplicable
from adjointlab.core.layout import Layout
from adjointlab.core.space import Space, Tensor
from adjointlab.core.values import Draw, local_values

__all__ = ["assembled", "held"]


def assembled(space: Space, position: int, draw: Draw) -> np.ndarray[Any, Any]:
    """The global tensor that the ranks' local values make up; summands are added."""
    tensor = space.tensors[position]
    layout = tensor.layout
    whole = np.zeros(layout.shape, dtype=local_values(space, position, layout.partition.ranks[0], draw).dtype)
    if any(
        copied and side > 1 and entry.value == "varying"
        for copied, side, entry in zip(layout.copied, layout.partition.shape, tensor.types, strict=True)
    ):
        raise Inapplicable(f"the copies in {tensor} have values of their own; there is no sequential input")
    for rank, first in tensor.groups.items():
        if rank == first:
            inside, there = _inside(layout, rank)
            whole[there] += local_values(space, position, rank, draw)[inside]
    return whole


def held(tensor: Tensor, whole: np.ndarray[Any, Any], rank: int) -> np.ndarray[Any, Any]:
    """What `rank` should hold: its window, zero beyond the tensor; of a partial tensor the first rank has it all."""
    layout = tensor.layout
    local = np.zeros(layout.local_shape(rank), dtype=whole.dtype)
    if rank in tensor.summands and tensor.summands[rank] == rank:
        if whole.shape != layout.shape:
            raise ValueError(f"the reference returned shape {whole.shape}, but the codomain is {layout}")
        inside, there = _inside(layout, rank)
        local[inside] = whole[there]
    return local


def _inside(layout: Layout, rank: int) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """The part of a rank's window that lies in the tensor: as an index of the local and of the global tensor."""
    window = layout.window(rank)
    assert window is not None
    there = []
    for (start, stop), side in zip(window, layout.shape, strict=True):
        low = min(max(start, 0), side)
        there.append((low, max(low, min(stop, side))))
    inside = tuple(slice(a - start, b - start) for (a, b), (start, _) in zip(there, window, strict=True))
    return inside, tuple(slice(a, b) for a, b in there)
