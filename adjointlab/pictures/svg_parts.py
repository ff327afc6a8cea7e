"""Matrices, waiting ranks, and sequence diagrams as SVG."""

from __future__ import annotations

import math
from collections.abc import Iterator

from adjointlab.pictures.model import Event, Lanes, Matrices, Matrix, Waiting, Waits
from adjointlab.pictures.shapes import (
    CHARACTER,
    LINE,
    Figure,
    Point,
    arrow,
    circle,
    label,
    rectangle,
    segment,
    text_width,
)

__all__ = ["lanes_figure", "matrices_figure", "waits_figure"]


def matrices_figure(part: Matrices) -> Figure:
    """Draw matrices side by side, with the row labels before the first."""
    cell = max(
        24.0,
        max((text_width(entry) for m in part.matrices for row in m.entries for entry in row), default=0) + 8,
    )
    margin = max((text_width(row) for row in part.rows), default=0.0) + 8
    # The column labels are rotated by 60 degrees.
    top = (
        max((text_width(column) for column in part.columns), default=0.0) * math.sin(math.pi / 3) + LINE + 12
    )
    elements = [label(0, top + 22 * row + 15, name, "dim") for row, name in enumerate(part.rows)]
    x, overhang = margin, top / 2
    for matrix in part.matrices:
        elements += _matrix(matrix, part.columns, x, top, cell)
        x += max(len(part.columns) * cell, text_width(matrix.title)) + 36
    height = top + 22 * len(part.rows) + 4
    if part.note:
        height += LINE
        elements.append(label(0, height - 6, part.note, "dim"))
    return Figure(max(x + overhang - 36, text_width(part.note)), height, "".join(elements))


def _matrix(matrix: Matrix, columns: tuple[str, ...], x: float, top: float, cell: float) -> Iterator[str]:
    yield label(x, 14, matrix.title, "title")
    for column, name in enumerate(columns):
        yield label(x + (column + 0.6) * cell, top - 6, name, "dim", rotate=-60)
    for row, entries in enumerate(matrix.entries):
        for column, entry in enumerate(entries):
            left, y = x + column * cell, top + row * 22
            wrong = (row, column) in matrix.wrong
            yield rectangle(left, y, cell, 22, "entry-wrong" if wrong else "entry")
            style = "wrong-ink" if wrong else "dim" if entry == "0" else "ink"
            yield label(left + cell / 2, y + 15, entry, style, "middle")
    yield rectangle(x, top, cell * len(columns), 22 * len(matrix.entries), "frame")


def waits_figure(waits: Waits) -> Figure:
    """Draw ranks on a circle, with arrows to those that they wait for, and their calls with the lines of code below."""
    count = len(waits.waiting)
    radius = max(46.0, 15.0 * count)
    centre = (radius + 24, radius + 24)
    places: dict[int, Point] = {}
    for number, each in enumerate(waits.waiting):
        angle = 2 * math.pi * number / max(1, count) - (math.pi if count == 2 else math.pi / 2)
        places[each.rank] = (centre[0] + radius * math.cos(angle), centre[1] + radius * math.sin(angle))
    if count == 2:
        places = {rank: (x, 32.0) for rank, (x, _) in places.items()}
    following = dict(zip(waits.cycle, waits.cycle[1:] + waits.cycle[:1], strict=True))
    elements = []
    for each in waits.waiting:
        for other in each.waits_for:
            if other in places and other != each.rank:
                style = "edge-wrong" if following.get(each.rank) == other else "edge-dim"
                elements.append(_edge(places[each.rank], places[other], style))
    for each in waits.waiting:
        style = "node-wrong" if each.rank in following else "node" if each.is_blocked else "node-ended"
        x, y = places[each.rank]
        elements += [circle((x, y), 17, style), label(x, y + 4, str(each.rank), "rank", "middle")]
    height, width = (68.0 if count == 2 else 2 * radius + 48), 2 * radius + 48
    for text, style in _calls(waits):
        height += LINE
        elements.append(label(0, height - 6, text, style))
        width = max(width, text_width(text))
    return Figure(width, height, "".join(elements))


def _edge(start: Point, stop: Point, style: str) -> str:
    """Draw an arrow between the rims of two nodes."""
    length = math.dist(start, stop) or 1.0
    across = ((stop[0] - start[0]) / length, (stop[1] - start[1]) / length)
    tail = (start[0] + 18 * across[0], start[1] + 18 * across[1])
    head = (stop[0] - 20 * across[0], stop[1] - 20 * across[1])
    return arrow(tail, head, style, bend=min(14.0, length / 8))


def _calls(waits: Waits) -> Iterator[tuple[str, str]]:
    for each in waits.waiting:
        yield f"rank {each.rank}  {each.call}  {each.where}".rstrip(), "ink" if each.is_blocked else "dim"
        if each.code and not _said_before(each, waits):
            yield f"    {each.code}", "code"
    if waits.left_out:
        yield f"{waits.left_out} more ranks are left out", "dim"


def _said_before(each: Waiting, waits: Waits) -> bool:
    """Return True if an earlier rank waits at the same line of code."""
    first = next(other for other in waits.waiting if other.where == each.where)
    return first is not each


def lanes_figure(lanes: Lanes) -> Figure:
    """Draw a vertical lane for each rank, and a row for each event."""
    step = max(52.0, max((text_width(f"rank {rank}") for rank in lanes.ranks), default=0.0) + 14)
    places = {rank: step * (number + 0.5) for number, rank in enumerate(lanes.ranks)}
    top = 2 * LINE if lanes.title else LINE
    bottom = top + 26 * len(lanes.events) + 8
    elements = [label(0, 14, lanes.title, "title")] if lanes.title else []
    for rank, x in places.items():
        elements.append(label(x, top - 6, f"rank {rank}", "ink", "middle"))
        elements.append(segment((x, top), (x, bottom), "lane"))
    width = max(text_width(lanes.title), step * len(places))
    for number, event in enumerate(lanes.events):
        y = top + 26 * number + 20
        elements += _event(event, places, y)
        x = step * len(places) + 8
        elements.append(label(x, y + 4, event.label, "wrong-ink" if event.is_marked else "ink"))
        width = max(width, x + CHARACTER * len(event.label))
    if lanes.left_out:
        bottom += LINE
        elements.append(label(0, bottom - 6, f"{lanes.left_out} more steps are left out", "dim"))
    return Figure(width, bottom, "".join(elements))


def _event(event: Event, places: dict[int, float], y: float) -> Iterator[str]:
    target = places.get(event.target)
    if target is None:
        return
    source = target if event.source is None else places.get(event.source, target)
    if source == target:
        yield circle((target, y), 5, "event-wrong" if event.is_marked else "event")
    else:
        yield arrow((source, y), (target, y), "edge-wrong" if event.is_marked else "edge-ink")
