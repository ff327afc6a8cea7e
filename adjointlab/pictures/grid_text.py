"""Grids as characters: a row for each rank of a tensor of one dimension, a map of one of two.

::

    index   0 1 2 3 4                  0 1 2 3
    rank 0  ■ ■ ▒ · ·               0  0 0 1 1
    rank 1  · · ▒ ■ ■               1  0 ◆ 1 1
                                    2  2 2 3 3
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from adjointlab.pictures.lines import Block, Line, Span, Style, line
from adjointlab.pictures.model import Grid, Mark, Piece, Role, Slice, Window
from adjointlab.pictures.scale import Scale, scale

__all__ = ["grid_block", "hull", "scale_of"]

_ROLES = {Role.SOURCE: Style.SOURCE, Role.TARGET: Style.TARGET, Role.WRONG: Style.WRONG}
_LEGEND = {"▒": "on several ranks", "□": "outside of the tensor"}
_MAP_ROWS = 8


def grid_block(grid: Grid, width: int) -> Block:
    """Return the lines of a grid, each at most `width` columns wide unless its scale cannot be made small enough."""
    lines: list[Line] = []
    if grid.title or grid.note:
        bold = (grid.title, Style.BOLD)
        lines.append(
            tuple(
                span
                for span in (bold, (f"  {grid.note}" if grid.title else grid.note, Style.DIM))
                if span[0].strip()
            )
        )
    seen: set[str] = set()
    for each in grid.slices:
        if each.fixed:
            lines.append(line(slice_name(each, len(grid.shape)), Style.DIM))
        picture = _Rows(grid, each, width) if len(each.dims) < 2 else _Map(grid, each, width)
        lines += picture.lines()
        seen |= picture.seen
    if legend := "   ".join(f"{sign} {meaning}" for sign, meaning in _LEGEND.items() if sign in seen):
        lines.append(line(legend, Style.DIM))
    lines += [line(remark, Style.DIM) for remark in grid.remarks]
    return tuple(lines)


def slice_name(each: Slice, order: int) -> str:
    """Return e.g. "[:, :, 3]"."""
    fixed = dict(each.fixed)
    return f"[{', '.join(str(fixed.get(dim, ':')) for dim in range(order))}]"


def hull(grid: Grid, dim: int) -> Window:
    """Return the smallest window that contains the tensor and all pieces along `dim`."""
    held = [piece.windows[dim] for piece in grid.pieces if not piece.is_empty]
    return min(0, *(start for start, _ in held), 0), max(grid.shape[dim], *(stop for _, stop in held), 0)


def scale_of(grid: Grid, dim: int, limit: int) -> Scale:
    """Return the scale along `dim`, with a break wherever a piece, the tensor or a marked cell begins or ends."""
    start, stop = hull(grid, dim)
    breaks = [0, grid.shape[dim]]
    breaks += [end for piece in grid.pieces if not piece.is_empty for end in piece.windows[dim]]
    breaks += [end for mark in grid.marks for end in (mark.index[dim], mark.index[dim] + 1)]
    return scale(start, stop, breaks, limit)


@dataclass
class _Rows:
    """A row for each rank."""

    grid: Grid
    shown: Slice
    width: int
    seen: set[str] = field(default_factory=set)

    def lines(self) -> Iterator[Line]:
        grid = self.grid
        labels = [f"rank {piece.rank}" for piece in grid.pieces]
        margin = max(map(len, (*labels, "index")), default=0) + 2
        if not self.shown.dims:
            for piece, label in zip(grid.pieces, labels, strict=True):
                yield ((label.ljust(margin), Style.PLAIN), self._cell(piece, "■"))
            return
        (dim,) = self.shown.dims
        axis = scale_of(grid, dim, max(8, min(48, self.width - margin)))
        step = _column_width(axis, self.width - margin)
        yield (("index".ljust(margin), Style.DIM), (_ticks(axis, step), Style.DIM))
        for piece, label in zip(grid.pieces, labels, strict=True):
            yield ((label.ljust(margin), Style.PLAIN), *self._cells(piece, dim, axis, step))

    def _cells(self, piece: Piece, dim: int, axis: Scale, step: int) -> Iterator[Span]:
        marked = {axis.cell(mark.index[dim]): mark for mark in self.grid.marks if mark.rank == piece.rank}
        cell = 0
        for start, size in zip(axis.breaks, axis.sizes, strict=False):
            sign = self._sign(piece, dim, start)
            for _ in range(size):
                text, style = self._cell(piece, sign) if cell not in marked else _marked(marked[cell])
                yield text.rjust(step - 1).ljust(step) if step > 1 else text, style
                cell += 1

    def _cell(self, piece: Piece, sign: str) -> Span:
        marks = [mark for mark in self.grid.marks if mark.rank == piece.rank and not self.shown.dims]
        if marks:
            return _marked(marks[0])
        self.seen.add(sign)
        return sign, {"■": Style.HELD, "▒": Style.SHARED, "□": Style.SHARED}.get(sign, Style.DIM)

    def _sign(self, piece: Piece, dim: int, index: int) -> str:
        def holds(other: Piece) -> bool:
            start, stop = other.windows[dim]
            return start <= index < stop

        if not holds(piece):
            return "·"
        if not 0 <= index < self.grid.shape[dim]:
            return "□"
        return "▒" if sum(map(holds, self.grid.pieces)) > 1 else "■"


@dataclass
class _Map:
    """A cell for each pair of indices, with the number of the rank that holds it."""

    grid: Grid
    shown: Slice
    width: int
    seen: set[str] = field(default_factory=set)
    is_unambiguous: bool = True  # each cell is held by a single rank, whose number it shows

    def lines(self) -> Iterator[Line]:
        pieces = [
            piece for piece in self.grid.pieces if not piece.is_empty and self.shown.shows(piece.windows)
        ]
        first, second = self.shown.dims
        rows = scale_of(self.grid, first, _MAP_ROWS)
        names = max((len(str(piece.rank)) for piece in pieces), default=1)
        labels = {cell: str(index) for cell, index in rows.ticks}
        margin = max(map(len, labels.values()), default=0) + 2
        columns = scale_of(self.grid, second, max(8, min(40, (self.width - margin) // (names + 1))))
        step = max(names + 1, _column_width(columns, self.width - margin))
        yield ((" " * margin, Style.DIM), (_ticks(columns, step), Style.DIM))
        row = 0
        for row_start, row_size in zip(rows.breaks, rows.sizes, strict=False):
            for _ in range(row_size):
                label = labels.get(row, "").rjust(margin - 2) + "  "
                yield ((label, Style.DIM), *self._cells(pieces, row_start, row, rows, columns, step))
                row += 1
        if not self.is_unambiguous:
            yield from self._windows(pieces)

    def _cells(
        self, pieces: Sequence[Piece], row_start: int, row: int, rows: Scale, columns: Scale, step: int
    ) -> Iterator[Span]:
        first, second = self.shown.dims
        marked = {
            columns.cell(mark.index[second]): mark
            for mark in self.grid.marks
            if rows.cell(mark.index[first]) == row
            and all(mark.index[dim] == index for dim, index in self.shown.fixed)
        }
        cell = 0
        for column_start, size in zip(columns.breaks, columns.sizes, strict=False):
            text, style = self._sign(pieces, (row_start, column_start))
            self.is_unambiguous &= text not in "▒□"
            for _ in range(size):
                if cell in marked:
                    shown = _marked(marked[cell])
                else:
                    shown = text, style
                    self.seen.add(text)
                yield shown[0].rjust(step - 1) + " ", shown[1]
                cell += 1

    def _sign(self, pieces: Sequence[Piece], index: tuple[int, int]) -> Span:
        dims = self.shown.dims
        holders = [
            piece.rank
            for piece in pieces
            if all(
                piece.windows[dim][0] <= i < piece.windows[dim][1] for dim, i in zip(dims, index, strict=True)
            )
        ]
        inside = all(0 <= i < self.grid.shape[dim] for dim, i in zip(dims, index, strict=True))
        sign = "·" if not holders else "□" if not inside else "▒" if len(holders) > 1 else str(holders[0])
        return sign, {"·": Style.DIM, "▒": Style.SHARED, "□": Style.SHARED}.get(sign, Style.HELD)

    def _windows(self, pieces: Sequence[Piece]) -> Iterator[Line]:
        """Yield the windows of the ranks that hold marked cells, else of the first ranks, for a map that does not show them."""
        marks = self.grid.marks
        for piece in [piece for piece in pieces if not marks or any(_holds(piece, mark) for mark in marks)][
            :4
        ]:
            windows = ", ".join(f"{start}:{stop}" for start, stop in piece.windows)
            yield line(f"rank {piece.rank} holds [{windows}]", Style.DIM)


def _holds(piece: Piece, mark: Mark) -> bool:
    return all(start <= index < stop for (start, stop), index in zip(piece.windows, mark.index, strict=True))


def _marked(mark: Mark) -> Span:
    return mark.role.value, _ROLES[mark.role]


def _column_width(axis: Scale, width: int) -> int:
    """Return the width of a cell: enough for its index if there is room, else 2 or 1."""
    if not axis.cells:
        return 1
    wide = max(len(str(index)) for _, index in axis.ticks) + 1
    return (
        wide
        if axis.is_exact and axis.cells * wide <= width
        else 2
        if axis.is_exact and axis.cells * 2 <= width
        else 1
    )


def _ticks(axis: Scale, step: int) -> str:
    """Return the line of indices above their cells, as many as there is room for."""
    text = ""
    for cell, index in axis.ticks:
        label = str(index)
        place = cell * step + (max(0, step - 1 - len(label)) if step > 1 else 0)
        if not text or place > len(text):
            text = text.ljust(place) + label
    return text
