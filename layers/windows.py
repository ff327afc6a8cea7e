"""The part of a whole tensor that a rank holds."""

from __future__ import annotations

import torch

from adjointlab.core.layout import Layout
from adjointlab.core.partition import whole_number
from adjointlab.spelling import described_type

__all__ = ["local_window"]


def local_window(whole: torch.Tensor, layout: Layout, rank: int) -> torch.Tensor:
    """A copy of the part of a whole tensor that `rank` holds; of zero volume on a rank that holds nothing.

    Raises `ValueError` for a tensor of another shape than that of `layout` and a negative rank, and `TypeError` for arguments of
    other types.
    """
    tensor: object = whole
    place: object = layout
    if not isinstance(place, Layout):
        raise TypeError(
            f"layout: {described_type(place)} is not a Layout, such as network.domain.tensors[0].layout"
        )
    if not isinstance(tensor, torch.Tensor):
        hint = "; torch.from_numpy makes one" if type(tensor).__module__ == "numpy" else ""
        raise TypeError(f"whole: {described_type(tensor)} is not a torch.Tensor{hint}")
    if tuple(whole.shape) != layout.shape:
        raise ValueError(
            f"whole: shape {tuple(whole.shape)}, but the layout is that of a tensor {layout.shape}"
        )
    if whole_number("rank", rank) < 0:
        raise ValueError(f"rank: {rank} is negative")
    window = layout.window(rank)
    if window is None:
        return whole.new_empty(layout.local_shape(rank))
    return whole[tuple(slice(start, stop) for start, stop in window)].clone()
