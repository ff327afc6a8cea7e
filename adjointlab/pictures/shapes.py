"""SVG elements, with all text escaped, and figures: elements with their size."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

__all__ = ["CHARACTER", "LINE", "Figure", "Point", "arrow", "beside", "circle", "cross", "diamond", "label", "rectangle", "segment", "stacked", "text_width"]  # fmt: skip

CHARACTER: Final = 7.3
"""Width of a character of the labels in px, in a monospaced font of 12 px."""

LINE: Final = 20.0
"""Distance between two lines of text, in px."""

_NOT_IN_XML: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

Point = tuple[float, float]


@dataclass(frozen=True)
class Figure:
    """SVG elements in a box of `width` by `height` px, whose upper left corner is the origin."""

    width: float
    height: float
    elements: str

    def at(self, x: float, y: float) -> str:
        """Return the elements, translated to (x, y)."""
        return f'<g transform="translate({_px(x)} {_px(y)})">{self.elements}</g>'


def stacked(figures: Iterable[Figure], gap: float = 12.0) -> Figure:
    """Return the figures one below the other."""
    elements: list[str] = []
    width, y = 0.0, 0.0
    for figure in figures:
        if elements:
            y += gap
        elements.append(figure.at(0, y))
        width, y = max(width, figure.width), y + figure.height
    return Figure(width, y, "".join(elements))


def beside(figures: Iterable[Figure], gap: float = 30.0) -> Figure:
    """Return the figures side by side."""
    elements: list[str] = []
    x, height = -gap, 0.0
    for figure in figures:
        elements.append(figure.at(x + gap, 0))
        x, height = x + gap + figure.width, max(height, figure.height)
    return Figure(x, height, "".join(elements))


def text_width(text: str) -> float:
    """Return the approximate width of a label, in px."""
    return CHARACTER * len(text)


def _xml(text: str) -> str:
    """Escape `text`; characters that XML does not allow become the replacement character."""
    return escape(_NOT_IN_XML.sub("\ufffd", text))


def label(x: float, y: float, text: str, style: str = "ink", anchor: str = "start", rotate: int = 0) -> str:
    """Return a label whose baseline begins (or, depending on `anchor`, is centred or ends) at (x, y)."""
    turned = f' transform="rotate({rotate} {_px(x)} {_px(y)})"' if rotate else ""
    placed = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text x="{_px(x)}" y="{_px(y)}" class="al-{style}"{placed}{turned}>{_xml(text)}</text>'


def rectangle(x: float, y: float, width: float, height: float, style: str, radius: float = 0.0) -> str:
    """Return a rectangle."""
    rounded = f' rx="{_px(radius)}"' if radius else ""
    return f'<rect x="{_px(x)}" y="{_px(y)}" width="{_px(width)}" height="{_px(height)}"{rounded} class="{_classes(style)}"/>'


def circle(centre: Point, radius: float, style: str) -> str:
    """Return a circle."""
    return (
        f'<circle cx="{_px(centre[0])}" cy="{_px(centre[1])}" r="{_px(radius)}" class="{_classes(style)}"/>'
    )


def diamond(centre: Point, radius: float, style: str) -> str:
    """Return a square that stands on a corner."""
    x, y = centre
    return _polygon([(x, y - radius), (x + radius, y), (x, y + radius), (x - radius, y)], style)


def cross(centre: Point, radius: float, style: str) -> str:
    """Return a diagonal cross."""
    (x, y), r = centre, radius * 0.8
    path = f"M{_px(x - r)} {_px(y - r)}L{_px(x + r)} {_px(y + r)}M{_px(x - r)} {_px(y + r)}L{_px(x + r)} {_px(y - r)}"
    return f'<path d="{path}" class="{_classes(style)}"/>'


def segment(start: Point, stop: Point, style: str) -> str:
    """Return a straight line."""
    (x, y), (u, v) = start, stop
    return f'<path d="M{_px(x)} {_px(y)}L{_px(u)} {_px(v)}" class="{_classes(style)}"/>'


def arrow(start: Point, stop: Point, style: str, bend: float = 0.0) -> str:
    """Return an arrow, which bends to its left by `bend` px (on a page whose y axis points downwards)."""
    (x, y), (u, v) = start, stop
    length = math.hypot(u - x, v - y) or 1.0
    across = ((v - y) / length, (x - u) / length)
    middle = ((x + u) / 2 + 2 * bend * across[0], (y + v) / 2 + 2 * bend * across[1])
    angle = math.atan2(v - middle[1], u - middle[0])
    # Arrow heads are drawn explicitly: if the picture of a page that defines an SVG marker is hidden, all others lose theirs.
    corners = [(u - 9 * math.cos(angle + turn), v - 9 * math.sin(angle + turn)) for turn in (0.4, -0.4)]
    curve = f"M{_px(x)} {_px(y)}Q{_px(middle[0])} {_px(middle[1])} {_px(u)} {_px(v)}"
    return f'<path d="{curve}" class="{_classes(style)}"/>' + _polygon(
        [(u, v), *corners], f"head {style}-head"
    )


def _polygon(corners: Sequence[Point], style: str) -> str:
    points = " ".join(f"{_px(x)},{_px(y)}" for x, y in corners)
    return f'<polygon points="{points}" class="{_classes(style)}"/>'


def _classes(style: str) -> str:
    return " ".join(f"al-{name}" for name in style.split())


def _px(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
