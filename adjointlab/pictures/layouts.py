"""Drawings of layouts and spaces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from adjointlab.pictures.model import Drawing, Grid, Mark, Piece, Slice

if TYPE_CHECKING:
    from adjointlab.core.layout import Layout
    from adjointlab.core.space import Space, Tensor

__all__ = ["grid_of_layout", "grid_of_tensor", "layout_drawing", "shown_ranks", "space_drawing"]

_MOST_SLICES = 4
_MOST_PIECES = 64


def layout_drawing(layout: Layout) -> Drawing:
    """Return the drawing of a layout."""
    return Drawing(
        "", (grid_of_layout(layout, "", f"{layout.without_workers} over partition {layout.partition}"),)
    )


def space_drawing(space: Space) -> Drawing:
    """Return the drawing of a space, tensor by tensor."""
    return Drawing("", tuple(map(grid_of_tensor, space.tensors)))


def grid_of_tensor(
    tensor: Tensor, title: str | None = None, marks: Sequence[Mark] = (), most_pieces: int = _MOST_PIECES
) -> Grid:
    """Return the grid of a tensor; `title` is its name by default."""
    note = f"{tensor.without_workers} over partition {tensor.layout.partition}"
    return grid_of_layout(tensor.layout, tensor.name if title is None else title, note, marks, most_pieces)


def grid_of_layout(
    layout: Layout, title: str, note: str, marks: Sequence[Mark] = (), most_pieces: int = _MOST_PIECES
) -> Grid:
    """Return the grid of a layout with at most `most_pieces` pieces: those of marked ranks, then the first of the partition's grid."""
    ranks = layout.partition.ranks
    shown = shown_ranks(ranks, marks, most_pieces)
    pieces = tuple(Piece(rank, layout.window(rank) or ()) for rank in ranks if rank in shown)
    remarks: tuple[str, ...] = (
        (f"{len(ranks) - len(pieces)} more ranks are left out",) if len(pieces) < len(ranks) else ()
    )
    slices, more = _slices(layout, marks)
    if more:
        remarks += (f"{more} more slices are left out",)
    return Grid(title, note, layout.shape, pieces, slices, tuple(marks), remarks)


def shown_ranks(ranks: Sequence[int], marks: Sequence[Mark], most: int) -> set[int]:
    """Choose `most` of the ranks: those with marks, then the first ones."""
    marked = {mark.rank for mark in marks}
    others = [rank for rank in ranks if rank not in marked]
    return marked | set(others[: max(0, most - len(marked))])


def _slices(layout: Layout, marks: Sequence[Mark]) -> tuple[tuple[Slice, ...], int]:
    """Return the slices of a tensor that are drawn, and the number of those that are not.

    A slice shows two dimensions: those that are cut, before those that are longer than 1, and of these the last. The other dimensions
    are fixed at the marked cells, or at the first index of each distinct window.
    """
    order = layout.order
    if order <= 2:
        return (Slice(tuple(range(order))),), 0
    cut = sorted(
        range(order), key=lambda dim: (len(set(layout.windows[dim])) > 1, layout.shape[dim] > 1, dim)
    )
    dims = tuple(sorted(cut[-2:]))
    rest = [dim for dim in range(order) if dim not in dims]
    if marks:
        fixed = dict.fromkeys(tuple((dim, mark.index[dim]) for dim in rest) for mark in marks)
        return tuple(Slice(dims, each) for each in fixed), 0
    found: list[tuple[tuple[int, int], ...]] = [()]
    for dim in rest:
        starts = dict.fromkeys(start for start, stop in layout.windows[dim] if stop > start) or {0: None}
        found = [(*before, (dim, start)) for before in found for start in starts]
    return tuple(Slice(dims, each) for each in found[:_MOST_SLICES]), max(0, len(found) - _MOST_SLICES)
