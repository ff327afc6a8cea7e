"""Tensors with wrong values: the picture with the element marked, and the hint on the kind of fault."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adjointlab.checks.hints import Hint, value_hint
from adjointlab.core.space import Tensor
from adjointlab.pictures.layouts import grid_of_tensor
from adjointlab.pictures.model import Grid, Mark, Role
from adjointlab.typing import NumpyArray

__all__ = ["marked_grid", "tensor_hint"]

_COMPARED = 2**16
"""Largest number of elements that are compared for a hint, because every failing case while shrinking takes this time."""

_PIECES = 8
"""Largest number of ranks in the picture of a difference."""


def tensor_hint(
    tensor: Tensor, got: dict[int, NumpyArray], want: dict[int, NumpyArray], allowed: float, run_ranks: int
) -> Hint | None:
    """The hint on the values of a tensor, by rank, in comparison with the expected ones, in a run of `run_ranks` ranks."""
    sizes = [array.size for array in got.values()]
    if any(got[rank].shape != want[rank].shape for rank in got) or sum(sizes) > _COMPARED:
        return None
    actual, expected = (np.concatenate([np.ravel(each[rank]) for rank in got]) for each in (got, want))
    owners = np.repeat(list(got), sizes)
    return value_hint(actual, expected, owners, tensor.layout.partition.size, allowed, run_ranks=run_ranks)


def marked_grid(
    tensor: Tensor, place: tuple[int, Role], local: Sequence[int], *others: tuple[int, Role]
) -> Grid:
    """The picture of a tensor with an element marked, on some ranks that hold it."""
    index = tensor.layout.to_global(place[0], local)
    marks = [Mark(rank, index, role) for rank, role in (place, *others)]
    return grid_of_tensor(tensor, marks=marks, most_pieces=_PIECES)
