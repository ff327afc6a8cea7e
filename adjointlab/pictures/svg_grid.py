"""Grids as shapes: a bar for each rank of a tensor of one dimension, rectangles on a plane for one of two."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from adjointlab.pictures.grid_text import scale_of, slice_name
from adjointlab.pictures.model import Grid, Mark, Piece, Role, Slice, Window
from adjointlab.pictures.scale import Scale
from adjointlab.pictures.shapes import (
    LINE,
    Figure,
    Point,
    circle,
    cross,
    diamond,
    label,
    rectangle,
    segment,
    text_width,
)

__all__ = ["DrawnGrid", "drawn_grid"]

_CELLS = 40
_WIDTH = 480.0
_UNIT = 30.0
_HUES = 8


@dataclass
class DrawnGrid:
    """A grid with the centres of its marked cells, by role, in the order of its marks."""

    figure: Figure
    places: dict[Role, list[Point]] = field(default_factory=dict)


def drawn_grid(grid: Grid, cells: int = _CELLS, width: float = _WIDTH) -> DrawnGrid:
    """Draw a grid with at most `cells` cells along each dimension, about `width` px wide."""
    drawn = DrawnGrid(Figure(0, 0, ""))
    elements, size, y = [], 0.0, 0.0
    for text, style in ((grid.title, "title"), (grid.note, "dim")):
        if text:
            y += LINE
            elements.append(label(0, y - 6, text, style))
            size = max(size, text_width(text))
    for each in grid.slices:
        if each.fixed:
            y += LINE
            elements.append(label(0, y - 6, slice_name(each, len(grid.shape)), "dim"))
        painter = _Rows if len(each.dims) < 2 else _Plane
        figure, places = painter(grid, each, cells, width).drawn()
        elements.append(figure.at(0, y))
        for role, centre in places:
            drawn.places.setdefault(role, []).append((centre[0], centre[1] + y))
        size, y = max(size, figure.width), y + figure.height + 4
    for remark in grid.remarks:
        y += LINE
        elements.append(label(0, y - 6, remark, "dim"))
        size = max(size, text_width(remark))
    drawn.figure = Figure(size, y, "".join(elements))
    return drawn


Drawn = tuple[Figure, list[tuple[Role, Point]]]


def _mark(mark: Mark, centre: Point) -> str:
    shape = {Role.SOURCE: circle, Role.TARGET: diamond, Role.WRONG: cross}[mark.role]
    return shape(centre, 7.0, f"mark {mark.role.name.lower()}")


def _ticks(axis: Scale, unit: float, margin: float, y: float) -> Iterator[str]:
    """Yield the indices above the middle of their cells, as many as there is room for."""
    free = -1.0
    for cell, index in axis.ticks:
        half = text_width(str(index)) / 2
        centre = (cell + 0.5) * unit
        if centre - half > free:
            yield label(margin + centre, y, str(index), "dim", "middle")
            free = centre + half + 4


@dataclass
class _Rows:
    grid: Grid
    shown: Slice
    cells: int
    width: float

    def drawn(self) -> Drawn:
        grid, row_height = self.grid, 26.0
        margin = max((text_width(f"rank {piece.rank}") for piece in grid.pieces), default=0.0) + 10
        if not self.shown.dims:
            return self._scalars(margin, row_height)
        (dim,) = self.shown.dims
        axis = scale_of(grid, dim, self.cells)
        unit = min(_UNIT, self.width / max(1, axis.cells))
        elements = list(_ticks(axis, unit, margin, 12))
        places = []
        first, end = axis.position(0) * unit, axis.position(grid.shape[dim]) * unit
        for row, piece in enumerate(grid.pieces):
            y = 18 + row * row_height
            elements.append(label(0, y + 16, f"rank {piece.rank}"))
            elements.append(rectangle(margin + first, y + 2, end - first, 20, "tensor"))
            elements += self._bar(piece, dim, axis, unit, margin, y + 2)
            for mark in grid.marks:
                if mark.rank == piece.rank:
                    centre = (margin + (axis.cell(mark.index[dim]) + 0.5) * unit, y + 12)
                    elements.append(_mark(mark, centre))
                    places.append((mark.role, centre))
        height = 18 + len(grid.pieces) * row_height
        # The last index may be wider than its cell.
        last = max(
            (text_width(str(index)) / 2 + (cell + 0.5) * unit for cell, index in axis.ticks), default=0
        )
        width = margin + max(axis.cells * unit, last) + 2
        return Figure(width, height, "".join(elements)), places

    def _bar(
        self, piece: Piece, dim: int, axis: Scale, unit: float, margin: float, y: float
    ) -> Iterator[str]:
        hue = f"r{piece.rank % _HUES}"
        low, high = piece.windows[dim]
        for start, stop in pairwise(axis.breaks):
            if not low <= start < high:
                continue
            x = margin + axis.position(start) * unit
            width = margin + axis.position(stop) * unit - x
            inside = 0 <= start < self.grid.shape[dim]
            holders = sum(each.windows[dim][0] <= start < each.windows[dim][1] for each in self.grid.pieces)
            yield rectangle(
                x,
                y,
                width,
                20,
                f"{hue} {'shared' if holders > 1 else 'held'}" if inside else f"{hue} padding",
            )
            if axis.is_exact:
                for index in range(start + 1, stop):
                    line = margin + axis.position(index) * unit
                    yield segment((line, y), (line, y + 20), "cell")
        if high > low:
            x = margin + axis.position(low) * unit
            yield rectangle(x, y, margin + axis.position(high) * unit - x, 20, f"{hue} edge", 3)

    def _scalars(self, margin: float, row_height: float) -> Drawn:
        elements, places = [], []
        for row, piece in enumerate(self.grid.pieces):
            y, hue = row * row_height, f"r{piece.rank % _HUES}"
            elements.append(label(0, y + 16, f"rank {piece.rank}"))
            elements.append(rectangle(margin, y + 2, 20, 20, f"{hue} held edge", 3))
            for mark in self.grid.marks:
                if mark.rank == piece.rank:
                    elements.append(_mark(mark, (margin + 10, y + 12)))
                    places.append((mark.role, (margin + 10, y + 12)))
        return Figure(margin + 24, len(self.grid.pieces) * row_height, "".join(elements)), places


def _overlap(one: Sequence[Window], other: Sequence[Window]) -> bool:
    return all(max(a[0], b[0]) < min(a[1], b[1]) for a, b in zip(one, other, strict=True))


@dataclass
class _Plane:
    grid: Grid
    shown: Slice
    cells: int
    width: float

    def drawn(self) -> Drawn:
        grid, (first, second) = self.grid, self.shown.dims
        rows, columns = (
            scale_of(grid, dim, self.cells // (2 - number)) for number, dim in enumerate((first, second))
        )
        unit = max(4.0, min(_UNIT, self.width / max(1, columns.cells), 300 / max(1, rows.cells)))
        margin = max((text_width(str(index)) for _, index in rows.ticks), default=0.0) + 8
        elements = list(_ticks(columns, unit, margin, 12))
        free = -1.0
        for cell, index in rows.ticks:
            y = 18 + (cell + 0.5) * unit + 4
            if y - 10 > free:
                elements.append(label(margin - 6, y, str(index), "dim", "end"))
                free = y
        tensor = ((0, grid.shape[first]), (0, grid.shape[second]))
        x, y, width, height = self._box(tensor, rows, columns, unit, margin)
        elements.append(rectangle(x, y, width, height, "tensor"))
        elements += self._pieces(rows, columns, unit, margin)
        elements += self._lines(rows, columns, unit, margin)
        places = []
        for mark in grid.marks:
            if all(mark.index[dim] == index for dim, index in self.shown.fixed):
                column, row = columns.cell(mark.index[second]), rows.cell(mark.index[first])
                centre = (margin + (column + 0.5) * unit, 18 + (row + 0.5) * unit)
                elements.append(_mark(mark, centre))
                places.append((mark.role, centre))
        return (Figure(margin + columns.cells * unit + 2, 20 + rows.cells * unit, "".join(elements)), places)

    def _box(
        self, windows: Sequence[tuple[int, int]], rows: Scale, columns: Scale, unit: float, margin: float
    ) -> tuple[float, float, float, float]:
        (top, bottom), (left, right) = windows
        x, y = margin + columns.position(left) * unit, 18 + rows.position(top) * unit
        return x, y, margin + columns.position(right) * unit - x, 18 + rows.position(bottom) * unit - y

    def _pieces(self, rows: Scale, columns: Scale, unit: float, margin: float) -> Iterator[str]:
        by_windows: dict[tuple[tuple[int, int], ...], list[int]] = {}
        for piece in self.grid.pieces:
            if not piece.is_empty and self.shown.shows(piece.windows):
                by_windows.setdefault(tuple(piece.windows[dim] for dim in self.shown.dims), []).append(
                    piece.rank
                )
        labels = []
        for number, (windows, ranks) in enumerate(by_windows.items()):
            x, y, width, height = self._box(windows, rows, columns, unit, margin)
            # Overlapping windows get different insets, so that their edges do not coincide.
            overlaps = sum(_overlap(windows, other) for other in by_windows) > 1
            inset = min(1.0 + number % 4 * 1.5 if overlaps else 1.0, width / 4, height / 4)
            box = (x + inset, y + inset, width - 2 * inset, height - 2 * inset)
            yield rectangle(*box, f"r{ranks[0] % _HUES} held edge", 3)
            names = ", ".join(map(str, ranks[:4])) + (", …" if len(ranks) > 4 else "")
            # Labels of overlapping windows are moved away from the middle of the plane, where the windows overlap.
            away = 0.6 if overlaps else 0.0
            across = x + width / 2 + away * (x + width / 2 - margin - columns.cells * unit / 2)
            down = y + height / 2 + away * (y + height / 2 - 18 - rows.cells * unit / 2)
            labels.append(label(across, down + 5, names, "rank", "middle"))
        yield from labels

    def _lines(self, rows: Scale, columns: Scale, unit: float, margin: float) -> Iterator[str]:
        if not (rows.is_exact and columns.is_exact) or unit < 10:
            return
        right, bottom = margin + columns.cells * unit, 18 + rows.cells * unit
        for column in range(1, columns.cells):
            yield segment((margin + column * unit, 18), (margin + column * unit, bottom), "cell")
        for row in range(1, rows.cells):
            yield segment((margin, 18 + row * unit), (right, 18 + row * unit), "cell")
