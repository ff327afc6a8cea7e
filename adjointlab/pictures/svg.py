"""Drawings as SVG: as a file (:func:`as_svg`), or as elements of a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from adjointlab.pictures.model import (
    Drawing,
    Grid,
    Lanes,
    Matrices,
    Movement,
    Part,
    Remark,
    Role,
    Row,
    Waits,
    Weight,
)
from adjointlab.pictures.shapes import LINE, Figure, Point, arrow, beside, label, stacked, text_width
from adjointlab.pictures.svg_grid import drawn_grid
from adjointlab.pictures.svg_parts import lanes_figure, matrices_figure, waits_figure
from adjointlab.pictures.theme import PICTURE_STYLE, variables

__all__ = ["as_svg", "figure_of", "inline_svg"]

_MARGIN: Final = 10.0


def as_svg(drawing: Drawing) -> str:
    """Return the drawing as an SVG file, which follows the viewer's light or dark theme."""
    figures = [figure_of(part) for part in drawing.parts]
    if drawing.title:
        figures.insert(0, Figure(text_width(drawing.title), LINE, label(0, 14, drawing.title, "title")))
    style = f"<style>{variables('.al-picture')}{PICTURE_STYLE}</style>"
    return _document(stacked(figures, gap=18), style, 'xmlns="http://www.w3.org/2000/svg" ')


def inline_svg(part: Part) -> str:
    """Return one part of a drawing as an SVG element for a page that already has the style."""
    figure = figure_of(part)
    # On a narrow screen the picture shrinks while it stays readable; beyond that the page scrolls sideways.
    return _document(figure, "", f'style="max-width:100%;height:auto;min-width:{0.7 * figure.width:.0f}px" ')


def _document(figure: Figure, style: str, attributes: str) -> str:
    width, height = figure.width + 2 * _MARGIN, figure.height + 2 * _MARGIN
    return (
        f'<svg {attributes}class="al-picture" role="img" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}">{style}'
        f"{figure.at(_MARGIN, _MARGIN)}</svg>"
    )


def figure_of(part: Part) -> Figure:
    """Return the figure of a part."""
    match part:
        case Grid():
            return drawn_grid(part).figure
        case Movement():
            return _movement(part)
        case Matrices():
            return matrices_figure(part)
        case Waits():
            return waits_figure(part)
        case Lanes():
            return lanes_figure(part)
        case Row():
            return beside(map(lanes_figure, part.parts))
        case Remark():
            return Figure(text_width(part.text), LINE, label(0, 14, part.text))


def _movement(movement: Movement) -> Figure:
    """Draw two grids side by side, with arrows between the first marked cells of each."""
    drawn = [drawn_grid(grid, cells=24, width=300) for grid in movement.grids]
    captions = [_caption(weight) for weight in movement.weights]
    widest = max((text_width(text) for caption in captions for text in caption), default=0.0)
    gap = max(60.0, widest + 16)
    elements, x, lefts = [], 0.0, []
    for each in drawn:
        lefts.append(x)
        elements.append(each.figure.at(x, 0))
        x += each.figure.width + gap
    width, height = x - gap, max(each.figure.height for each in drawn)
    source = _first(drawn[0].places.get(Role.SOURCE), lefts[0])
    target = _first(drawn[-1].places.get(Role.TARGET), lefts[-1])
    if source is not None and target is not None and len(drawn) > 1:
        middle = lefts[1] - gap / 2
        elements += _arrows(movement.weights, captions, source, target, middle)
        height = max(height, max(source[1], target[1]) + 62)
    return Figure(width, height, "".join(elements))


def _arrows(
    weights: Sequence[Weight],
    captions: Sequence[tuple[str, ...]],
    source: Point,
    target: Point,
    middle: float,
) -> Iterator[str]:
    y = (source[1] + target[1]) / 2
    for weight, caption in zip(weights, captions, strict=True):
        style = "edge-wrong" if weight.is_wrong else "edge-right"
        if weight.is_back:
            yield arrow((target[0] - 8, target[1] + 5), (source[0] + 8, source[1] + 5), style, bend=18)
            at = y + 38
        else:
            yield arrow((source[0] + 8, source[1] - 5), (target[0] - 8, target[1] - 5), style, bend=18)
            at = y - 12 - 16 * len(caption)
        for number, text in enumerate(caption):
            style = "wrong-ink" if weight.is_wrong else "right-ink"
            yield label(middle, at + 16 * number, text, style, "middle")


def _caption(weight: Weight) -> tuple[str, ...]:
    value = f" ×{weight.value}" if weight.value else ""
    return (f"{weight.name}{value}", *((weight.remark,) if weight.remark else ()))


def _first(places: list[Point] | None, left: float) -> Point | None:
    return (places[0][0] + left, places[0][1]) if places else None
